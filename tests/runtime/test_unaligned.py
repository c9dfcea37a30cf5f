"""Checkpoints whose barriers overtake data: it is part of them, and of what is restored."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.checkpoint import CheckpointFiles
from aiomailbox.exchange import decode_in_flight
from aiomailbox.runtime.peers.codecs import element_codec

KEYS = 7
COUNT = 2_000
EXPECTED = {key: list(range(key, COUNT, KEYS)) for key in range(KEYS)}


class FailsAt:
    """Raises at some values, each time once."""

    def __init__(self, *values: int) -> None:
        self.waiting = list(values)

    def __call__(self, value: int) -> int:
        if value in self.waiting:
            self.waiting.remove(value)
            raise RuntimeError(f"stumbled over {value}")
        return value


class Remembers(am.KeyedProcessFunction):
    """Keeps all values of a key in the order in which they came; slow at times."""

    def __init__(
        self, fails: FailsAt, results: dict[int, list[int]], pause: float = 0.1
    ) -> None:
        self.fails, self.results, self.pause = fails, results, pause

    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_list(am.ListStateDescriptor("seen", int))

    async def process_element(self, value: int, context: Any, out: Any) -> None:
        if value % 50 == 0:
            await asyncio.sleep(self.pause)
        self.fails(value)
        self.seen.add(value)
        self.results[value % KEYS] = list(self.seen.get())


def environment(interval: float | None = 0.05, **settings: Any) -> Any:
    env = am.StreamExecutionEnvironment(parallelism=settings.pop("parallelism", 2))
    settings.setdefault("unaligned", True)
    env.enable_checkpointing(interval, **settings)
    return env.set_restart_strategy(am.restart.fixed_delay(20, 0.01))


def remembered(
    env: Any, fails: FailsAt, results: dict[int, list[int]], **options: Any
) -> None:
    (
        env.from_collection(list(range(COUNT)))
        .set_parallelism(1)
        .key_by(lambda value: value % KEYS)
        .process(Remembers(fails, results, **options))
        .uid("remembers")
        .sink_to(lambda value: None)
    )


@pytest.mark.parametrize("timeout", [0, 0.15])
async def test_every_record_counts_once_in_its_order_however_often_the_job_fails(
    timeout: float,
) -> None:
    results: dict[int, list[int]] = {}
    env = environment(aligned_timeout=timeout)
    chance = random.Random(f"{timeout}")
    fails = FailsAt(*chance.sample(range(100, COUNT), 8))
    remembered(env, fails, results, pause=0.5)
    async with env.start() as job:
        await job.result()
        assert job.restarts == 8
        assert len(job.checkpoints()) > 3
    assert results == EXPECTED


def kept_in_flight(place: str) -> dict[str, list[Any]]:
    """Return the records in flight of a checkpoint, by channel and in their order."""
    codec = element_codec([], has_arrow=False)
    channels = CheckpointFiles.at(place).restored([]).snapshot.channels
    found: dict[str, list[Any]] = defaultdict(list)
    for end in ("received: ", "sent: "):
        for name, data in channels.items():
            if name.startswith(end):
                for element in decode_in_flight(codec, data):
                    found[name.removeprefix(end)] += getattr(element, "values", [])
    return found


async def test_what_a_barrier_overtakes_is_in_the_checkpoint_and_comes_first_again(
    tmp_path: Path,
) -> None:
    results: dict[int, list[int]] = {}

    def program() -> Any:
        env = environment(
            None, directory=tmp_path, retention=am.Retention.ON_CANCELLATION
        )
        remembered(env, FailsAt(), results, pause=1.0)
        return env

    async with program().start("slow") as job:
        while not results:
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        before = asyncio.get_running_loop().time()
        completed = await job.trigger_checkpoint()
        assert asyncio.get_running_loop().time() - before < 1
        await job.cancel()
    in_flight = kept_in_flight(completed.place)
    assert len(in_flight) == 2
    for values in in_flight.values():
        assert len(values) > 100
        for key in {value % KEYS for value in values}:
            of_key = [value for value in values if value % KEYS == key]
            start = EXPECTED[key].index(of_key[0])
            assert of_key == EXPECTED[key][start : start + len(of_key)]
    results.clear()
    async with program().start("slow", restore_from="latest") as job:
        await job.result()
    assert results == EXPECTED
