"""Figures of checkpoints in a job's metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import aiomailbox as am


async def ticks() -> AsyncIterator[int]:
    for number in range(10**6):
        yield number
        await asyncio.sleep(1)


async def test_metrics_count_checkpoints_and_tell_what_the_last_one_took(
    tmp_path: Path,
) -> None:
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(
        None, directory=tmp_path, mode=am.CheckpointingMode.AT_LEAST_ONCE
    )
    env.from_async_iterable(ticks).sink_to(lambda number: None)
    async with env.start() as job:
        await asyncio.sleep(1)
        before = job.metrics().checkpoints
        done = [await job.trigger_checkpoint(), await job.trigger_checkpoint()][-1]
        after = job.metrics().checkpoints
    assert set(before.values()) == {0, None}
    assert after["total_number_of_checkpoints"] == 2
    assert after["number_of_completed_checkpoints"] == 2
    assert after["number_of_in_progress_checkpoints"] == 0
    assert after["number_of_failed_checkpoints"] == 0
    assert after["last_completed_checkpoint_id"] == done.checkpoint_id
    assert after["last_checkpoint_size_bytes"] == done.size_bytes
    assert after["last_checkpoint_duration_ms"] == job.checkpoints()[-1].duration_ms


async def test_a_checkpoint_that_does_not_complete_counts_as_failed(
    tmp_path: Path,
) -> None:
    stuck = asyncio.Event()

    async def wait(number: int) -> None:
        await stuck.wait()

    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(
        None,
        directory=tmp_path,
        mode=am.CheckpointingMode.AT_LEAST_ONCE,
        timeout=am.seconds(5),
        tolerable_failures=9,
    )
    env.from_async_iterable(ticks).rebalance().sink_to(wait)
    async with env.start() as job:
        await asyncio.sleep(1)
        asked = asyncio.ensure_future(job.trigger_checkpoint())
        await asyncio.sleep(2)
        assert job.metrics().checkpoints["number_of_in_progress_checkpoints"] == 1
        with pytest.raises(am.CheckpointFailedError):
            await asked
        await asyncio.sleep(1)
        after = job.metrics().checkpoints
        stuck.set()
    assert after["number_of_failed_checkpoints"] == 1
    assert after["number_of_in_progress_checkpoints"] == 0
    assert after["last_completed_checkpoint_id"] is None


async def test_a_job_without_checkpoints_has_no_figures_of_them() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_async_iterable(ticks).sink_to(lambda number: None)
    async with env.start() as job:
        assert job.metrics().checkpoints == {}
