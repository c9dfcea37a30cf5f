"""Sources of different pace in one job, kept together by their watermarks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

import aiomailbox as am

Env = am.StreamExecutionEnvironment
DRIFT_MS = 3000


def paced(pause_s: float, count: int) -> Callable[[], AsyncIterator[tuple[str, int]]]:
    """Make a stream whose event time moves one second per record."""

    async def records() -> AsyncIterator[tuple[str, int]]:
        for number in range(count):
            yield f"every {pause_s} s", number * 1000
            if pause_s:
                await asyncio.sleep(pause_s)

    return records


def aligned(drift_s: float = DRIFT_MS / 1000) -> am.WatermarkStrategy:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    return strategy.with_timestamp_assigner(
        lambda row: row[1]
    ).with_watermark_alignment("both", am.seconds(drift_s), am.seconds(0.1))


async def test_the_fast_source_stays_within_the_drift_of_the_slow_one(env: Env) -> None:
    fast = env.from_async_iterable(paced(0.01, 400), aligned())
    slow = env.from_async_iterable(paced(0.5, 40), aligned())
    newest = {"every 0.01 s": 0, "every 0.5 s": 0}
    ahead: list[int] = []

    def look(row: tuple[str, int]) -> tuple[str, int]:
        newest[row[0]] = row[1]
        if newest["every 0.5 s"] < 39_000:
            ahead.append(newest["every 0.01 s"] - newest["every 0.5 s"])
        return row

    rows = await fast.union(slow).map(look).collect()
    assert len(rows) == 440
    # One run is read before the limit is looked at, and it is short near the limit.
    assert DRIFT_MS <= max(ahead) <= DRIFT_MS + 2 * 1000


async def test_without_alignment_the_fast_source_runs_away(env: Env) -> None:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    fast = env.from_async_iterable(paced(0.01, 400), strategy)
    slow = env.from_async_iterable(paced(0.5, 40), strategy)
    order = [row[0] for row in await fast.union(slow).collect()]
    assert order.index("every 0.5 s") < 60
    assert order[-30:] == ["every 0.5 s"] * 30


async def test_a_source_that_waits_is_woken_when_the_slow_one_ends(env: Env) -> None:
    fast = env.from_async_iterable(paced(0, 1000), aligned())
    slow = env.from_async_iterable(paced(0.1, 2), aligned())
    assert await fast.union(slow).count() == 1002


async def test_cancelling_a_job_whose_source_waits_leaves_nothing(
    env: Env, assert_nothing_left: Callable[[], None]
) -> None:
    fast = env.from_async_iterable(paced(0.01, 10_000), aligned())
    slow = env.from_async_iterable(paced(100, 5), aligned())
    fast.union(slow).filter(lambda _: False).sink_to(print)
    async with env.start("aligned") as job:
        await asyncio.sleep(150)
        await job.cancel()
    assert_nothing_left()


async def test_sources_of_a_group_name_the_same_drift(env: Env) -> None:
    first = env.from_async_iterable(paced(0, 5), aligned())
    second = env.from_async_iterable(paced(0, 5), aligned(1))
    with pytest.raises(am.JobFailedError, match="max_drift"):
        await first.union(second).collect()
