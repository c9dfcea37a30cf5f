"""The same work as jobs, written as a user would."""

from __future__ import annotations

import asyncio
import tempfile
from operator import itemgetter
from typing import Any

import aiomailbox as am
from tests.benchmarks.records import (
    JITTER_MS,
    WINDOW_MS,
    Record,
    double,
    is_even,
    jittered,
    key_of,
    records,
    time_of,
    value_of,
)


def w1(count: int, *, chained: bool = True) -> int:
    """Map, filter, map, count."""
    env = am.StreamExecutionEnvironment()
    if not chained:
        env.configure(operator_chaining=False)
    stream = env.from_collection(records(count)).map(double).filter(is_even)
    return am.run(stream.map(value_of).count())


def w2_aggregate(count: int) -> int:
    """Sum up per key with a ready-made aggregate; each new sum is a result."""
    env = am.StreamExecutionEnvironment()
    keyed = env.from_collection(records(count)).key_by(key_of)
    return am.run(keyed.aggregate(am.sum_(value_of)).count())


def _add(total: Record, record: Record) -> Record:
    return (record[0], record[1], total[2] + record[2], record[3])


def w2_reduce(count: int) -> int:
    """Sum up per key with a reduce function over records."""
    env = am.StreamExecutionEnvironment()
    return am.run(
        env.from_collection(records(count)).key_by(key_of).reduce(_add).count()
    )


def w3(count: int, per_ms: int) -> int:
    """Count and sum per key and second of event time."""
    env = am.StreamExecutionEnvironment()
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(
        am.millis(JITTER_MS)
    ).with_timestamp_assigner(time_of)
    windows = (
        env.from_collection(jittered(count, per_ms), strategy)
        .key_by(key_of)
        .window(am.TumblingEventTimeWindows.of(am.millis(WINDOW_MS)))
    )
    results = windows.aggregate(am.aggregates(n=am.count(), total=am.sum_(value_of)))
    return am.run(results.count())


def w4(count: int, seconds: float, concurrency: int) -> int:
    """Wait for something else per record; results in the order of the records."""

    async def wait(record: Record) -> int:
        await asyncio.sleep(seconds)
        return record[0]

    async def work() -> Any:
        env = am.StreamExecutionEnvironment()
        stream = env.from_collection(records(count))
        waited = stream.map_async(wait, concurrency=concurrency, ordered=True)
        return await waited.collect()

    results = am.run(work())
    assert results == list(range(count)), "the results are not in order"
    return len(results)


def w4_kept(count: int, seconds: float, concurrency: int, *, journal: bool) -> int:
    """The same in a job with checkpoints, and what calls came to is kept or not."""

    async def wait(record: Record) -> int:
        await asyncio.sleep(seconds)
        return record[0]

    async def work(directory: str) -> None:
        env = am.StreamExecutionEnvironment()
        env.enable_checkpointing(None, directory=directory)
        # A list, which can be read again from anywhere.
        stream = env.from_collection(list(records(count)))
        waited = stream.map_async(
            wait, concurrency=concurrency, journal=journal, id=itemgetter(0)
        )
        waited.sink_to(results.append)
        await env.execute()

    results: list[int] = []
    with tempfile.TemporaryDirectory() as directory:
        am.run(work(directory))
    assert results == list(range(count)), "the results are not in order"
    return len(results)
