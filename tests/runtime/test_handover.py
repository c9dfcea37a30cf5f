"""Laws of the place where results are left for whoever pulls them."""

from __future__ import annotations

import asyncio

import pytest

from aiomailbox.records.run import ListRun
from aiomailbox.runtime.services import CountingHandover, PullHandover


def run(number: int) -> ListRun:
    return ListRun([number])


async def test_runs_come_out_in_order() -> None:
    handover = PullHandover(runs_max=3)
    assert [handover.offer(run(n)) for n in range(3)] == [True, True, False]
    handover.end()
    taken = []
    while (found := await handover.take()) is not None:
        taken += found.values
    assert taken == [0, 1, 2]
    assert await handover.take() is None
    assert handover.try_take() is None


@pytest.mark.parametrize("producers", [1, 3])
async def test_never_more_runs_than_allowed_and_one_a_producer(producers: int) -> None:
    handover = PullHandover(runs_max=4)
    held = most = 0

    async def produce(name: int) -> None:
        nonlocal held, most
        for number in range(50):
            held += 1
            most = max(most, held)
            if not handover.offer(run(number)):
                await handover.writable()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(produce(n)) for n in range(producers)]
        taken = 0
        while taken < 50 * producers:
            await asyncio.sleep(1)
            assert await handover.take() is not None
            held -= 1
            taken += 1
        assert all(task.done() for task in tasks) or await asyncio.sleep(1) is None
    assert 4 <= most <= 4 + producers


async def test_a_consumer_that_waits_is_woken_by_a_run_and_by_the_end() -> None:
    handover = PullHandover()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(handover.take())
        await asyncio.sleep(1)
        handover.offer(run(7))
        assert (await first).values == [7]  # type: ignore[union-attr]
        second = group.create_task(handover.take())
        await asyncio.sleep(1)
        handover.end()
        assert await second is None


async def test_what_nobody_pulls_any_more_is_dropped_and_blocks_nobody() -> None:
    handover = PullHandover(runs_max=1)
    assert handover.offer(run(1)) is False
    waiting = handover.writable()
    handover.abandon()
    await waiting
    assert all(handover.offer(run(n)) for n in range(100))
    assert handover.try_take() is None


async def test_a_cancelled_wait_harms_nobody() -> None:
    handover = PullHandover(runs_max=1)
    handover.offer(run(1))
    first, second = handover.writable(), handover.writable()
    first.cancel()
    assert handover.try_take() is not None
    await second


async def test_counting_takes_any_number_of_runs_and_keeps_none() -> None:
    handover = CountingHandover()
    assert all(handover.offer(run(n)) for n in range(100))
    assert handover.room.available
    assert handover.try_take() is None
    handover.end()
    assert await handover.take() is None
    assert handover.records == 100
