"""A record that fails leaves the state of its key as it was, and leads to nothing."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from aiomailbox.operators.aggregates.functions import (
    aggregates,
    collect_list,
    commutative,
    count,
    mean,
    sum_,
)
from aiomailbox.operators.aggregates.ordered import (
    count_distinct,
    first,
    last,
    quantile,
    top_n,
)
from aiomailbox.operators.aggregates.undoing import undoable
from aiomailbox.operators.core.user_code import skip
from aiomailbox.operators.keyed.operators import (
    KeyedAggregateOperator,
    KeyedReduceOperator,
)
from aiomailbox.testing import OneInputHarness


class BadRecordError(Exception):
    pass


def key_of(record: Any) -> Any:
    return record[0]


def number(record: Any) -> Any:
    if record[1] is None:
        raise BadRecordError(record)
    return record[1]


class Own:
    """Changes its accumulator before it finds out, or only when it makes a result."""

    def __init__(self, *, at_result: bool = False) -> None:
        self.at_result = at_result

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value[1])
        if not self.at_result:
            number(value)
        return accumulator

    def get_result(self, accumulator: list[Any]) -> Any:
        if None in accumulator:
            raise BadRecordError(accumulator)
        return tuple(accumulator)


class AsyncOwn(Own):
    async def add(  # type: ignore[override]
        self, value: Any, accumulator: list[Any]
    ) -> list[Any]:
        await asyncio.sleep(0.001)
        return super().add(value, accumulator)


def reduced(old: Any, new: Any) -> Any:
    return old[0], old[1] + number(new)


async def reduced_later(old: Any, new: Any) -> Any:
    await asyncio.sleep(0.001)
    return reduced(old, new)


AGGREGATES = {
    "sum": lambda: sum_(number),
    "several": lambda: aggregates(
        n=count(),
        each=collect_list(key_of),
        different=count_distinct(lambda record: record[1]),
        best=top_n(2, by=lambda record: record[1] or 0),
        first=first(by=lambda record: record[1] or 0),
        last=last(by=lambda record: record[1] or 0),
        own=Own(),
        total=sum_(number),
        middle=quantile(0.5, number),
    ),
    "no result": lambda: aggregates(n=count(), own=Own(at_result=True)),
    "own": Own,
    "own, no result": lambda: Own(at_result=True),
    "async": AsyncOwn,
    "async, no result": lambda: AsyncOwn(at_result=True),
}


async def results_of(operator: Any, records: list[Any]) -> list[Any]:
    async with OneInputHarness(operator, keyed=True) as harness:
        for begin in range(0, len(records), 5):
            piece = records[begin : begin + 5]
            await harness.run(harness.process_run, piece, range(len(piece)))
        return harness.values


def records_of(seed: int, *, good_begin: bool = False) -> list[Any]:
    chosen = random.Random(seed)
    begin = [("a", 1), ("b", 1)] if good_begin else []
    numbers = [None, 1, 2, 3, 5]
    return begin + [(chosen.choice("ab"), chosen.choice(numbers)) for _ in range(30)]


@pytest.mark.parametrize("kind", AGGREGATES)
async def test_an_aggregate_goes_on_as_if_failing_records_had_never_come(
    kind: str,
) -> None:
    for seed in range(10):
        records = records_of(seed)
        good = [record for record in records if record[1] is not None]
        make = AGGREGATES[kind]
        with_bad = KeyedAggregateOperator(key_of, make(), on_error=skip)
        without = KeyedAggregateOperator(key_of, make(), on_error=skip)
        found = await results_of(with_bad, records)
        assert found == await results_of(without, good)
        assert len(found) == len(good) < len(records)


def test_a_mean_that_cannot_be_made_changes_nothing() -> None:
    operator = KeyedAggregateOperator(key_of, mean(_value), on_error=skip)
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([("a", "one"), ("a", 2), ("a", 4)])
        harness.process_run([("a", "one"), ("a", 6)])
        assert harness.values == [2.0, 3.0, 4.0]


def _value(record: Any) -> Any:
    return record[1]


@pytest.mark.parametrize("function", [reduced, reduced_later])
async def test_a_reduce_goes_on_as_if_failing_records_had_never_come(
    function: Any,
) -> None:
    for seed in range(10):
        records = records_of(seed, good_begin=True)
        good = [record for record in records if record[1] is not None]
        with_bad = KeyedReduceOperator(key_of, function, on_error=skip)
        without = KeyedReduceOperator(key_of, function, on_error=skip)
        found = await results_of(with_bad, records)
        assert found == await results_of(without, good)


@commutative
class Total(Own):
    """Merges in place, into its second argument."""

    def merge(self, first: list[Any], second: list[Any]) -> list[Any]:
        second += first
        return second


MERGED = {
    "sum": lambda: sum_(number),
    "several": lambda: aggregates(
        n=count(),
        each=collect_list(key_of),
        different=count_distinct(number),
        best=top_n(2, by=number),
        first=first(by=number),
        own=Total(),
        middle=quantile(0.5, number),
    ),
    "nested": lambda: aggregates(both=aggregates(n=count(), own=Total()), n=count()),
    "own": Total,
}


@pytest.mark.parametrize("kind", MERGED)
def test_what_was_added_last_can_be_taken_back(kind: str) -> None:
    aggregate = undoable(MERGED[kind]())
    rounds = random.Random(1)
    held = aggregate.create_accumulator()
    for _ in range(50):
        before = aggregate.get_result(held)
        value = (rounds.choice("ab"), rounds.randrange(-3, 4))
        mark = aggregate.mark(value, held)
        added = aggregate.add(value, held)
        after = aggregate.get_result(added)
        held = aggregate.reset(held, mark)
        assert aggregate.get_result(held) == before
        held = aggregate.add(value, held)
        assert aggregate.get_result(held) == after


@pytest.mark.parametrize("kind", MERGED)
def test_merging_changes_neither_of_both(kind: str) -> None:
    aggregate = undoable(MERGED[kind]())
    one = aggregate.add(("a", 1), aggregate.create_accumulator())
    other = aggregate.add(("b", 2), aggregate.create_accumulator())
    before = aggregate.get_result(one), aggregate.get_result(other)
    merged = aggregate.merge(one, other)
    aggregate.add(("a", 3), merged)
    assert (aggregate.get_result(one), aggregate.get_result(other)) == before
