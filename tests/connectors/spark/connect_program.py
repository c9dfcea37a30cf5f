"""Run by test_connect.py, in a process of its own, with a Connect server of its own."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import aiomailbox as am
from aiomailbox.connectors.spark import reading
from aiomailbox.connectors.spark.pushing import Push
from aiomailbox.connectors.spark.session import register_format
from aiomailbox.connectors.spark.source import SparkSource
from aiomailbox.connectors.spark.streaming import SparkStreamSource
from aiomailbox.errors import InvalidArgumentError, SourceChangedError, UsageError

FOLD = [datetime(2013, 11, 3, hour, 30, tzinfo=UTC) for hour in (5, 6)]


WAYS: list[Any] = ["iterate", "push"]


class Doubled(NamedTuple):
    id: int
    twice: int


async def collected(source: SparkSource) -> list[Any]:
    env = am.StreamExecutionEnvironment()
    values: list[Any] = await env.from_source(source).collect()
    return values


async def rows_come_in_the_order_of_partitions(spark: Any, place: Path) -> None:
    df = spark.range(0, 5000, 1, 3).selectExpr("id", "cast(id as string) text")
    for way in WAYS:
        values = await collected(SparkSource(df, read=way))
        assert [value.id for value in values] == list(range(5000)), way
        assert values[7] == (7, "7")
    independent = await collected(SparkSource(df, "independent"))
    assert sorted(value.id for value in independent) == list(range(5000))


async def moments_are_instants(spark: Any, place: Path) -> None:
    df = spark.createDataFrame([(FOLD[0],), (FOLD[1],)], "t timestamp").coalesce(1)
    for way in WAYS:
        values = await collected(SparkSource(df, read=way))
        assert [value.t for value in values] == FOLD, way


async def a_staged_dataframe_is_read_without_spark(spark: Any, place: Path) -> None:
    df = spark.range(0, 100, 1, 3)
    source = SparkSource(df, order_by="id", partitions=3, stage=place / "stage")
    values = await collected(source)
    assert [value.id for value in values] == list(range(100))
    assert await collected(SparkSource.from_stage(place / "stage")) == values
    with pytest.raises(am.JobFailedError) as failure:
        await collected(SparkSource(spark.range(7), stage=place / "stage"))
    assert isinstance(failure.value.__cause__, SourceChangedError)


class Unreached(Push):
    """Listens, and executors know a port where nobody does."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._nobody = socket.socket()
        self._nobody.bind(("127.0.0.1", 0))
        self.door = self.door._replace(port=self._nobody.getsockname()[1])

    def close(self) -> None:
        self._nobody.close()
        super().close()


async def rows_are_staged_where_no_executor_reaches_this_program(
    spark: Any, place: Path
) -> None:
    computed = place / "computed"

    def seen(batches: Any) -> Any:
        computed.touch()
        yield from batches

    df = spark.range(0, 100, 1, 3).mapInArrow(seen, "id long")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reading, "Push", Unreached)
        with pytest.raises(am.JobFailedError, match=r"listen=.*read with stage="):
            await collected(SparkSource(df, read="push"))
        assert not computed.exists()
        source = SparkSource(df, read="push", stage=place / "unreached")
        values = await collected(source)
    assert [value.id for value in values] == list(range(100))
    assert await collected(SparkSource.from_stage(place / "unreached")) == values


async def progress_is_told(spark: Any, place: Path) -> None:
    reached, released = asyncio.Event(), asyncio.Event()

    async def stop_at_a_row(row: Any) -> Any:
        if row.id == 2100:
            reached.set()
            await released.wait()
        return row

    df = spark.range(0, 3000, 1, 3)
    options: list[dict[str, Any]] = [{}, {"order_by": "id", "partitions": 3}]
    for given in options:
        reached.clear()
        released.clear()
        env = am.StreamExecutionEnvironment()
        source = SparkSource(df, batch_rows=100, **given)
        rows = env.from_source(source, name="rows").map_async(stop_at_a_row)
        rows.sink_to(lambda row: None)
        async with env.start() as job:
            await reached.wait()
            told = job.metrics().operators["rows"]
            # Where ranges are cut is drawn by lot.
            assert 2100 < told["rows_read"] <= 3000
            assert told["partitions_done"] in {1, 2, 3}
            # A server does not tell how many partitions there are.
            assert told["partitions"] == given.get("partitions")
            assert (told["eta_s"] is None) == (not given)
            released.set()
            await job.result()
            told = job.metrics().operators["rows"]
            assert (told["rows_read"], told["partitions_done"]) == (3000, 3)
            assert (told["partitions"], told["eta_s"]) == (3, 0.0)


def running_jobs(place: Path) -> int:
    """Return how many jobs run at the server, which writes a line where one begins or ends."""
    [log] = (place / "events").iterdir()
    # The last line may not be whole.
    *lines, _ = log.read_text().split("\n")
    events = Counter(json.loads(line)["Event"] for line in lines)
    return events["SparkListenerJobStart"] - events["SparkListenerJobEnd"]


async def until(wanted: Callable[[], bool]) -> None:
    while not await asyncio.to_thread(wanted):
        await asyncio.sleep(0.1)


async def cancelling_interrupts_the_query(spark: Any, place: Path) -> None:
    def wait(batches: Any) -> Any:
        import time

        for batch in batches:
            time.sleep(3600)
            yield batch

    slow = spark.range(0, 10, 1, 1).mapInArrow(wait, "id long")
    for way in WAYS:
        env = am.StreamExecutionEnvironment()
        env.from_source(SparkSource(slow, read=way)).sink_to(print)
        async with env.start() as job:
            await until(lambda: running_jobs(place) == 1)
            await job.cancel()
        assert threads() == []
        # Long before its tasks would have ended.
        await until(lambda: running_jobs(place) == 0)
        # Only what still runs can be interrupted.
        assert await asyncio.to_thread(spark.interruptAll) == []


async def stopping_early_leaves_nothing(spark: Any, place: Path) -> None:
    df = spark.range(0, 1_000_000, 1, 4)
    for way in WAYS:
        env = am.StreamExecutionEnvironment()
        stream = env.from_source(SparkSource(df, read=way))
        assert len(await stream.take(5)) == 5
    assert threads() == []
    assert await asyncio.to_thread(spark.interruptAll) == []
    await until(lambda: running_jobs(place) == 0)


async def a_failure_tells_its_cause(spark: Any, place: Path) -> None:
    def fail(batches: Any) -> Any:
        raise ValueError("cursed")
        yield from batches

    with pytest.raises(am.JobFailedError, match="cursed"):
        await collected(SparkSource(spark.range(5).mapInArrow(fail, "id long")))


async def a_pipeline_runs_inside_the_server(spark: Any, place: Path) -> None:
    @am.pipeline
    def windowed(rows: Any) -> Any:
        strategy = am.WatermarkStrategy.for_monotonous_timestamps()
        timed = rows.assign_timestamps_and_watermarks(
            strategy.with_timestamp_assigner(lambda row: row.id * 10)
        )
        return (
            timed.key_by(lambda row: row.id % 3)
            .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
            .reduce(lambda one, other: one if one.id > other.id else other)
            .map(lambda row: Doubled(row.id, 2 * row.id))
        )

    df = spark.range(0, 1000, 1, 1)
    applied = windowed.apply_to(df, schema=Doubled, order_by="id", parallelism=2)
    found = sorted(
        tuple(row) for row in await asyncio.to_thread(applied.result.collect)
    )
    env = am.StreamExecutionEnvironment()
    rows = env.from_collection([Doubled(n, 0) for n in range(1000)])
    assert found == sorted(await windowed(rows).collect())


async def a_pipeline_runs_in_a_barrier_stage(spark: Any, place: Path) -> None:
    @am.pipeline
    def limited(rows: Any) -> Any:
        async def call(row: Any) -> Doubled:
            return Doubled(row.id, 2 * row.id)

        # For the whole job: the first worker has the limiter.
        limit = am.RateLimit(100_000)
        called = rows.map_async(call, limit=limit).key_by("id")
        return called.reduce(lambda one, other: one)

    df = spark.range(0, 1000, 1, 3)
    run = limited.run_on(df, place / "barrier", schema=Doubled, parallelism=2)
    rows = await asyncio.to_thread((await run).collect)
    assert sorted(tuple(row) for row in rows) == [(n, 2 * n) for n in range(1000)]
    with pytest.raises(UsageError, match="at the same time"):
        await limited.run_on(df, place / "wide", schema=Doubled, parallelism=5)


async def a_dataframe_of_results_is_made(spark: Any, place: Path) -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([Doubled(n, 2 * n) for n in range(1000)])
    df = await stream.to_spark(spark)
    assert await asyncio.to_thread(df.count) == 1000


async def a_directory_is_followed_commit_by_commit(spark: Any, place: Path) -> None:
    register_format(spark)
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([Doubled(n, 2 * n) for n in range(100)])
    stream.sink_to(am.ParquetSink(place / "followed", follow="keep"))
    await env.execute()

    def follow() -> int:
        committed = spark.readStream.format("aiomailbox").schema("id long, twice long")
        writer = committed.load(str(place / "followed")).writeStream
        writer = writer.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(place / "query"))
        writer.start(str(place / "seen")).awaitTermination()
        return int(spark.read.parquet(str(place / "seen")).count())

    assert await asyncio.to_thread(follow) == 100
    assert await asyncio.to_thread(follow) == 100


async def results_are_appended_to_a_table(spark: Any, place: Path) -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([Doubled(n, 2 * n) for n in range(10)])
    sink = am.SparkTableSink(spark, "doubled", stage=place / "stage", ledger="by")
    stream.sink_to(sink)
    await env.execute()
    assert await asyncio.to_thread(spark.table("doubled").count) == 10
    spark.sql("DROP TABLE doubled")


async def what_cannot_work_is_refused(spark: Any, place: Path) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(InvalidArgumentError, match="streaming"):
        SparkSource(stream)
    with pytest.raises(UsageError, match="foreachBatch runs at the server"):
        SparkStreamSource(stream, place / "stream")

    @am.pipeline
    def limited(rows: Any) -> Any:
        async def call(row: Any) -> Doubled:
            return Doubled(row.id, 0)

        return rows.map_async(call, limit=am.RateLimit(10))

    with pytest.raises(UsageError, match="per_task=True"):
        limited.apply_to(spark.range(3), schema=Doubled)


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("spark-source")]


CASES: list[Callable[[Any, Path], Coroutine[Any, Any, None]]] = [
    rows_come_in_the_order_of_partitions,
    moments_are_instants,
    a_staged_dataframe_is_read_without_spark,
    rows_are_staged_where_no_executor_reaches_this_program,
    progress_is_told,
    cancelling_interrupts_the_query,
    stopping_early_leaves_nothing,
    a_failure_tells_its_cause,
    a_pipeline_runs_inside_the_server,
    a_pipeline_runs_in_a_barrier_stage,
    a_dataframe_of_results_is_made,
    a_directory_is_followed_commit_by_commit,
    results_are_appended_to_a_table,
    what_cannot_work_is_refused,
]


def main() -> None:
    from pyspark.sql import SparkSession

    # Else the server's port is a fixed one, which another program may have.
    os.environ["SPARK_TESTING"] = "1"
    place = Path(sys.argv[1])
    events = place / "events"
    events.mkdir()
    # Where one can see what runs.
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    builder = SparkSession.builder.remote("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    # Bars of progress would be drawn over what is said.
    spark.clearProgressHandlers()
    try:
        for case in CASES:
            asyncio.run(case(spark, place))
            print("ok:", case.__name__, flush=True)
        df = spark.range(3)
    finally:
        spark.stop()
    with pytest.raises(InvalidArgumentError, match="stopped"):
        SparkSource(df)
    print("ok: a stopped session is refused")


if __name__ == "__main__":
    main()
