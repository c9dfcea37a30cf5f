"""What a running job says about event time, operator by operator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiomailbox as am

MAX = 2**63 - 1


async def rows() -> AsyncIterator[int]:
    for time in (1000, 2000, 3000):
        yield time
        await asyncio.sleep(1)
    await asyncio.sleep(1000)


def strategy() -> am.WatermarkStrategy:
    ordered = am.WatermarkStrategy.for_monotonous_timestamps()
    return ordered.with_timestamp_assigner(lambda time: time).with_idleness(
        am.seconds(60)
    )


async def test_a_job_shows_the_watermark_of_each_operator_also_inside_a_chain() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_async_iterable(rows, strategy()).map(lambda n: n).name("plus")
    counts = stream.key_by(lambda n: 0).window(
        am.TumblingEventTimeWindows.of(am.seconds(1))
    )
    counts.aggregate(am.count()).name("count").sink_to(lambda n: None)
    async with env.start("shown") as job:
        await asyncio.sleep(10)
        shown = job.watermarks()
        assert set(shown) == set(job.metrics().operators)
        assert {place.timestamp_ms for place in shown.values()} == {2999}
        assert not any(place.is_idle for place in shown.values())
        await asyncio.sleep(100)
        assert all(place.is_idle for place in job.watermarks().values())
        await job.cancel()


async def test_an_operator_with_two_inputs_is_where_the_slower_one_is() -> None:
    env = am.StreamExecutionEnvironment()
    ends = env.from_collection([5], strategy())
    stays = env.from_async_iterable(rows, strategy())
    both = ends.connect(stays).map(lambda n: n, lambda n: n).name("both")
    both.sink_to(lambda n: None)
    async with env.start("two") as job:
        await asyncio.sleep(10)
        assert job.watermarks()["both"].timestamp_ms == 2999
        await job.cancel()
