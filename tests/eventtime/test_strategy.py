"""Laws of watermark strategies and of timestamp assigners."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import FrozenInstanceError, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aiomailbox.durations import hours, millis, seconds
from aiomailbox.errors import InvalidArgumentError, TimestampError, WrongTypeError
from aiomailbox.eventtime.generators import (
    BoundedOutOfOrderness,
    RelativeClock,
    WithIdleness,
)
from aiomailbox.eventtime.strategy import TimestampAssigner, WatermarkStrategy
from aiomailbox.records.events import MIN_TIMESTAMP
from aiomailbox.records.run import ListRun
from aiomailbox.testing import ManualClock

Flight = namedtuple("Flight", "scheduled")  # noqa: PYI024


@dataclass
class Order:
    scheduled: Any


def test_a_strategy_is_frozen_and_its_methods_return_new_ones() -> None:
    plain = WatermarkStrategy.for_bounded_out_of_orderness(seconds(2))
    full = plain.with_timestamp_assigner("ts").with_idleness(seconds(3))
    assert (plain.assigner, plain.idleness_ms) == (None, None)
    assert (full.assigner, full.idleness_ms) == ("ts", 3000)
    assert plain == WatermarkStrategy(plain.generator_factory)
    with pytest.raises(FrozenInstanceError):
        plain.assigner = "ts"  # type: ignore[misc]


def test_every_generator_has_its_own_progress() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    clock = RelativeClock(ManualClock())
    first, second = (strategy.create_generator(clock) for _ in "ab")
    assert isinstance(first, BoundedOutOfOrderness)
    assert first is not second
    idle = strategy.with_idleness(seconds(1)).create_generator(clock)
    assert isinstance(idle, WithIdleness)


def test_a_users_own_generator_is_made_once_per_stream() -> None:
    made = []

    def factory() -> BoundedOutOfOrderness:
        made.append(BoundedOutOfOrderness(1))
        return made[-1]

    strategy = WatermarkStrategy.for_generator(factory)
    clock = RelativeClock(ManualClock())
    assert [strategy.create_generator(clock) for _ in "ab"] == made


class OfFlink:
    """A generator as Flink has it."""

    def on_event(self, event: Any, timestamp: int, output: Any) -> None: ...

    def on_periodic_emit(self, output: Any) -> None: ...


def test_a_generator_without_a_method_is_refused_where_it_is_given() -> None:
    with pytest.raises(WrongTypeError, match=r"OfFlink has no method on_run.*on_run\("):
        WatermarkStrategy.for_generator(OfFlink)  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError, match="each subtask needs its own"):
        WatermarkStrategy.for_generator(BoundedOutOfOrderness(1))  # type: ignore[arg-type]
    made = WatermarkStrategy.for_generator(lambda: OfFlink())  # type: ignore[arg-type,return-value]
    with pytest.raises(WrongTypeError, match="OfFlink has no method on_run"):
        made.create_generator(RelativeClock(ManualClock()))


@pytest.mark.parametrize("bound", [-1, timedelta(seconds=-1), 100_000, float("nan")])
def test_a_bound_that_cannot_be_meant_is_refused(bound: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="max_out_of_orderness"):
        WatermarkStrategy.for_bounded_out_of_orderness(bound)


def test_alignment_is_part_of_the_strategy() -> None:
    strategy = WatermarkStrategy.no_watermarks().with_watermark_alignment("g", hours(1))
    alignment = strategy.alignment
    assert alignment is not None
    assert (alignment.max_drift_ms, alignment.update_interval_ms) == (3_600_000, 1000)
    with pytest.raises(InvalidArgumentError, match="update_interval"):
        strategy.with_watermark_alignment("g", seconds(1), 0)


@pytest.mark.parametrize(
    "value", [Flight(7), Order(7), {"scheduled": 7}], ids=["tuple", "object", "mapping"]
)
def test_a_field_is_found_in_any_kind_of_record(value: Any) -> None:
    assigner = TimestampAssigner("scheduled")
    assert assigner.assign(ListRun([value, value])) == [7, 7]
    assert assigner.field == "scheduled"


def test_a_run_may_hold_records_of_several_kinds() -> None:
    run = ListRun([Flight(1), {"scheduled": 2}, Order(3)])
    assert TimestampAssigner("scheduled").assign(run) == [1, 2, 3]
    assert TimestampAssigner("scheduled").assign(run.slice(1, 3)) == [2, 3]
    assert TimestampAssigner("scheduled").assign(run.slice(0, 0)) == []


def test_a_function_may_take_the_previous_time() -> None:
    run = ListRun([1, 2], [10, MIN_TIMESTAMP])
    seen = []

    def assign(value: int, previous: int | None) -> int:
        seen.append(previous)
        return value

    assert TimestampAssigner(assign).assign(run) == [1, 2]
    assert TimestampAssigner(assign).assign(ListRun([3])) == [3]
    assert seen == [10, None, None]
    assert TimestampAssigner(lambda value, step=5: value + step).assign(run) == [6, 7]
    assert TimestampAssigner(int).assign(ListRun(["8"])) == [8]


def test_aware_datetimes_are_converted_also_among_ints() -> None:
    day = datetime(1970, 1, 2, tzinfo=UTC)
    run = ListRun([day, 5, day + millis(1.5)])
    assert TimestampAssigner(lambda v: v).assign(run) == [86_400_000, 5, 86_400_001]


@pytest.mark.parametrize("time", [None, 1.5, True, "1", datetime(2020, 1, 1)])
def test_anything_else_names_the_record(time: Any) -> None:
    run = ListRun([Flight(1), Flight(time)])
    with pytest.raises(TimestampError, match="Flight") as caught:
        TimestampAssigner("scheduled").assign(run)
    assert repr(time) in str(caught.value)


@pytest.mark.parametrize("value", [Flight(1), {"scheduled": 1}])
def test_a_missing_field_names_the_record(value: Any) -> None:
    with pytest.raises(TimestampError, match="has no field 'departed'"):
        TimestampAssigner("departed").assign(ListRun([value]))


def test_what_cannot_assign_is_refused_where_it_is_written() -> None:
    async def later(value: Any) -> int:
        return 1

    strategy = WatermarkStrategy.no_watermarks()
    for assigner in (later, 5, None):
        with pytest.raises(WrongTypeError, match="timestamp_assigner"):
            strategy.with_timestamp_assigner(assigner)  # type: ignore[arg-type]


def test_without_an_assigner_the_records_keep_their_times() -> None:
    assert WatermarkStrategy.no_watermarks().create_assigner() is None
