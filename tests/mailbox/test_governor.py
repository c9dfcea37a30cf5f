"""The mailbox loops of one event loop share its time."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from aiomailbox.mailbox.budget import SliceBudget, governor_of
from aiomailbox.mailbox.processor import MailboxProcessor
from aiomailbox.testing import ManualClock, VirtualTimeLoop


def ignore(since_s: float, until_s: float) -> None:
    """Whose the time was does not matter here."""


def _working(clock: Any, cost_s: float, log: list[str], name: str) -> Any:
    """Return a processor whose every action takes a time of the clock."""

    def action(_: Any) -> None:
        clock.advance(cost_s)
        log.append(name)

    return MailboxProcessor(action, name=name, clock=clock)


def _turns(log: list[str]) -> list[list[str]]:
    """Return what was done in each turn of the event loop."""
    turns: list[list[str]] = [[]]
    for entry in log:
        if entry == "turn":
            turns.append([])
        else:
            turns[-1].append(entry)
    return turns


async def _run_beside_ticks(processors: list[Any], log: list[str], ticks: int) -> None:
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(one.run_mailbox_loop()) for one in processors]
    for _ in range(ticks):
        log.append("turn")
        await asyncio.sleep(0)
    log.append("turn")
    for processor in processors:
        processor.all_actions_completed()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("count", [1, 2, 10, 50])
async def test_all_loops_together_get_one_slice_per_turn_of_the_event_loop(
    count: int,
) -> None:
    clock, log = ManualClock(), list[str]()
    made = [_working(clock, 0.000_25, log, str(index)) for index in range(count)]
    await _run_beside_ticks(made, log, 400)
    # Four actions of 250 us each are a slice, or five; one may end and the next begin.
    assert max(len(turn) for turn in _turns(log)[:-1]) <= 10


@pytest.mark.parametrize("count", [1, 2, 10, 50])
async def test_the_event_loop_has_two_turns_of_its_own_between_slices(
    count: int,
) -> None:
    """A timer that became due in a slice has woken its task before the next one."""
    clock, log = ManualClock(), list[str]()
    made = [_working(clock, 0.000_25, log, str(index)) for index in range(count)]
    await _run_beside_ticks(made, log, 400)
    at_work = [index for index, turn in enumerate(_turns(log)[:-1]) if turn]
    gaps = [later - one for one, later in itertools.pairwise(at_work)]
    assert min(gaps) == 3
    assert len(at_work) > 80


@pytest.mark.parametrize("cost_s", [0.000_05, 0.000_25, 0.003])
async def test_loops_that_always_have_work_get_equal_shares(cost_s: float) -> None:
    clock, log = ManualClock(), list[str]()
    made = [_working(clock, cost_s, log, str(index)) for index in range(7)]
    await _run_beside_ticks(made, log, 1_000)
    shares = [log.count(str(index)) for index in range(7)]
    assert max(shares) <= 1.1 * min(shares) + 20


async def test_a_loop_that_is_cancelled_in_the_line_holds_nobody_up() -> None:
    clock, log = ManualClock(), list[str]()
    made = [_working(clock, 0.002, log, str(index)) for index in range(3)]
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(one.run_mailbox_loop()) for one in made]
    for _ in range(10):
        await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[1].cancel()
    await asyncio.wait(tasks[:2])
    log.clear()
    for _ in range(30):
        await asyncio.sleep(0)
    assert len(log) >= 10
    made[2].all_actions_completed()
    await tasks[2]


async def test_one_who_wakes_where_the_slice_is_used_up_waits_for_the_next_turn() -> (
    None
):
    clock = ManualClock()
    first, second = SliceBudget(clock, 1.0, ignore), SliceBudget(clock, 1.0, ignore)
    woken = asyncio.get_running_loop().create_task(second.begin())
    first.restart()
    clock.advance(0.0011)
    assert first.is_over()
    await asyncio.sleep(0)
    assert not woken.done()
    await woken
    assert not second.is_over()


async def test_an_event_loop_has_one_governor() -> None:
    loop = asyncio.get_running_loop()
    assert governor_of(loop) is governor_of(loop)


def test_a_governor_does_not_keep_its_event_loop() -> None:
    async def work(stop: Callable[[Any], None]) -> None:
        await MailboxProcessor(stop).run_mailbox_loop()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = weakref.ref(runner.get_loop())
        runner.run(work(lambda controller: controller.all_actions_completed()))
    gc.collect()
    assert loop() is None
