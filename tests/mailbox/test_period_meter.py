"""How much of the last seconds a task was busy, idle and backpressured."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.mailbox.metrics import (
    RATE_WINDOW_S,
    MailboxMetrics,
    PeriodMeter,
    TimeShares,
    share_time,
    window_start,
)
from aiomailbox.mailbox.task_mailbox import TaskMailbox
from aiomailbox.testing import ManualClock

PIECES = st.lists(
    st.tuples(st.floats(0, 4), st.floats(0, 4)),
    max_size=30,
)


@given(st.floats(0, 1000), PIECES, st.booleans(), st.floats(0, 9))
def test_a_window_holds_what_was_measured_in_it_and_nothing_older(
    origin: float, pieces: list[tuple[float, float]], is_open: bool, rest: float
) -> None:
    clock = ManualClock()
    clock.advance(origin)
    meter = PeriodMeter(clock)
    periods = []
    for pause, length in pieces:
        clock.advance(pause)
        meter.mark_start()
        start = clock.monotonic()
        clock.advance(length)
        meter.mark_end()
        periods.append((start, clock.monotonic()))
    if is_open:
        meter.mark_start()
        periods.append((clock.monotonic(), math.inf))
    clock.advance(rest)
    now = clock.monotonic()
    begin = window_start(now)
    expected = sum(
        max(0.0, min(end, now) - max(start, begin)) for start, end in periods
    )
    assert meter.within_s(now) == pytest.approx(expected, abs=1e-6)
    assert RATE_WINDOW_S <= now - begin + 1e-9 <= RATE_WINDOW_S + 0.5 + 1e-6


@given(
    st.floats(0.001, 10), st.lists(st.floats(0, 1), min_size=3, max_size=3), st.data()
)
def test_the_shares_of_a_stretch_sum_to_a_second(
    elapsed: float, weights: list[float], data: st.DataObject
) -> None:
    waiting = data.draw(st.floats(0, elapsed))
    total = sum(weights) or 1.0
    parts = [waiting * weight / total for weight in weights]
    shares = share_time(elapsed, *parts)
    assert sum(shares) == pytest.approx(1000)
    assert min(shares) >= 0
    assert shares.backpressured == shares.soft_backpressured + shares.hard_backpressured
    assert shares.idle == pytest.approx(parts[0] / elapsed * 1000, abs=1e-3)


def test_what_rounding_adds_does_not_make_more_than_a_second() -> None:
    assert share_time(1.0, 0.7, 0.2, 0.1000001).busy == 0
    assert sum(share_time(1.0, 0.7, 0.2, 0.1000001)) == pytest.approx(1000)
    assert share_time(0.0, 0.0, 0.0, 0.0) == TimeShares()


class TestSharesOfALoop:
    @staticmethod
    def metrics() -> tuple[ManualClock, MailboxMetrics]:
        clock = ManualClock()
        return clock, MailboxMetrics(TaskMailbox(name="a"), clock)

    def test_are_zero_before_the_start_and_after_the_stop(self) -> None:
        clock, metrics = self.metrics()
        metrics.idle.mark_start()
        clock.advance(3)
        assert metrics.time_shares() == TimeShares()
        metrics.start()
        clock.advance(1)
        metrics.start()
        assert sum(metrics.time_shares()) == pytest.approx(1000)
        metrics.stop()
        assert metrics.time_shares() == TimeShares()

    def test_count_from_the_start_on(self) -> None:
        clock, metrics = self.metrics()
        clock.advance(100)
        metrics.start()
        clock.advance(1)
        metrics.idle.mark_start()
        clock.advance(1)
        metrics.idle.mark_end()
        metrics.hard_backpressured.mark_start()
        clock.advance(2)
        shares = metrics.time_shares()
        assert shares == pytest.approx((250, 250, 0, 500))

    def test_forget_what_is_older_than_the_window(self) -> None:
        clock, metrics = self.metrics()
        metrics.start()
        metrics.backpressured.mark_start()
        clock.advance(30)
        metrics.backpressured.mark_end()
        assert metrics.time_shares().backpressured == pytest.approx(1000)
        clock.advance(RATE_WINDOW_S / 2)
        assert metrics.time_shares() == pytest.approx((500, 0, 500, 0))
        clock.advance(RATE_WINDOW_S)
        assert metrics.time_shares() == (1000, 0, 0, 0)

    def test_stopping_ends_what_is_measured(self) -> None:
        clock, metrics = self.metrics()
        metrics.idle.mark_start()
        clock.advance(2)
        metrics.stop()
        clock.advance(50)
        assert metrics.idle.total_ms() == pytest.approx(2000)


def test_a_meter_reads_the_clock_only_at_marks() -> None:
    class Counting:
        reads = 0

        def monotonic(self) -> float:
            self.reads += 1
            return float(self.reads)

        def now_ms(self) -> int:
            raise AssertionError("a meter measures durations")

    clock: Any = Counting()
    meter = PeriodMeter(clock)
    meter.mark_start()
    meter.mark_start()
    meter.mark_end()
    meter.mark_end()
    assert clock.reads == 2
    assert meter.within_s(3.0) == 1.0
    assert clock.reads == 2
