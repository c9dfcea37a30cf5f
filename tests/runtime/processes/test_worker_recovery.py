"""A worker that is killed is started again, and the job goes on from its checkpoint."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from tests.runtime.processes.programs import Held

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]

KEYS = 7
COUNT = 3_000


def with_key(value: int) -> tuple[int, int]:
    return value % KEYS, value


def key_of(pair: tuple[int, int]) -> int:
    return pair[0]


def add(one: tuple[int, int], two: tuple[int, int]) -> tuple[int, int]:
    return one[0], one[1] + two[1]


EXPECTED = {key: sum(range(key, COUNT, KEYS)) for key in range(KEYS)}


def pids_of(job: Any) -> set[int]:
    return {one.pid for one in job._job._host._workers if not one.has_exited}


async def test_a_killed_worker_is_replaced_and_nothing_counts_twice(
    tmp_path: Path,
) -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    env.enable_checkpointing(am.seconds(0.05), directory=tmp_path / "checkpoints")
    env.configure(restart=am.restart.fixed_delay(20, 0.01))
    env.configure(deployment=am.Processes(2))
    results: list[tuple[int, int]] = []
    (
        env.from_source(Held(COUNT, tmp_path / "gate", COUNT // 4))
        .map(with_key)
        .key_by(key_of)
        .reduce(add)
        .sink_to(results.append)
    )
    async with env.start() as job:
        while not job.checkpoints():
            await asyncio.sleep(0.01)
        victim = min(pids_of(job))
        os.kill(victim, signal.SIGKILL)
        while job.restarts == 0:
            await asyncio.sleep(0.01)
        # Some numbers are read only by those who follow.
        (tmp_path / "gate").touch()
        await job.result()
    largest: dict[int, int] = {}
    for key, total in results:
        largest[key] = max(total, largest.get(key, 0))
    assert largest == EXPECTED
