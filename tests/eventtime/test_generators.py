"""Laws of watermark generators, of idleness and of the guard of their output."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.durations import millis
from aiomailbox.errors import InvalidArgumentError, TimestampError
from aiomailbox.eventtime.generators import (
    BoundedOutOfOrderness,
    OutputGuard,
    RelativeClock,
    WithIdleness,
)
from aiomailbox.eventtime.strategy import WatermarkStrategy
from aiomailbox.records.events import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.testing import ManualClock

IDLE, ACTIVE = WatermarkStatus.IDLE, WatermarkStatus.ACTIVE


class Stream:
    """A generator with an idle timeout of 10 ms, its clock and its output."""

    def __init__(self, strategy: WatermarkStrategy | None = None) -> None:
        self.clock = ManualClock()
        self.start = self.clock.now_ms()
        self.relative = RelativeClock(self.clock)
        strategy = strategy or (
            WatermarkStrategy.for_monotonous_timestamps().with_idleness(millis(10))
        )
        self.generator = strategy.create_generator(self.relative)
        self.guard = OutputGuard()

    def record(self, *timestamps: int) -> None:
        self.generator.on_run(list(timestamps), self.guard)

    def tick(self, at_ms: int | None = None) -> list[Any]:
        if at_ms is not None:
            self.clock.advance_to(self.start + at_ms)
        self.generator.on_periodic_emit(self.guard)
        return self.guard.take()


def test_the_watermark_is_the_highest_time_minus_the_bound_minus_one() -> None:
    """SEM-18."""
    stream = Stream(WatermarkStrategy.for_bounded_out_of_orderness(millis(7)))
    assert (stream.tick(), stream.guard.watermark) == ([], MIN_TIMESTAMP)
    for timestamp in (100, 90, 120):
        stream.record(timestamp)
    assert stream.tick() == [Watermark(112)]
    stream.record(119)
    assert stream.tick() == []


def test_times_in_order_need_no_bound() -> None:
    """SEM-19."""
    stream = Stream(WatermarkStrategy.for_monotonous_timestamps())
    stream.record(10)
    assert stream.tick() == [Watermark(9)]


def test_a_run_counts_as_its_records_one_by_one() -> None:
    runs, single = (Stream(WatermarkStrategy.for_monotonous_timestamps()) for _ in "ab")
    runs.record(5, 9, 2)
    for timestamp in (5, 9, 2):
        single.record(timestamp)
    runs.record()
    assert runs.tick() == single.tick() == [Watermark(8)]


def test_without_watermarks_event_time_stands_still() -> None:
    stream = Stream(WatermarkStrategy.no_watermarks())
    stream.record(10)
    assert stream.tick() == []


@given(st.integers(0, 100), st.lists(st.integers(-1000, 1000), min_size=1))
def test_no_record_within_the_bound_is_late(bound: int, times: list[int]) -> None:
    generator, guard = BoundedOutOfOrderness(bound), OutputGuard()
    highest = MIN_TIMESTAMP
    for time in times:
        highest = max(highest, time)
        if time >= highest - bound:
            assert time > guard.watermark
        generator.on_run([time], guard)
        generator.on_periodic_emit(guard)


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="bound_ms"):
        BoundedOutOfOrderness(-1)


def test_a_stream_is_idle_when_more_than_the_timeout_passed_since_a_quiet_tick() -> (
    None
):
    """SEM-20."""
    stream = Stream()
    stream.clock.advance_to(stream.start + 4)
    stream.record(100)
    assert stream.tick(5) == [Watermark(99)]
    assert [stream.tick(at) for at in (10, 15, 20)] == [[], [], []]
    assert stream.tick(25) == [IDLE]
    assert [stream.tick(at) for at in (30, 300)] == [[], []]


def test_an_idle_stream_stays_idle_until_its_watermark_advances() -> None:
    """SEM-22."""
    stream = Stream()
    stream.record(100)
    for at in (0, 5, 20):
        stream.tick(at)
    assert stream.guard.is_idle
    stream.record(100)
    assert stream.tick(25) == []
    assert stream.guard.is_idle
    stream.record(101)
    assert stream.tick(30) == [ACTIVE, Watermark(100)]


def test_idleness_is_announced_again_after_a_record() -> None:
    stream = Stream()
    for at in (0, 20):
        stream.tick(at)
    stream.record(1)
    assert stream.tick(25) == [ACTIVE, Watermark(0)]
    assert [stream.tick(at) for at in (30, 50)] == [[], [IDLE]]


def test_time_in_which_nothing_may_flow_is_not_quiet_time() -> None:
    stream = Stream()
    stream.tick(0)
    stream.relative.pause()
    stream.relative.pause()
    assert stream.tick(1000) == []
    stream.relative.unpause()
    assert stream.tick(2000) == []
    stream.relative.unpause()
    assert stream.tick(2010) == []
    assert stream.tick(2011) == [IDLE]


def test_a_clock_that_runs_cannot_be_unpaused() -> None:
    with pytest.raises(InvalidArgumentError, match="not paused"):
        RelativeClock(ManualClock()).unpause()


@pytest.mark.parametrize("timeout", [0.0, -1.0])
def test_an_idle_timeout_is_positive(timeout: float) -> None:
    """SEM-21."""
    clock = RelativeClock(ManualClock())
    with pytest.raises(InvalidArgumentError, match="timeout"):
        WithIdleness(BoundedOutOfOrderness(0), timeout, clock)
    with pytest.raises(InvalidArgumentError, match="timeout"):
        WatermarkStrategy.no_watermarks().with_idleness(timeout)


def test_the_last_watermark_of_an_idle_stream_follows_active() -> None:
    guard = OutputGuard()
    guard.mark_idle()
    guard.mark_idle()
    guard.emit_watermark(MAX_TIMESTAMP)
    assert guard.take() == [IDLE, ACTIVE, Watermark(MAX_TIMESTAMP)]


def test_an_event_time_that_does_not_fit_into_64_bits_is_refused() -> None:
    generator = BoundedOutOfOrderness(0)
    guard = OutputGuard()
    generator.on_run([2**63 - 2], guard)
    with pytest.raises(TimestampError, match="milliseconds since the epoch"):
        generator.on_run([1, 2**80], guard)
