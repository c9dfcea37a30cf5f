"""A job that takes no checkpoints may go on from a savepoint; there is no latest checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import aiomailbox as am


async def numbers(after: int | None) -> AsyncIterator[int]:
    for number in range(0 if after is None else after + 1, 200):
        yield number
        await asyncio.sleep(0.01)


def job(*, takes_checkpoints: bool) -> tuple[am.StreamExecutionEnvironment, list[int]]:
    env = am.StreamExecutionEnvironment()
    if takes_checkpoints:
        env.enable_checkpointing(None)
    seen: list[int] = []
    stream = env.from_async_iterable(numbers, offset=lambda number: number)
    stream.uid("numbers").sink_to(seen.append).uid("seen")
    return env, seen


async def test_a_path_is_gone_on_from(tmp_path: Path) -> None:
    env, before = job(takes_checkpoints=True)
    async with env.start("numbers") as running:
        await asyncio.sleep(1)
        await running.stop_with_savepoint(tmp_path / "saved")
    env, after = job(takes_checkpoints=False)
    await env.execute("numbers", restore_from=tmp_path / "saved")
    assert 0 < len(before) < 200
    assert before + after == list(range(200))


async def test_there_is_no_latest_one() -> None:
    env, seen = job(takes_checkpoints=False)
    with pytest.raises(am.JobFailedError, match="no latest checkpoint") as refused:
        await env.execute("numbers", restore_from="latest")
    assert isinstance(refused.value.__cause__, am.InvalidArgumentError)
    assert "enable_checkpointing" in str(refused.value)
    assert seen == []


async def test_a_path_where_there_is_none_is_named(tmp_path: Path) -> None:
    env, seen = job(takes_checkpoints=False)
    with pytest.raises(am.JobFailedError, match="no _metadata") as refused:
        await env.execute("numbers", restore_from=tmp_path / "nowhere")
    assert isinstance(refused.value.__cause__, am.NoCheckpointError)
    assert str(tmp_path / "nowhere") in str(refused.value)
    assert seen == []
