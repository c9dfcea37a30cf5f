"""What the environment's settings say holds, unless an argument says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

import aiomailbox as am
from aiomailbox.errors import JobFailedError, JobFinishedError


def environment(place: Path, **settings: object) -> am.StreamExecutionEnvironment:
    config = am.JobConfig(job_id="orders", **settings)  # type: ignore[arg-type]
    env = am.StreamExecutionEnvironment(config=config)
    return env.enable_checkpointing(am.seconds(10), directory=place)


def count(env: am.StreamExecutionEnvironment, uid: str = "sum") -> None:
    keyed = env.from_collection([1, 2]).uid("numbers").key_by(lambda number: "all")
    keyed.reduce(lambda one, other: one + other).uid(uid).sink_to(lambda number: None)


async def test_execute_takes_identity_and_restore_from_the_settings(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path, restore_from=tmp_path / "nowhere")
    count(env)
    with pytest.raises(JobFailedError, match="nowhere"):
        await env.execute("any name")
    count(env)
    await env.execute("any name", restore_from="latest")
    assert (tmp_path / "orders").is_dir()


async def test_execute_takes_from_the_settings_what_a_finished_job_does(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path, if_finished="refuse")
    count(env)
    await env.execute()
    count(env)
    with pytest.raises(JobFailedError) as caught:
        await env.execute()
    assert isinstance(caught.value.__cause__, JobFinishedError)
    count(env)
    assert (await env.execute(if_finished="run")).finished_before is None


async def test_execute_takes_from_the_settings_whether_state_may_be_left(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path)
    inbox: am.Inbox[int] = am.Inbox(10)
    env.enable_checkpointing(
        am.seconds(10), directory=tmp_path, mode=am.CheckpointingMode.AT_LEAST_ONCE
    )
    numbers = env.from_source(inbox).uid("inbox").key_by(lambda number: "all")
    numbers.reduce(lambda one, other: one + other).uid("sum").sink_to(lambda _: None)
    async with env.start() as job:
        await inbox.put(1)
        await job.stop_with_savepoint(tmp_path / "savepoint")
    allowed = environment(
        tmp_path / "other",
        restore_from=tmp_path / "savepoint",
        allow_unmatched_state=True,
    )
    count(allowed, "total")
    await allowed.execute()
    refused = environment(tmp_path / "third", restore_from=tmp_path / "savepoint")
    count(refused, "total")
    with pytest.raises(JobFailedError, match="allow_unmatched_state"):
        await refused.execute()
