"""A wrong program ends, although its job takes checkpoints and nobody set a strategy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import JobFailedError

Build = Callable[[Any], Any]


class Keyless(am.ProcessFunction[int, int]):
    """Asks for keyed state where there is no key."""

    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_value(am.ValueStateDescriptor("seen", int))

    def process_element(self, value: int, context: Any, out: Any) -> None:
        self.seen.update(value)


def environment() -> Any:
    return am.StreamExecutionEnvironment().enable_checkpointing(am.seconds(0.05))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (
            lambda numbers: numbers.map_async(lambda value: value),
            "returned int, which cannot be awaited",
        ),
        (lambda numbers: numbers.process(Keyless()), "key_by"),
        (
            lambda numbers: numbers.key_by(lambda value: value or "zero").reduce(max),
            "the first key of this stream had the type",
        ),
    ],
    ids=["sync function in map_async", "state without a key", "keys of two types"],
)
async def test_a_callers_fault_ends_the_job_at_once(build: Build, says: str) -> None:
    env = environment()
    build(env.from_collection([1, 0])).sink_to(lambda value: None)
    with pytest.raises(JobFailedError, match=says):
        async with env.start("wrong") as job:
            await job.result()
    assert job.restarts == 0


async def test_a_mistake_ends_the_job_at_the_third_time() -> None:
    await fail_three_times(am.StreamExecutionEnvironment())


@pytest.mark.real_time
async def test_a_mistake_in_a_worker_ends_the_job_at_the_third_time() -> None:
    env = am.StreamExecutionEnvironment()
    env.configure(deployment=am.Processes(2))
    await fail_three_times(env)


async def fail_three_times(env: Any) -> None:
    env.enable_checkpointing(None, mode=am.CheckpointingMode.AT_LEAST_ONCE)
    env.from_collection([1, 0]).map(lambda value: 1 // value).sink_to(
        lambda value: None
    )
    with pytest.raises(JobFailedError, match="ended 3 attempts") as caught:
        async with env.start("wrong") as job:
            await job.result()
    assert job.restarts == 2
    assert "ZeroDivisionError at " in str(caught.value)
    assert "JobConfig(restart=...)" in str(caught.value)


async def test_an_outage_does_not_end_the_job() -> None:
    class ServiceError(Exception):
        """Of a client's own."""

    calls = count()

    async def ask(value: int) -> int:
        if next(calls) < 20:
            raise ServiceError("503")
        return value

    env = environment()
    results = await env.from_collection([1]).map_async(ask).collect()
    assert results == [1]


async def test_a_strategy_of_the_users_is_not_overruled() -> None:
    attempts: Iterator[int] = count()

    def stumble(value: int) -> int:
        if next(attempts) < 5:
            raise TypeError("a mistake, or is it?")
        return value

    env = environment().configure(restart=am.restart.exponential_delay())
    assert await env.from_collection([1]).map(stumble).collect() == [1]


async def test_progress_in_between_makes_a_mistake_a_failure_like_others() -> None:
    # Each attempt completes a checkpoint, then fails at the same line.
    failures = iter(range(4))
    env = am.StreamExecutionEnvironment().enable_checkpointing(
        None, mode=am.CheckpointingMode.AT_LEAST_ONCE
    )
    inbox: am.Inbox[int] = am.Inbox(10)

    def stumble(value: int) -> int:
        if next(failures, None) is not None:
            raise KeyError(value)
        return value

    env.from_source(inbox).map(stumble).sink_to(lambda value: None)
    async with env.start("moves on") as job:
        for failure in range(4):
            await job.trigger_checkpoint()
            await inbox.put(failure)
            # Of virtual time: longer than any delay.
            await asyncio.sleep(600)
            assert job.restarts == failure + 1
        await job.stop(drain=True)
        await job.result()
        assert job.restarts == 4
