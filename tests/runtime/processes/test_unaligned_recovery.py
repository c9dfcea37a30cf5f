"""Barriers overtake between processes, too: what is killed goes on with what was in flight."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from tests.runtime.processes.programs import Held

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]

KEYS = 7
COUNT = 4_000
EXPECTED = {key: list(range(key, COUNT, KEYS)) for key in range(KEYS)}


def key_of(value: int) -> int:
    return value % KEYS


class Remembers(am.KeyedProcessFunction):
    """Keeps all values of a key in the order in which they came, and falls behind."""

    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_list(am.ListStateDescriptor("seen", int))

    def process_element(self, value: int, context: Any, out: Any) -> None:
        if value % 20 == 0:
            time.sleep(0.02)
        self.seen.add(value)
        if value >= COUNT - KEYS:
            out.collect((value % KEYS, list(self.seen.get())))


def pids_of(job: Any) -> list[int]:
    return sorted(one.pid for one in job._job._host._workers if not one.has_exited)


def newest(job: Any) -> int:
    return max((one.completed.checkpoint_id for one in job.checkpoints()), default=0)


@pytest.mark.parametrize("timeout", [0, 0.03])
async def test_killed_workers_lose_nothing_that_was_in_flight(
    tmp_path: Path, timeout: float
) -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    env.enable_checkpointing(
        am.seconds(0.05),
        directory=tmp_path / "checkpoints",
        unaligned=True,
        aligned_timeout=am.seconds(timeout),
    )
    env.configure(restart=am.restart.fixed_delay(20, 0.01))
    env.configure(deployment=am.Processes(2))
    results: dict[int, list[int]] = {}
    (
        # The job does not end before its worker is killed, however slow the test is.
        env.from_source(Held(COUNT, tmp_path / "gate", KEYS))
        .set_parallelism(1)
        .key_by(key_of)
        .process(Remembers())
        .sink_to(lambda pair: results.__setitem__(*pair))
    )
    chance = random.Random(f"kill {timeout}")
    async with env.start() as job:
        while not newest(job):
            await asyncio.sleep(0.01)
        await asyncio.sleep(chance.uniform(0, 0.1))
        os.kill(chance.choice(pids_of(job)), signal.SIGKILL)
        while job.restarts == 0:
            await asyncio.sleep(0.01)
        (tmp_path / "gate").touch()
        await job.result()
    assert results == EXPECTED
