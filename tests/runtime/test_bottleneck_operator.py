"""Six pipelines whose bottleneck is known: it is named, with the reason."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.operators.core.operator import Blocked
from aiomailbox.runtime.loop_watch import TaskShares

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]


async def slowly() -> AsyncIterator[int]:
    for number in range(100_000):
        yield number
        await asyncio.sleep(0.05)


async def call(number: int) -> int:
    await asyncio.sleep(0.05)
    return number


async def quick(number: int) -> int:
    await asyncio.sleep(0)
    return number


def block(number: int) -> int:
    time.sleep(0.002)
    return number


def drop(number: int) -> None:
    """Take it."""


async def write_slowly(number: int) -> None:
    await asyncio.sleep(0.02)


def slow_source(env: am.StreamExecutionEnvironment) -> None:
    stream = env.from_async_iterable(slowly, name="readings")
    stream.map(abs).name("clean").rebalance().map(abs).name("more").sink_to(drop)


def numbers(env: am.StreamExecutionEnvironment) -> am.DataStream[int]:
    return env.from_collection(range(10_000_000), name="numbers")


def slow_call(env: am.StreamExecutionEnvironment) -> None:
    stream = numbers(env).map(abs).name("clean").map_async(call, concurrency=4)
    stream.name("enrich").rebalance().map(abs).name("after").sink_to(drop)


def tight_limit(env: am.StreamExecutionEnvironment) -> None:
    limit = am.RateLimit(5, per=1.0, name="openai")
    stream = numbers(env).map_async(quick, concurrency=8, limit=limit).name("enrich")
    stream.map(abs).name("after").sink_to(drop)


def blocking(env: am.StreamExecutionEnvironment) -> None:
    stream = numbers(env).map(abs).name("clean").map(block).name("parse")
    stream.rebalance().map(abs).name("after").sink_to(drop)


class Slow(am.KeyedProcessFunction[str, int, int]):
    """Awaits for each record of its key."""

    async def process_element(self, value: int, context: Any, out: Any) -> None:
        await asyncio.sleep(0.005)
        out.collect(value)


def skewed(env: am.StreamExecutionEnvironment) -> None:
    keyed = numbers(env).key_by(lambda number: "all" if number % 50 else str(number))
    keyed.process(Slow()).name("score").set_parallelism(4).sink_to(drop)


def slow_sink(env: am.StreamExecutionEnvironment) -> None:
    stream = numbers(env).map(abs).name("clean").rebalance().map(abs).name("after")
    stream.sink_to(write_slowly)


async def named_bottleneck(job: am.JobClient) -> am.Bottleneck | None:
    """Return who is named once tasks have been looked at for a second, all of them."""
    async with asyncio.timeout(120):
        while True:
            await asyncio.sleep(0.1)
            tasks = job.snapshot().tasks
            looked = [
                max((one.observed_s for one in task.blocked), default=0)
                for task in tasks
            ]
            if looked and min(looked) >= 1.2:
                return job.bottleneck()


@pytest.mark.parametrize(
    ("build", "operator", "cause", "why"),
    [
        (slow_source, "readings", am.BlockCause.SOURCE, "waits for what it reads"),
        (slow_call, "enrich", am.BlockCause.CALLS, "waits for its calls (4 at once)"),
        (tight_limit, "enrich", am.BlockCause.LIMIT, "waits for limiter openai"),
        (blocking, "parse", am.BlockCause.FUNCTION, "runs its function ("),
        (skewed, "score", am.BlockCause.AWAIT, "the keys are skewed"),
        (slow_sink, "FunctionSink", am.BlockCause.AWAIT, "awaits its function"),
    ],
    ids=["slow source", "slow call", "limit", "blocking", "skewed key", "slow sink"],
)
@pytest.mark.parametrize("workers", [0, 2])
async def test_the_bottleneck_is_named_and_why(
    build: Callable[[am.StreamExecutionEnvironment], None],
    operator: str,
    cause: am.BlockCause,
    why: str,
    workers: int,
) -> None:
    env = am.StreamExecutionEnvironment()
    build(env)
    deployment = am.Processes(workers) if workers else None
    async with env.start(deployment=deployment) as job:
        found = await named_bottleneck(job)
        snapshot = job.snapshot()
        await job.cancel()
    assert found is not None
    assert (found.operator, found.cause) == (operator, cause)
    assert why in found.why
    assert found.why.startswith(f"{operator} ")
    assert "% of the last" in found.why
    assert 0.3 <= found.share <= 1
    assert snapshot.bottleneck is not None
    assert snapshot.bottleneck.operator == operator


async def test_who_waits_for_it_says_so_on_operators_and_edges() -> None:
    env = am.StreamExecutionEnvironment()
    slow_call(env)
    async with env.start() as job:
        while True:
            snapshot = job.snapshot()
            edge = next(one for one in snapshot.edges if one.target == "after")
            said = (
                snapshot.operator("clean").blocked_by,
                snapshot.operator("after").blocked_by,
                edge.blocked_by,
            )
            # Who waits for what shows when it has been looked at often enough.
            if (
                "clean waits for enrich, " in said[0]
                and "after waits for input, " in said[1]
                and "enrich waits for its calls" in said[2]
            ):
                break
            await asyncio.sleep(0.1)


async def test_a_job_that_nobody_holds_up_has_no_bottleneck() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(drop)
    async with env.start() as job:
        await job.result()
        assert job.bottleneck() is None


def test_shares_are_those_of_the_last_minute_and_bounded() -> None:
    shares = TaskShares()
    for tick in range(600):
        shares.add(tick * 0.2, ("old", Blocked(am.BlockCause.AWAIT)))
    for tick in range(300):
        line = f"a.py:{tick}"
        shares.add(120 + tick * 0.2, ("new", Blocked(am.BlockCause.FUNCTION, line)))
    found = shares.shares()
    assert {share.operator for share in found} == {"new"}
    assert len(found) <= 13 * 33
    assert sum(share.share for share in found) == pytest.approx(1)
    assert found[0].observed_s == 60
