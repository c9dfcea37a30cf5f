"""Processing-time timers that are due come before more input."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.clock import clock_of

_DELAY_MS = 20


class _TimerPerRecord(am.KeyedProcessFunction):
    """Registers a timer of its own for each record, and takes time for both."""

    def __init__(self, clock: Any, record_s: float, timer_s: float) -> None:
        self.clock = clock
        self.record_s = record_s
        self.timer_s = timer_s
        self.waiting = 0
        self.most_waiting = 0
        self.late_ms: list[int] = []

    def process_element(self, value: int, context: Any, out: Any) -> None:
        self.clock.advance(self.record_s)
        timers = context.timer_service
        now_ms = timers.current_processing_time()
        timers.register_processing_time_timer(now_ms + _DELAY_MS + value % 50)
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        self.clock.advance(self.timer_s)
        self.waiting -= 1
        now_ms = context.timer_service.current_processing_time()
        self.late_ms.append(now_ms - timestamp)


@pytest.mark.parametrize(("record_us", "timer_us"), [(10, 10), (10, 40), (5, 200)])
async def test_timers_keep_up_with_a_source_as_fast_as_it_can(
    record_us: int, timer_us: int
) -> None:
    """Timers that cost more than records stop the source; they do not fall behind."""
    clock = clock_of(asyncio.get_running_loop())
    function = _TimerPerRecord(clock, record_us / 1e6, timer_us / 1e6)
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(range(30_000)).key_by(lambda number: number)
    await stream.process(function).count()
    halves = len(function.late_ms) // 2
    before, after = function.late_ms[:halves], function.late_ms[halves:]
    # As late at the end as at the begin: it was as late as all input takes.
    assert max(after) <= max(before) + _DELAY_MS
    # No more wait than records that a source reads in their delay.
    assert function.most_waiting <= 3 * (_DELAY_MS + 50) * 1000 / record_us
