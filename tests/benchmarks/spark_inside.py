"""SI1 to SI3: pipelines inside Spark's workers beside what one would write by hand.

Both sides do the same work per row, and Spark counts the results. The loops by
hand are those of ``mapInArrow`` with pyarrow; for windows one that has been sorted by
Spark, whose own ``window()`` is shown beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import aiomailbox as am
from tests.benchmarks.measure import OURS, Report, Row, System, compare
from tests.benchmarks.spark_rows import make_df

_SCORED = "id long, key string, value double"
_WINDOWED = "key string, start long, rows long, total double"
_WINDOW_MS = 10_000
_CALL_S = 0.02
_CONCURRENCY = 200
_WORKERS = 2


class Scored(NamedTuple):
    """What the function makes of a row."""

    id: int
    key: str
    value: float


def reports(records: int, rounds: int) -> Iterator[Report]:
    """Measure all of them, in a session of their own."""
    from aiomailbox.connectors.spark.session import local_session

    spark = local_session("benchmarks inside", cores=_WORKERS)
    spark.sparkContext.setLogLevel("OFF")
    try:
        df = make_df(spark, records)
        yield _rows(df, records, rounds)
        yield _calls(spark, min(records, 100_000), rounds)
        yield _windows(df, records, rounds)
    finally:
        spark.stop()


def _rows(df: Any, records: int, rounds: int) -> Report:
    report = Report("SI1", "a Python function per row, inside Spark")

    @am.pipeline
    def pipeline(rows: Any) -> Any:
        return rows.map(lambda row: Scored(row.id, row.key, row.value * 2.0))

    systems = [
        System("mapInArrow by hand", _counting(df, by_hand(), _SCORED)),
        System(OURS, lambda _: counted(pipeline.apply_to(df, schema=_SCORED).result)),
    ]
    report.rows = _compare_warm("SI1", systems, records, rounds)
    report.at_least(0.8, "the loop by hand")
    return report


def _calls(spark: Any, records: int, rounds: int) -> Report:
    report = Report("SI2", "async calls of 20 ms, 200 at a time in each of 2 workers")
    df = spark.range(0, records, 1, _WORKERS)

    @am.pipeline
    def pipeline(rows: Any) -> Any:
        async def call(row: Any) -> Any:
            await asyncio.sleep(_CALL_S)
            return {"id": row.id}

        return rows.map_async(call, concurrency=_WORKERS * _CONCURRENCY)

    applied = pipeline.apply_to(df, schema="id long", parallelism=_WORKERS)
    systems = [
        System("mapInArrow with gather", _counting(df, gathering(), "id long")),
        System(OURS, lambda _: counted(applied.result)),
        System("mapInArrow, threads", _counting(df, on_threads(), "id long")),
    ]
    report.rows = _compare_warm("SI2", systems, records, rounds)
    report.at_least(1 / 1.05, "gather by hand")
    return report


def _windows(df: Any, records: int, rounds: int) -> Report:
    from pyspark.sql import functions as sf

    report = Report("SI3", "event-time windows per key, inside Spark")

    @am.pipeline
    def pipeline(rows: Any) -> Any:
        strategy = am.WatermarkStrategy.for_monotonous_timestamps()
        return (
            rows.assign_timestamps_and_watermarks(
                strategy.with_timestamp_assigner("ts")
            )
            .key_by("key")
            .window(am.TumblingEventTimeWindows.of(am.millis(_WINDOW_MS)))
            .aggregate(am.aggregates(rows=am.count(), total=am.sum_("value")))
            .rename({"window_start": "start"})
            .drop("window_end")
        )

    # The columns that the loop by hand gets.
    applied = pipeline.apply_to(
        df.select("key", "ts", "value"),
        schema=_WINDOWED.replace("start long", "start timestamp"),
        order_by="ts",
        parallelism=_WORKERS,
    )
    by_key = df.select("key", sf.unix_millis("ts").alias("ms"), "value")
    by_key = by_key.repartition(_WORKERS, "key").sortWithinPartitions("key", "ms")
    windows = df.groupBy("key", sf.window("ts", f"{_WINDOW_MS} milliseconds"))
    systems = [
        System("sorted mapInArrow", _counting(by_key, windowing(), _WINDOWED)),
        System(OURS, lambda _: counted(applied.result)),
        System("Spark SQL's window()", lambda _: counted(windows.agg(sf.sum("value")))),
    ]
    report.rows = _compare_warm("SI3", systems, records, rounds)
    report.at_least(1 / 1.2, "the sorted loop by hand")
    return report


def _compare_warm(
    work: str, systems: list[System], records: int, rounds: int
) -> list[Row]:
    """Compare systems whose workers have imported what they need."""
    for system in systems[1:]:
        system.run(records)
    return compare(work, systems, records, rounds)


def counted(df: Any) -> int:
    """Compute a DataFrame, keep nothing, and return how many rows it had."""
    return int(df.count())


def by_hand() -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a loop that calls a function with a NamedTuple of each row."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from typing import NamedTuple

        import pyarrow as pa

        class Read(NamedTuple):
            id: int
            key: str
            value: float
            ts: Any
            flag: bool

        class Made(NamedTuple):
            id: int
            key: str
            value: float

        def function(row: Any) -> Any:
            return Made(row.id, row.key, row.value * 2.0)

        for batch in batches:
            columns = [column.to_pylist() for column in batch.columns]
            results = [function(row) for row in map(Read, *columns)]
            ids, keys, values = zip(*results, strict=True)
            yield pa.RecordBatch.from_arrays(
                [pa.array(ids, pa.int64()), pa.array(keys), pa.array(values)],
                names=["id", "key", "value"],
            )

    return run


def gathering() -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a loop that keeps so many calls under way with gather."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import asyncio

        import pyarrow as pa

        async def call(slots: Any, number: int) -> int:
            async with slots:
                await asyncio.sleep(0.02)
                return number

        async def all_of(numbers: list[int]) -> list[int]:
            slots = asyncio.Semaphore(200)
            return await asyncio.gather(*[call(slots, number) for number in numbers])

        with asyncio.Runner() as runner:
            for batch in batches:
                results = runner.run(all_of(batch.column(0).to_pylist()))
                yield pa.RecordBatch.from_pydict({"id": results})

    return run


def on_threads() -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a loop that makes the calls on a pool of threads."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import time
        from concurrent.futures import ThreadPoolExecutor

        import pyarrow as pa

        def call(number: int) -> int:
            time.sleep(0.02)
            return number

        with ThreadPoolExecutor(200) as pool:
            for batch in batches:
                results = list(pool.map(call, batch.column(0).to_pylist()))
                yield pa.RecordBatch.from_pydict({"id": results})

    return run


def windowing() -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a loop that adds up windows of rows sorted by key and time."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        def batch_of(done: list[tuple[str, int, int, float]]) -> Any:
            keys, starts, rows, totals = zip(*done, strict=True)
            return pa.RecordBatch.from_arrays(
                [
                    pa.array(keys),
                    pa.array(starts, pa.int64()),
                    pa.array(rows, pa.int64()),
                    pa.array(totals),
                ],
                names=["key", "start", "rows", "total"],
            )

        done: list[tuple[str, int, int, float]] = []
        open_key, open_start, rows, total = "", -1, 0, 0.0
        for batch in batches:
            for key, ms, value in zip(
                *[c.to_pylist() for c in batch.columns], strict=True
            ):
                start = ms - ms % 10_000
                if key != open_key or start != open_start:
                    if rows:
                        done.append((open_key, open_start, rows, total))
                    open_key, open_start, rows, total = key, start, 0, 0.0
                rows += 1
                total += value
            if done:
                yield batch_of(done)
                done = []
        if rows:
            yield batch_of([(open_key, open_start, rows, total)])

    return run


def _counting(df: Any, loop: Any, schema: str) -> Callable[[int], int]:
    return lambda _: counted(df.mapInArrow(loop, schema))
