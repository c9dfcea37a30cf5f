"""Sums and means: of ints exact, of floats added up from the first to the last."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import aiomailbox as am
from aiomailbox.errors import RecordTypeError, UserFunctionError
from aiomailbox.operators.aggregates.functions import mean, sum_
from aiomailbox.operators.keyed.operators import KeyedAggregateOperator
from aiomailbox.records.events import MAX_TIMESTAMP
from aiomailbox.testing import OneInputHarness
from aiomailbox.windowing.assigners import (
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.panes import PanedAggregateOperator, RunningMerge
from aiomailbox.windowing.triggers import EventTimeTrigger

# What cancels out, what is too small to be seen beside it, and what rounds.
FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.sampled_from([1e16, -1e16, 1.0, 0.1, 1e-300, 5e-324, -0.0, 1e300]),
)
INTS = st.one_of(
    st.integers(), st.integers(-(2**200), 2**200), st.sampled_from([2**53 + 1, 2**53])
)
HARD = [1e16, 1.0, -1e16, 0.1, 1e-300, 3.0, 1e16, 1.0]


class OwnTrigger(EventTimeTrigger):
    """No other than its base, but one of the user's: windows get the general operator."""


def in_order(values: list[Any]) -> Any:
    """Add from left to right."""
    return reduce(add, values)


def running(values: list[Any], aggregate: Any) -> list[Any]:
    """Return the results of a running aggregate, one after each value."""
    operator = KeyedAggregateOperator(lambda _: "k", aggregate)
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run(values)
        return harness.values


def of_windows(
    values: list[Any], assigner: Any, aggregate: Any, **options: Any
) -> list[Any]:
    """Return the results of windows; the values are a millisecond apart."""
    operator = window_operator(lambda _: "k", assigner, aggregate=aggregate, **options)
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run(values, list(range(len(values))))
        harness.process_watermark(MAX_TIMESTAMP)
        return harness.values


WHOLE = TumblingEventTimeWindows(1_000)
WAYS: dict[str, Callable[[list[Any], Any], Any]] = {
    "running": lambda values, aggregate: running(values, aggregate)[-1],
    "tumbling": lambda values, aggregate: of_windows(values, WHOLE, aggregate)[0],
    "general": lambda values, aggregate: of_windows(
        values, WHOLE, aggregate, trigger=OwnTrigger()
    )[0],
    "sessions": lambda values, aggregate: of_windows(
        values, am.EventTimeSessionWindows(10), aggregate
    )[0],
}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40)
@given(values=st.lists(FLOATS, min_size=1, max_size=20))
def test_floats_are_added_from_left_to_right_in_every_way(
    way: str, values: list[float]
) -> None:
    total = WAYS[way](values, sum_(lambda value: value))
    assert total.hex() == in_order(values).hex()
    average = WAYS[way](values, mean(lambda value: value))
    assert average.hex() == (in_order(values) / len(values)).hex()


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40)
@given(values=st.lists(INTS, min_size=1, max_size=20))
def test_ints_are_exact_in_every_way(way: str, values: list[int]) -> None:
    assert WAYS[way](values, sum_(lambda value: value)) == sum(values)
    average = WAYS[way](values, mean(lambda value: value))
    # The nearest float of the exact mean: nothing is rounded before the division.
    assert average == float(Fraction(sum(values), len(values)))


@given(values=st.lists(INTS, min_size=1, max_size=40))
def test_ints_are_exact_where_windows_share_panes(values: list[int]) -> None:
    assigner = SlidingEventTimeWindows(10, 5)
    operator = window_operator(lambda _: "k", assigner, aggregate=sum_(int))
    assert isinstance(operator, PanedAggregateOperator)
    assert of_windows(values, assigner, sum_(lambda value: value)) == [
        sum(values[max(start, 0) : start + 10])
        for start in range(-5, len(values), 5)
        if values[max(start, 0) : start + 10]
    ]


@given(values=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60))
def test_floats_in_shared_panes_differ_by_the_rounding_of_sums_and_no_more(
    values: list[float],
) -> None:
    """A pane is added up from left to right, and so many sums follow each other."""
    assigner = SlidingEventTimeWindows(20, 5)
    found = of_windows(values, assigner, sum_(lambda value: value))
    plain = of_windows(
        values, assigner, sum_(lambda value: value), trigger=OwnTrigger()
    )
    windows = [
        values[max(start, 0) : start + 20] for start in range(-15, len(values), 5)
    ]
    for total, left_to_right, window in zip(found, plain, windows, strict=True):
        assert left_to_right.hex() == in_order(window).hex()
        bound = len(window) * 2.0**-52 * math.fsum(map(abs, window))
        assert abs(total - math.fsum(window)) <= bound


def test_a_trigger_of_ones_own_adds_floats_of_sliding_windows_from_left_to_right() -> (
    None
):
    """Who needs the same last digits does without panes."""
    values = HARD * 4
    assigner = SlidingEventTimeWindows(8, 4)
    found = of_windows(
        values, assigner, sum_(lambda value: value), trigger=OwnTrigger()
    )
    assert found == [
        in_order(values[max(start, 0) : start + 8])
        for start in range(-4, len(values), 4)
    ]


@settings(max_examples=40)
@given(
    numbers=st.lists(FLOATS, min_size=40, max_size=40),
    skipped=st.sets(st.integers(0, 11), max_size=11),
    offset=st.integers(0, 9),
)
def test_what_panes_add_up_to_does_not_depend_on_which_window_is_asked_for_first(
    numbers: list[float], skipped: set[int], offset: int
) -> None:
    panes = {offset + 5 * n: {"k": [number]} for n, number in enumerate(numbers)}

    def merge() -> RunningMerge:
        return RunningMerge(
            panes.get, sum_(float), size=30, slide=10, pane=5, offset=offset
        )

    all_of_them, some = merge(), merge()
    for number in range(12):
        start = offset + 10 * number
        total = all_of_them.take(start)["k"][0]
        if number not in skipped:
            assert some.take(start)["k"][0].hex() == total.hex()


def test_none_is_no_zero() -> None:
    assert running([None, 2**53, None, 1.0], sum_(lambda v: v))[-1] == 2.0**53
    assert running([None], sum_(lambda v: v)) == [None]
    assert running([None], mean(lambda v: v)) == [None]


class Money:
    """Adds up by itself, and only with its like."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __add__(self, other: Money) -> Money:
        if not isinstance(other, Money):
            return NotImplemented
        return Money(self.cents + other.cents)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("values", [["9", "10"], [9, "10"], [None, b"9"], [1.5, b""]])
@pytest.mark.parametrize("kind", [sum_, mean])
def test_text_is_refused_where_it_comes_first_and_later(
    way: str, values: list[Any], kind: Any
) -> None:
    text = next(value for value in values if isinstance(value, str | bytes))
    rows = [{"v": value} for value in values]
    with pytest.raises(UserFunctionError) as caught:
        WAYS[way](rows, kind("v"))
    error = caught.value.__cause__
    assert isinstance(error, RecordTypeError)
    message = str(caught.value)
    assert f"{text!r} of field 'v' ({__file__}:" in message
    assert f"{kind.__name__}(lambda record: float(record['v']))" in message
    assert "operator 'operator'" in message


@pytest.mark.parametrize(
    "aggregate", [sum_("v"), am.aggregates(n=am.count(), v=mean("v"))]
)
def test_a_record_with_text_can_be_skipped_and_leaves_no_trace(aggregate: Any) -> None:
    rows = [{"v": value} for value in ("9", 1, "2", 3, b"4")]
    operator = KeyedAggregateOperator(lambda _: "k", aggregate, on_error=am.skip)
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run(rows)
        last = harness.values[-1]
        assert (last if aggregate.names is None else (last.n, last.v)) in (4, (2, 2.0))
        assert len(harness.values) == 2


@pytest.mark.parametrize(
    "values",
    [
        [Decimal("0.1"), Decimal("0.2")],
        [timedelta(1), timedelta(3)],
        [[1], [2]],
        [True, True],
        [Fraction(1, 3), 1],
    ],
    ids=repr,
)
def test_what_else_can_be_added_is_added_as_ever(values: list[Any]) -> None:
    assert running(values, sum_(lambda value: value))[-1] == in_order(values)


def test_a_type_of_the_users_is_added_and_its_own_failure_is_told_as_it_is() -> None:
    total = sum_(lambda value: value)
    assert running([Money(1), Money(2)], total)[-1].cents == 3
    with pytest.raises(UserFunctionError, match="unsupported operand"):
        running([Money(1), 2], sum_(lambda value: value))


async def test_columns_of_text_are_refused_as_rows_are() -> None:
    table = pa.table({"k": ["a", "a"], "v": ["9", "10"]})
    env = am.StreamExecutionEnvironment()
    stream = env.from_source(am.ArrowSource(table)).key_by("k").aggregate(sum_("v"))
    with pytest.raises(am.JobFailedError, match="'9' of field 'v'"):
        await stream.collect()


@pytest.mark.parametrize("kind", [am.min_, am.max_])
async def test_extremes_of_a_csv_file_without_types_are_warned_of_once(
    kind: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "prices.csv"
    place.write_text("k,v\na,9\nb,10\na,1\n")

    async def extremes(aggregate: Any, **reading: Any) -> list[str]:
        caplog.clear()
        env = am.StreamExecutionEnvironment()
        stream = env.from_source(am.FileSource(place, **reading))
        await stream.key_by("k").aggregate(aggregate).collect()
        messages = [record.getMessage() for record in caplog.records]
        return [message for message in messages if "letter by letter" in message]

    (line,) = await extremes(kind("v"))
    assert f"{kind.__name__}('v')" in line
    assert str(__file__) in line
    assert not await extremes(kind("v"), records=Price)
    assert not await extremes(kind(lambda row: float(row["v"])))
    assert not await extremes(am.count())
    (line,) = await extremes(am.aggregates(n=am.count(), v=kind("v", where="k")))


class Price(NamedTuple):
    """A row of the file."""

    k: str
    v: float
