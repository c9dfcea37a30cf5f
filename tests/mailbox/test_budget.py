"""The slice: when a loop lets the event loop run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomailbox.mailbox.budget import LoopClock, SliceBudget


async def test_a_slice_is_over_by_time(clock: Any) -> None:
    budget = SliceBudget(clock, slice_ms=1.0)
    budget.restart()
    assert not budget.is_over()
    clock.seconds += 0.0011
    assert budget.is_over()
    await budget.yield_to_loop()
    assert not budget.is_over()


async def test_a_slice_is_over_by_turns_where_time_stands_still(clock: Any) -> None:
    budget = SliceBudget(clock, slice_ms=1.0)
    budget.restart()
    turns = 1
    while not budget.is_over():
        turns += 1
    assert turns == 1024


@pytest.mark.parametrize(
    ("turn_ms", "stride"), [(0, 16), (0.001, 16), (0.01, 6), (0.1, 1), (5, 1)]
)
async def test_the_stride_is_short_when_turns_are_long(
    clock: Any, turn_ms: float, stride: int
) -> None:
    budget = SliceBudget(clock, slice_ms=1.0)
    assert budget.stride == 1
    budget.restart()
    strides = []
    for _ in range(6):
        for _ in range(20):
            clock.seconds += turn_ms / 1000
            if budget.is_over():
                break
        await budget.yield_to_loop()
        strides.append(budget.stride)
    assert strides[-1] == stride
    # One slice of short turns says little about the next.
    assert strides[0] <= 2


async def test_letting_go_runs_what_is_ready_and_timers_that_are_due(
    clock: Any,
) -> None:
    log: list[str] = []
    loop = asyncio.get_running_loop()
    loop.call_soon(log.append, "ready")
    loop.call_later(0, log.append, "due")
    await SliceBudget(clock, slice_ms=1.0).yield_to_loop()
    assert log == ["ready", "due"]


async def test_the_clock_is_that_of_the_loop_it_is_first_read_on() -> None:
    clock = LoopClock()
    loop = asyncio.get_running_loop()
    assert clock.monotonic() == loop.time()
    assert clock.now_ms() > 0
