"""Adding whole runs to ready-made aggregates."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.operators import (
    Aggregate,
    KeyedAggregateOperator,
    aggregates,
    count,
    max_,
    mean,
    skip,
    sum_,
)
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
    aggregate.roll(keys, records, table.get, table.__setitem__, results.append)
    assert results == _each_by_itself(make(), records)


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
