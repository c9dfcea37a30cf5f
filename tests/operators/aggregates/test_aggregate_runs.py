"""Adding whole runs to ready-made aggregates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import given, strategies as st

from aiomailbox.operators.aggregates.functions import (
    Aggregate,
    aggregates,
    count,
    max_,
    mean,
    sum_,
)
from aiomailbox.operators.core.user_code import OnError, fail, skip
from aiomailbox.operators.keyed.operators import KeyedAggregateOperator
from aiomailbox.testing import OneInputHarness

RECORDS = st.lists(
    st.tuples(st.sampled_from("abc"), st.none() | st.integers(-9, 9)), max_size=30
)


def _value(record: tuple[str, Any]) -> Any:
    return record[1]


def _each_by_itself(aggregate: Aggregate, records: list[tuple[str, Any]]) -> list[Any]:
    accumulators: dict[str, Any] = {}
    results = []
    for record in records:
        accumulator = accumulators.get(record[0]) or aggregate.create_accumulator()
        accumulators[record[0]] = aggregate.add(record, accumulator)
        results.append(aggregate.get_result(accumulators[record[0]]))
    return results


@pytest.mark.parametrize(
    "make",
    [
        lambda: sum_(_value),
        lambda: mean(_value),
        lambda: aggregates(n=count(), top=max_(_value), total=sum_(_value)),
        lambda: aggregates(n=count(), other=_Length()),
    ],
)
@given(records=RECORDS)
def test_a_run_is_added_as_its_records_one_by_one_would_be(
    make: Any, records: list[tuple[str, Any]]
) -> None:
    aggregate = make()
    table: dict[str, Any] = {}
    aggregate.add(("a", 1), aggregate.create_accumulator())
    results: list[Any] = []
    keys = [record[0] for record in records]
    aggregate.roll(keys, records, table, results)
    alone = _each_by_itself(make(), records)
    if aggregate.names is not None:
        alone = [(key, *result) for key, result in zip(keys, alone, strict=True)]
    assert results == alone


@pytest.mark.parametrize("on_error", [fail, skip])
@pytest.mark.parametrize("make", [lambda: sum_("v"), lambda: _Length()])
def test_results_are_told_with_their_key_where_that_is_asked_for(
    make: Callable[[], Any], on_error: OnError
) -> None:
    operator = KeyedAggregateOperator("k", make(), include_key=True, on_error=on_error)
    with OneInputHarness(operator, keyed=True) as harness:
        for _ in range(2):
            harness.process_run([{"k": "a", "v": 1}, {"k": "b", "v": 1}])
        assert harness.values[:2] == [("a", ANY), ("b", ANY)]
        assert [key for key, _ in harness.values] == ["a", "b", "a", "b"]


@pytest.mark.parametrize("on_error", [fail, skip])
def test_named_results_have_their_key(on_error: OnError) -> None:
    both = aggregates(n=count(), other=_Length())
    operator = KeyedAggregateOperator("k", both, on_error=on_error)
    with OneInputHarness(operator, keyed=True) as harness:
        for _ in range(2):
            harness.process_run([{"k": "a", "v": 1}, {"k": "b", "v": 1}])
        assert [(each.key, each.n) for each in harness.values] == [
            ("a", 1),
            ("b", 1),
            ("a", 2),
            ("b", 2),
        ]


def test_a_record_that_fails_leaves_its_key_as_it_was_and_the_rest_goes_on() -> None:
    operator = KeyedAggregateOperator("k", sum_("v"), on_error=skip)
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([{"k": "a", "v": 1}])
        harness.process_run(
            [
                {"k": "a", "v": 2},
                {"k": "a", "v": "x"},
                {"k": "b", "w": 0},
                {"k": "a", "v": 4},
            ]
        )
        assert harness.values == [1, 3, 7]


class _Length:
    """An aggregate of the user's own: counts."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, first: int, second: int) -> int:
        return first + second
