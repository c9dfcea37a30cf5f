"""A part of a job that shares no data with the rest fails, and begins again alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import JobFailedError

COUNT = 600


class Trials:
    """Where functions were opened, and the values that they still stumble over."""

    def __init__(self, *values: int) -> None:
        self.opened: Counter[int] = Counter()
        self.waiting = list(values)

    def __deepcopy__(self, memo: Any) -> Trials:
        return self


class Stumbles(am.ProcessFunction[int, int]):
    """Counts where it is opened; raises at some values, each time once."""

    def __init__(self, trials: Trials) -> None:
        self.trials = trials

    def open(self, context: am.RuntimeContext) -> None:
        self.trials.opened[context.subtask_index] += 1

    async def process_element(self, value: int, context: Any, out: Any) -> None:
        if value % 20 == 0:
            # The second half takes longer.
            await asyncio.sleep(0.01 if value < COUNT // 2 else 0.02)
        if value in self.trials.waiting:
            self.trials.waiting.remove(value)
            raise RuntimeError(f"stumbled over {value}")
        out.collect(value)


def environment(interval: float | None = 0.02, **settings: Any) -> Any:
    env = am.StreamExecutionEnvironment(parallelism=2)
    if interval is not None:
        env.enable_checkpointing(interval, **settings)
    return env.set_restart_strategy(am.restart.fixed_delay(3, 0.01))


def halves(env: Any, trials: Trials, sink: Any, start: int = 0) -> None:
    """Two subtasks that share nothing, each with half of the numbers."""
    env.from_collection(list(range(start, COUNT))).process(Stumbles(trials)).sink_to(
        sink
    )


async def test_a_region_begins_again_and_the_other_is_never_interrupted() -> None:
    results: list[int] = []
    env = environment()
    trials = Trials(450)
    halves(env, trials, results.append)
    async with env.start() as job:
        await job.result()
    assert trials.opened == {0: 1, 1: 2}
    seen = Counter(results)
    assert set(seen) == set(range(COUNT))
    assert all(seen[value] == 1 for value in range(COUNT // 2))
    assert job.restarts == 1
    metrics = job.metrics()
    assert [task["num_task_restarts"] for task in metrics.tasks.values()] == [0, 1]


async def test_a_region_goes_on_from_the_last_checkpoint() -> None:
    results: list[int] = []
    env = environment(None)
    env.enable_checkpointing(None)
    trials = Trials(450)
    halves(env, trials, results.append)
    async with env.start() as job:
        while not any(value >= 400 for value in results):
            await asyncio.sleep(0.001)
        await job.trigger_checkpoint()
        await job.result()
    assert trials.opened == {0: 1, 1: 2}
    again = [value for value, times in Counter(results).items() if times > 1]
    assert again
    assert min(again) >= 400


async def test_without_checkpoints_a_region_begins_at_its_beginning() -> None:
    results: list[int] = []
    env = environment(None)
    trials = Trials(450)
    halves(env, trials, results.append)
    async with env.start() as job:
        await job.result()
    assert trials.opened == {0: 1, 1: 2}
    seen = Counter(results)
    assert all(seen[value] == 1 for value in range(COUNT // 2))
    assert all(seen[value] == 2 for value in range(300, 440))
    assert all(seen[value] == 1 for value in range(460, COUNT))


async def test_a_region_that_has_finished_stays_finished() -> None:
    results: list[int] = []
    env = environment(None)

    trials = Trials(590)
    halves(env, trials, results.append)
    async with env.start() as job:
        await job.result()
    assert trials.opened == {0: 1, 1: 2}


async def test_regions_fail_one_after_the_other_and_each_counts() -> None:
    results: list[int] = []
    env = environment()
    trials = Trials(100, 450, 200)
    halves(env, trials, results.append)
    async with env.start() as job:
        await job.result()
    assert sum(trials.opened.values()) == 2 + job.restarts
    assert set(results) == set(range(COUNT))


async def test_the_strategy_counts_failures_of_regions() -> None:
    env = environment()
    env.set_restart_strategy(am.restart.fixed_delay(1, 0.01))
    trials = Trials(100, 450, 200)
    halves(env, trials, [].append)
    with pytest.raises(JobFailedError, match="stumbled over"):
        await env.execute()


async def test_a_key_by_makes_all_of_it_one_region() -> None:
    results: list[int] = []
    env = environment()
    trials = Trials(450)
    (
        env.from_collection(list(range(COUNT)))
        .process(Stumbles(trials))
        .key_by(lambda value: value % 7)
        .map(lambda value: value)
        .sink_to(results.append)
    )
    async with env.start() as job:
        await job.result()
    assert trials.opened == {0: 2, 1: 2}
    assert set(results) == set(range(COUNT))
