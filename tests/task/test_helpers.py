"""Laws of the coroutines that operators start."""

from __future__ import annotations

import asyncio

import pytest

from aiomailbox.task.chain import HelperTasks


async def forever() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise ValueError("helper")


async def test_a_failure_is_told_once() -> None:
    told: list[BaseException] = []
    helpers = HelperTasks(told.append)
    task = helpers.spawn(fail(), name="x")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert [repr(error) for error in told] == ["ValueError('helper')"]
    await helpers.close()
    assert len(told) == 1


async def test_closing_leaves_nobody_behind_and_tells_of_no_failure() -> None:
    told: list[BaseException] = []
    helpers = HelperTasks(told.append)

    async def stubborn() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(1)
            raise ValueError("on the way out")

    tasks = [helpers.spawn(stubborn(), name="a"), helpers.spawn(forever(), name="b")]
    await asyncio.sleep(0)
    await helpers.close()
    assert all(task.done() for task in tasks)
    assert told == []


async def test_one_that_somebody_cancelled_is_no_failure() -> None:
    told: list[BaseException] = []
    helpers = HelperTasks(told.append)
    task = helpers.spawn(forever(), name="x")
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await helpers.close()
    assert told == []


async def test_one_that_ended_is_forgotten() -> None:
    helpers = HelperTasks(lambda _: None)
    for _ in range(100):
        await helpers.spawn(asyncio.sleep(0), name="x")
    await asyncio.sleep(0)
    assert len(helpers._tasks) == 0
