"""Pipelines whose bottleneck is known: it is named, with the reason."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.operators.core.operator import Blocked
from aiomailbox.runtime.loop_watch import TaskLooks

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


def compute(us: float) -> None:
    """Hold the processor, and Python's lock, as a function that computes does."""
    until_s = time.perf_counter() + us / 1e6
    while time.perf_counter() < until_s:
        pass


class Parse:
    """A function of so many microseconds."""

    def __init__(self, us: float) -> None:
        self.us = us

    def __call__(self, number: int) -> int:
        compute(self.us)
        return number


def computing(us: float) -> Callable[[am.StreamExecutionEnvironment], None]:
    def build(env: am.StreamExecutionEnvironment) -> None:
        stream = numbers(env).map(abs).name("clean").map(Parse(us)).name("parse")
        stream.rebalance().map(abs).name("after").sink_to(drop)

    return build


def write(number: int) -> None:
    compute(50)


def sync_sink(env: am.StreamExecutionEnvironment) -> None:
    numbers(env).map(abs).name("clean").sink_to(write).name("write")


async def computed() -> AsyncIterator[int]:
    for number in range(10_000_000):
        compute(100)
        yield number


def computing_source(env: am.StreamExecutionEnvironment) -> None:
    stream = env.from_async_iterable(computed, name="readings")
    stream.map(abs).name("clean").rebalance().map(abs).name("more").sink_to(drop)


class Score(am.KeyedProcessFunction[str, int, int]):
    """Computes for each record of its key."""

    def process_element(self, value: int, context: Any, out: Any) -> None:
        compute(50)
        out.collect(value)


def skewed_computing(env: am.StreamExecutionEnvironment) -> None:
    keyed = numbers(env).key_by(lambda number: "all" if number % 50 else str(number))
    keyed.process(Score()).name("score").set_parallelism(4).sink_to(drop)


class Place(am.ProcessFunction[int, int]):
    """Is slow in one subtask."""

    def open(self, context: Any) -> None:
        self.us = 200 if context.subtask_index == 2 else 1

    def process_element(self, value: int, context: Any, out: Any) -> None:
        compute(self.us)
        out.collect(value)


def slow_partition(env: am.StreamExecutionEnvironment) -> None:
    stream = numbers(env).rebalance().process(Place()).name("place").set_parallelism(4)
    stream.rebalance().map(abs).name("after").sink_to(drop)


def fan_out(env: am.StreamExecutionEnvironment) -> None:
    stream = numbers(env).map(abs).name("clean")
    stream.rebalance().map(abs).name("cheap").sink_to(drop)
    stream.rebalance().map(Parse(100)).name("dear").sink_to(drop)


async def bottleneck(
    job: am.JobClient, operator: str, cause: am.BlockCause, why: str
) -> am.Bottleneck:
    """Return who is named, as soon as it is who it should be."""
    async with asyncio.timeout(60):
        while True:
            await asyncio.sleep(0.1)
            found = job.bottleneck()
            if (
                found is not None
                and (found.operator, found.cause) == (operator, cause)
                and why in found.why
                and found.observed_s >= 1
                # What was before it began counts for a while.
                and found.share >= 0.3
            ):
                return found


CASES: list[tuple[str, Any, str, am.BlockCause, str]] = [
    ("source", slow_source, "readings", am.BlockCause.SOURCE, "waits for what it reads"),
    ("call", slow_call, "enrich", am.BlockCause.CALLS, "its calls (4 at once)"),
    ("limit", tight_limit, "enrich", am.BlockCause.LIMIT, "waits for limiter openai"),
    ("sleeping", blocking, "parse", am.BlockCause.FUNCTION, "runs its function ("),
    ("skewed", skewed, "score", am.BlockCause.AWAIT, "skewed, most of all 'all'"),
    ("async sink", slow_sink, "FunctionSink", am.BlockCause.AWAIT, "awaits its function"),
    *(
        (f"map of {us} us", computing(us), "parse", am.BlockCause.FUNCTION, __file__)
        for us in (5, 100, 2_000, 50_000)
    ),
    ("sync sink", sync_sink, "write", am.BlockCause.FUNCTION, __file__),
    (
        "computing source",
        computing_source,
        "readings",
        am.BlockCause.FUNCTION,
        "runs its function (",
    ),
    (
        "skewed, computing",
        skewed_computing,
        "score",
        am.BlockCause.FUNCTION,
        "the keys are skewed, most of all 'all'",
    ),
    ("partition", slow_partition, "place", am.BlockCause.FUNCTION, "; subtask 3 of 4 alone"),
    ("fan-out", fan_out, "dear", am.BlockCause.FUNCTION, "runs its function ("),
]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "operator", "cause", "why", "workers"),
    [
        pytest.param(*case, workers, id=f"{name}, {workers} workers")
        for name, *case in CASES
        for workers in ((0, 2) if name in ("source", "limit", "async sink") else (0,))
    ]
    + [
        pytest.param(computing(20), "parse", am.BlockCause.FUNCTION, __file__, 2),
        pytest.param(
            skewed_computing,
            "score",
            am.BlockCause.FUNCTION,
            "the keys are skewed, most of all 'all'",
            2,
        ),
    ],
)
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
        found = await bottleneck(job, operator, cause, why)
        report, snapshot = job.backpressure(), job.snapshot()
        await job.cancel()
    assert found.why.startswith(f"{operator} ")
    assert "% of the last" in found.why
    assert found.share <= 1
    # One finder: whoever is asked.
    assert snapshot.bottleneck is not None
    assert snapshot.bottleneck.operator == operator
    assert report.bottleneck is not None
    assert report.bottleneck.task == found.task


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


def test_looks_are_those_of_the_last_seconds_and_bounded() -> None:
    looks = TaskLooks()
    for tick in range(600):
        looks.add(tick * 0.1, 0, ("old", Blocked(am.BlockCause.AWAIT)))
    for tick in range(300):
        line = f"a.py:{tick}"
        looks.add(60 + tick * 0.1, 0, ("new", Blocked(am.BlockCause.FUNCTION, line)))
    found = looks.of(0)
    assert {operator for operator, _ in found} == {"new"}
    assert len(found) <= 2 * 33
    assert 50 <= sum(found.values()) <= 100
    assert looks.of(1) == {}


def test_what_was_seen_last_counts_on_while_nothing_is_done() -> None:
    """Calls are made for a moment, and wait for their limit for long."""
    looks, kind = TaskLooks(), 3
    calls = "enrich", Blocked(am.BlockCause.CALLS)
    limit = "enrich", Blocked(am.BlockCause.LIMIT)
    looks.again(0.0)
    assert looks.of(kind) == {}
    looks.add(0.0, kind, calls)
    looks.add(0.1, kind, limit)
    for look in range(2, 6):
        looks.again(look / 10)
    assert looks.of(kind) == {calls: 1, limit: 5}
