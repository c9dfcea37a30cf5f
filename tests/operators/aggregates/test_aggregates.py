"""The ready-made aggregates."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import InvalidArgumentError, RecordTypeError, WrongTypeError
from aiomailbox.operators.aggregates.functions import (
    Aggregate,
    aggregates,
    collect_list,
    count,
    max_,
    mean,
    min_,
    sum_,
)

NUMBERS = st.lists(st.one_of(st.none(), st.integers(-1000, 1000)))


class Flight(NamedTuple):
    origin: str
    delay: int | None


def itself(value: Any) -> Any:
    return value


def fill(aggregate: Any, records: list[Any]) -> Any:
    accumulator = aggregate.create_accumulator()
    for record in records:
        accumulator = aggregate.add(record, accumulator)
    return accumulator


def result(aggregate: Any, records: list[Any]) -> Any:
    return aggregate.get_result(fill(aggregate, records))


def everything() -> Aggregate:
    return aggregates(
        n=count(),
        positive=count(where=lambda value: value is not None and value > 0),
        total=sum_(itself),
        average=mean(itself),
        least=min_(itself),
        most=max_(itself),
        all=collect_list(itself),
    )


@given(NUMBERS)
def test_aggregates_are_those_of_sql(numbers: list[int | None]) -> None:
    known = [number for number in numbers if number is not None]
    found = result(everything(), numbers)
    assert found.n == len(numbers)
    assert found.positive == sum(number > 0 for number in known)
    assert found.total == (sum(known) if known else None)
    assert found.least == min(known, default=None)
    assert found.most == max(known, default=None)
    assert found.all == known
    if known:
        assert math.isclose(found.average, sum(known) / len(known))
    else:
        assert found.average is None


@given(NUMBERS, NUMBERS)
def test_merged_accumulators_hold_the_records_of_both(
    first: list[int | None], second: list[int | None]
) -> None:
    aggregate = everything()
    merged = aggregate.merge(fill(aggregate, first), fill(aggregate, second))
    assert merged == fill(aggregate, first + second)


@dataclass
class Row:
    origin: str
    delay: int | None


@pytest.mark.parametrize(
    "make",
    [Flight, Row, lambda origin, delay: {"origin": origin, "delay": delay}],
    ids=["namedtuple", "dataclass", "mapping"],
)
def test_a_field_is_read_from_any_form_of_record(make: Any) -> None:
    records = [make("JFK", 3), make("LGA", None), make("EWR", 9)]
    assert result(mean("delay"), records) == 6
    assert result(aggregates(n=count(), most=max_("delay")), records) == (3, 9)
    assert result(count(where="delay"), records) == 2


def test_a_field_may_have_a_name_that_python_reserves() -> None:
    assert result(sum_("class"), [{"class": 1}, {"class": 2}]) == 3


def test_sums_are_of_anything_that_can_be_added() -> None:
    assert result(sum_(itself), [[1], [2, 3]]) == [1, 2, 3]
    assert result(mean(itself), [Decimal(1), Decimal(2)]) == Decimal("1.5")
    assert result(mean(itself), [timedelta(1), timedelta(3)]) == timedelta(2)


def test_a_missing_field_is_named() -> None:
    aggregate = mean("delay")
    with pytest.raises(RecordTypeError, match="no field 'delay'"):
        result(aggregate, [{"dely": 1}])
    accumulator = fill(aggregate, [{"delay": 1}])
    with pytest.raises(RecordTypeError, match="Its fields are: dely"):
        aggregate.add({"dely": 1}, accumulator)
    with pytest.raises(RecordTypeError, match="the same fields"):
        aggregate.add(Flight("JFK", 1), accumulator)


def test_an_error_in_a_function_is_not_taken_for_a_missing_field() -> None:
    aggregate = aggregates(n=count(), total=sum_(lambda record: record["x"] + 1))
    with pytest.raises(TypeError, match="concatenate"):
        result(aggregate, [{"x": "text"}])


def test_a_record_that_fails_leaves_the_accumulator_as_it_was() -> None:
    aggregate = everything()
    accumulator = fill(aggregate, [1, 2])
    before = [*accumulator[:-1], list(accumulator[-1])]
    with pytest.raises(TypeError):
        aggregate.add("text", accumulator)
    assert accumulator == before


def test_a_list_that_was_given_out_does_not_change_any_more() -> None:
    aggregate = collect_list()
    accumulator = fill(aggregate, [1])
    given_out = aggregate.get_result(accumulator)
    aggregate.add(2, accumulator)
    assert given_out == [1]


class Longest:
    def create_accumulator(self) -> str:
        return ""

    def add(self, value: str, accumulator: str) -> str:
        return max(accumulator, value, key=len)

    def get_result(self, accumulator: str) -> str:
        return accumulator

    def merge(self, first: str, second: str) -> str:
        return max(first, second, key=len)


def test_functions_of_ones_own_go_with_the_ready_made() -> None:
    aggregate = aggregates(n=count(), longest=Longest())
    words = ["to", "be", "or", "not"]
    assert result(aggregate, words) == (4, "not")
    merged = aggregate.merge(fill(aggregate, words[:2]), fill(aggregate, words[2:]))
    assert aggregate.get_result(merged).longest == "not"


def test_aggregates_can_be_nested() -> None:
    inner = aggregates(n=count(), total=sum_(itself))
    assert result(aggregates(n=count(), inner=inner), [1, 2]) == (2, (2, 3))


@pytest.mark.parametrize(
    "name", ["key", "window_start", "window_end", "_hidden", "class", "two words"]
)
def test_a_name_that_cannot_be_a_field_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        aggregates(**{name: count()})


def test_no_aggregate_at_all_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="count"):
        aggregates()


@pytest.mark.parametrize("bad", [3, None, len])
def test_what_is_no_aggregate_is_refused_by_its_name(bad: Any) -> None:
    with pytest.raises(WrongTypeError, match="total"):
        aggregates(total=bad)


def count_where(condition: Any) -> Any:
    return count(where=condition)


@pytest.mark.parametrize("make", [sum_, mean, min_, max_, collect_list, count_where])
def test_a_selector_is_a_name_or_a_plain_function(make: Any) -> None:
    async def field(record: Any) -> Any:
        return record

    for bad in (field, 3, lambda: 1):
        with pytest.raises(WrongTypeError):
            make(bad)
    with pytest.raises(InvalidArgumentError, match="empty"):
        make("")


def test_an_async_aggregate_is_refused_among_several() -> None:
    class Slow(Longest):
        async def add(self, value: str, accumulator: str) -> str:  # type: ignore[override]
            return value

    with pytest.raises(WrongTypeError, match="async def"):
        aggregates(slow=Slow())


def test_aggregates_and_their_results_can_be_pickled() -> None:
    aggregate = pickle.loads(pickle.dumps(aggregates(n=count(), total=sum_("delay"))))
    found = result(aggregate, [Flight("JFK", 2)])
    again = pickle.loads(pickle.dumps(found))
    assert again == found == (1, 2)
    assert type(again) is type(found)
    assert (again.n, again.total) == (1, 2)


def test_aggregates_show_how_they_were_written() -> None:
    text = repr(aggregates(n=count(), delay=mean("delay"), all=collect_list()))
    assert text == "aggregates(n=count(), delay=mean('delay'), all=collect_list())"
