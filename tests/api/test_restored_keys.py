"""Keys of another type than those of the restored state are refused, with both types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am

BACKENDS: list[Any] = [am.HeapStateBackend, am.RocksDBStateBackend]


@pytest.mark.real_time
@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_restored_key_of_another_type_names_both_and_the_state(
    backend: Callable[[], Any], tmp_path: Path
) -> None:
    came = asyncio.Event()

    async def numbers() -> AsyncIterator[int]:
        yield 1
        await came.wait()
        await asyncio.Event().wait()

    def build(key: Callable[[int], Any]) -> am.StreamExecutionEnvironment:
        env = am.StreamExecutionEnvironment().configure(state_backend=backend())
        env.enable_checkpointing(None, mode=am.CheckpointingMode.AT_LEAST_ONCE)
        keyed = env.from_async_iterable(numbers).uid("in").key_by(key)
        counts = keyed.aggregate(am.count()).name("count").uid("count")
        counts.sink_to(lambda _: came.set()).uid("out")
        return env

    async with build(str).start("before") as job:
        await came.wait()
        savepoint = await job.stop_with_savepoint(tmp_path / "savepoint")
    with pytest.raises(am.JobFailedError) as caught:
        async with build(int).start("after", restore_from=savepoint.place) as job:
            await job.result()
    cause = str(caught.value.__cause__)
    assert "operator 'count' (uid 'count')" in cause
    assert "has the type int" in cause
    assert "the keys of the state that was restored have the type str" in cause
    assert "under keys of another one, the state" in cause
    assert "first key" not in cause
