"""What a job says of its life at INFO: each thing once, where anybody looks."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import JobFailedError


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiomailbox")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["event"] for record in caplog.records]


def facts(caplog: pytest.LogCaptureFixture, event: str) -> dict[str, Any]:
    [record] = [one for one in caplog.records if one.__dict__["event"] == event]
    assert record.levelno == logging.INFO
    return record.__dict__


def waiting(directory: Path | None = None) -> tuple[Any, asyncio.Event]:
    """Return the environment of a job that reads 3 numbers, and then waits."""
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(None, directory=directory, after_tasks_finish=False)
    seen = asyncio.Event()

    async def numbers(last: int | None) -> Any:
        for number in range(0 if last is None else last + 1, 3):
            yield number
        seen.set()
        await asyncio.Event().wait()

    stream = env.from_async_iterable(numbers, offset=lambda number: number).uid(
        "numbers"
    )
    stream.key_by(lambda number: number % 2).reduce(max).uid("max").sink_to(print)
    return env, seen


async def test_a_job_says_that_it_starts_and_how_it_has_finished(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = am.StreamExecutionEnvironment()
    numbers = env.from_collection([1, 2, 0, 4])
    numbers.map(lambda number: 1 // number, on_error=am.skip).sink_to(print)
    await env.execute("divisions", job_id="divisions-1")
    assert facts(caplog, "the job starts from the beginning")["job_id"] == "divisions-1"
    end = facts(caplog, "the job has finished")
    assert (end["job"], end["records_in"], end["records_out"]) == ("divisions", 4, 3)
    assert end["skipped"] == 1
    assert "late" not in end
    assert end["duration_s"] >= 0


async def test_a_job_says_where_it_resumes_and_that_it_was_cancelled(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    env, seen = waiting(tmp_path)
    async with env.start("max") as job:
        await seen.wait()
        first = await job.trigger_checkpoint()
        await job.trigger_checkpoint()
        await job.cancel()
    complete = facts(caplog, "the first checkpoint is complete")
    assert complete["checkpoint_id"] == first.checkpoint_id
    assert complete["place"] == first.place
    assert facts(caplog, "the job was cancelled")["records_in"] == 3
    assert "checkpoints were removed" not in lines(caplog)
    caplog.clear()
    env, seen = waiting(tmp_path)
    async with env.start("max", restore_from="latest") as job:
        await seen.wait()
        await job.stop()
    begin = facts(caplog, "the job starts from a checkpoint")
    assert begin["checkpoint_id"] == 2
    assert begin["place"] == str(tmp_path / "max" / "chk-2")
    assert facts(caplog, "the job was stopped")["records_in"] == 0
    removed = facts(caplog, "checkpoints were removed")
    assert removed["place"] == str(tmp_path / "max")
    assert removed["count"] >= 1


async def test_a_job_says_that_it_starts_from_a_savepoint(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    env, seen = waiting(tmp_path / "jobs")
    async with env.start("max") as job:
        await seen.wait()
        savepoint = await job.stop_with_savepoint(tmp_path / "saved")
    stopped = facts(caplog, "the job was stopped")
    assert stopped["savepoint"] == savepoint.checkpoint_id
    assert "the first checkpoint is complete" not in lines(caplog)
    env, seen = waiting(tmp_path / "others")
    async with env.start("max", restore_from=tmp_path / "saved") as job:
        await seen.wait()
        await job.cancel()
    begin = facts(caplog, "the job starts from a savepoint")
    assert begin["place"] == str(tmp_path / "saved")


async def test_checkpoints_of_earlier_runs_that_go_are_said(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    for _ in range(2):
        env, seen = waiting(tmp_path)
        async with env.start("max") as job:
            await seen.wait()
            await job.trigger_checkpoint()
            await job.cancel()
    removed = facts(caplog, "checkpoints of earlier runs were removed")
    assert (removed["count"], removed["place"]) == (1, str(tmp_path / "max"))


async def test_a_job_that_failed_says_so_as_an_error_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection([0]).map(lambda number: 1 // number).sink_to(print)
    with pytest.raises(JobFailedError):
        await env.execute("fails")
    assert lines(caplog) == ["the job starts from the beginning", "the job failed"]
