"""The slice: when a loop lets the event loop run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomailbox.mailbox.budget import LoopClock, SliceBudget


def ignore(since_s: float, until_s: float) -> None:
    """Whose the time was does not matter here."""


async def test_a_slice_is_over_by_time(clock: Any) -> None:
    budget = SliceBudget(clock, 1.0, ignore)
    budget.restart()
    assert not budget.is_over()
    clock.seconds += 0.0011
    assert budget.is_over()
    await budget.yield_to_loop()
    assert not budget.is_over()


async def test_a_slice_is_over_by_turns_where_time_stands_still(clock: Any) -> None:
    budget = SliceBudget(clock, 1.0, ignore)
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
    budget = SliceBudget(clock, 1.0, ignore)
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
    await SliceBudget(clock, 1.0, ignore).yield_to_loop()
    assert log == ["ready", "due"]


async def test_the_clock_is_that_of_the_loop_it_is_first_read_on() -> None:
    clock = LoopClock()
    loop = asyncio.get_running_loop()
    assert clock.monotonic() == loop.time()
    assert clock.now_ms() > 0


async def test_time_is_booked_to_who_worked_and_not_to_who_waited(clock: Any) -> None:
    booked: dict[str, list[tuple[float, float]]] = {"a": [], "b": []}
    a = SliceBudget(clock, 1.0, lambda *period: booked["a"].append(period))
    b = SliceBudget(clock, 1.0, lambda *period: booked["b"].append(period))
    began = clock.seconds
    a.restart()
    clock.seconds += 0.0005
    assert not a.is_over()
    assert a.is_running
    # Another one works: what was until then is the first one's.
    b.restart()
    clock.seconds += 0.0003
    b.pause()
    clock.seconds += 7
    b.pause()
    assert booked["a"] == [(began, pytest.approx(began + 0.0005))]
    assert booked["b"] == [
        (pytest.approx(began + 0.0005), pytest.approx(began + 0.0008))
    ]
    assert not a.is_running
    assert not b.is_running


async def test_who_awaits_in_the_middle_of_work_is_booked_until_the_loop_turns(
    clock: Any,
) -> None:
    booked: list[tuple[float, float]] = []
    budget = SliceBudget(clock, 1.0, lambda *period: booked.append(period))
    began = clock.seconds
    budget.restart()
    clock.seconds += 0.0002
    await asyncio.sleep(0)
    assert booked == [(began, pytest.approx(began + 0.0002))]
    # What it awaited takes nothing of the loop.
    clock.seconds += 5
    assert not budget.is_over(0)
    again = clock.seconds
    clock.seconds += 0.0001
    await budget.yield_to_loop()
    assert booked[1:] == [(again, pytest.approx(again + 0.0001))]
