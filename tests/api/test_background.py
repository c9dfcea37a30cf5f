"""Jobs that belong to no block: they run while the program does something else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

import aiomailbox as am
from aiomailbox.api.job import _running, in_background


async def ticks() -> AsyncIterator[int]:
    for number in range(1_000_000):
        yield number
        await asyncio.sleep(1)


def counting(seen: list[int]) -> am.StreamExecutionEnvironment:
    env = am.StreamExecutionEnvironment()
    env.from_async_iterable(ticks).sink_to(seen.append)
    return env


async def test_it_returns_while_the_job_runs_and_is_stopped_by_hand() -> None:
    seen: list[int] = []
    job = await counting(seen).execute_async("ticks")
    assert (job.name, job.state) == ("ticks", am.JobState.CREATED)
    await asyncio.sleep(9.5)
    assert seen == list(range(10))
    assert job.state is am.JobState.RUNNING
    result = await job.stop()
    assert result.name == "ticks"
    await asyncio.sleep(1)
    assert not _running


async def test_a_job_that_ends_leaves_nothing_behind() -> None:
    seen: list[int] = []
    env = am.StreamExecutionEnvironment()
    env.from_collection([1, 2]).sink_to(seen.append)
    job = await env.execute_async()
    await job.result()
    await asyncio.sleep(0)
    assert seen == [1, 2]
    assert len(asyncio.all_tasks()) == 1
    with pytest.raises(am.UsageError, match="there is nothing to run"):
        await env.execute_async()


async def test_a_failure_is_logged_at_once_and_raised_by_its_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection([0]).map(lambda one: 1 / one).sink_to(print)
    with caplog.at_level(logging.ERROR, "aiomailbox"):
        job = await env.execute_async("divide")
        await asyncio.sleep(1)
    [record] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "the job failed" in record.getMessage()
    with pytest.raises(am.JobFailedError, match="division"):
        await job.result()


async def test_cancelling_the_job_is_no_error_of_its_task() -> None:
    job = await counting([]).execute_async()
    await asyncio.sleep(2)
    await job.cancel()
    assert job.state is am.JobState.CANCELED
    await asyncio.sleep(1)
    assert len(asyncio.all_tasks()) == 1


async def test_whoever_is_cancelled_while_it_starts_leaves_no_job() -> None:
    before: list[int] = []
    env = counting(before).enable_checkpointing(
        None, mode=am.CheckpointingMode.AT_LEAST_ONCE
    )
    first = await env.execute_async("first")
    await asyncio.sleep(3)
    after: list[int] = []
    starting = asyncio.get_running_loop().create_task(
        counting(after).execute_async("second", replace=first)
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await first.cancel()
    await asyncio.sleep(5)
    assert after == []
    assert not _running


@pytest.mark.parametrize(
    "error",
    [
        am.JobFailedError("before", ValueError("broken")),
        am.JobCancelledError("the job before was cancelled"),
        ValueError("broken"),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whoever_starts_a_job_is_told_why_it_could_not(
    error: BaseException,
) -> None:
    @asynccontextmanager
    async def block() -> AsyncGenerator[am.JobClient]:
        await asyncio.sleep(1)
        raise error
        yield

    with pytest.raises(type(error)):
        await asyncio.wait_for(in_background(block()), 60)
    await asyncio.sleep(0)
    assert not _running


def test_it_ends_with_the_event_loop() -> None:
    ended: list[str] = []

    async def forever() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            ended.append("source")

    async def main() -> am.JobClient:
        env = am.StreamExecutionEnvironment()
        seen = asyncio.Event()
        env.from_async_iterable(forever).sink_to(lambda one: seen.set())
        job = await env.execute_async()
        await seen.wait()
        return job

    job = asyncio.run(main())
    assert job.state is am.JobState.CANCELED
    assert ended == ["source"]
    assert not _running
