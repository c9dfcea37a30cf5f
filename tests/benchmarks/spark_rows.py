"""W6: a Spark DataFrame of five columns into this process, bare and through a job.

The bare loops are those that one would write by hand: batches packed in the executors
as Arrow IPC, read by ``toLocalIterator``, and made NamedTuples column by column. A
timestamp column goes through NumPy in the bare loop too, because ``to_pylist`` takes
microseconds for each one. Each row's value is looked at once, on both sides.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import aiomailbox as am
from aiomailbox.connectors.spark.reading import ReadWay
from tests.benchmarks.measure import OURS, percentile

PARTITIONS = 4
_PACKED = "ipc binary"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_value = attrgetter("value")
_SAMPLE_EVERY_S = 0.005
_MEMORY = Path(__file__).parents[1] / "connectors" / "spark" / "memory_program.py"


class _Row(NamedTuple):
    id: int
    key: str
    value: float
    ts: datetime
    flag: bool


def make_df(spark: Any, count: int) -> Any:
    """Return a DataFrame that Spark computes: long, string, double, timestamp, bool."""
    return spark.range(0, count, 1, PARTITIONS).selectExpr(
        "id",
        "concat('key-', id % 1000) AS key",
        "id * 0.5D AS value",
        "timestamp_millis(1700000000000 + id) AS ts",
        "id % 2 = 0 AS flag",
    )


def bare_batches(df: Any) -> Iterator[Any]:
    """Yield the DataFrame's Arrow batches."""
    import pyarrow as pa

    def pack(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            ipc = pa.array([sink.getvalue().to_pybytes()], pa.binary())
            yield pa.RecordBatch.from_arrays([ipc], names=["ipc"])

    for row in df.mapInArrow(pack, _PACKED).toLocalIterator():
        yield pa.ipc.open_stream(row.ipc).read_next_batch()


def by_batches(df: Any) -> int:
    """Count the rows in the bare batches."""
    return sum(batch.num_rows for batch in bare_batches(df))


def by_named_tuples(df: Any) -> int:
    """Make NamedTuples of the bare batches and look at each."""
    import pyarrow as pa

    count = 0
    for batch in bare_batches(df):
        id_, key, value, ts, flag = batch.columns
        since = ts.cast(pa.int64()).to_numpy().view("m8[us]").tolist()
        times = [_EPOCH + delta for delta in since]
        columns = (id_, key, value, flag)
        ids, keys, values, flags = (column.to_pylist() for column in columns)
        for row in map(_Row, ids, keys, values, times, flags):
            _value(row)
            count += 1
    return count


def by_local_iterator(df: Any) -> int:
    """Iterate over Spark's own rows."""
    count = 0
    for row in df.toLocalIterator():
        _value(row)
        count += 1
    return count


def job_named_tuples(df: Any) -> int:
    """Stream rows as NamedTuples into a map that looks at each."""
    env = am.StreamExecutionEnvironment()
    return am.run(env.from_source(am.SparkSource(df)).map(_value).count())


def job_batches(df: Any, read: ReadWay = "iterate") -> int:
    """Stream Arrow batches."""
    return _batches_of(am.SparkSource(df, records="batch", read=read))


def stage(df: Any, place: str) -> None:
    """Let Spark write a DataFrame to files, and read it."""
    _batches_of(am.SparkSource(df, records="batch", stage=place))


def job_staged(place: str) -> int:
    """Stream Arrow batches of what was staged before."""
    return _batches_of(am.SparkSource.from_stage(place, records="batch"))


def _batches_of(source: am.SparkSource[Any]) -> int:
    async def work() -> int:
        env = am.StreamExecutionEnvironment()
        return sum([batch.num_rows async for batch in env.from_source(source)])

    return am.run(work())


def by_map_in_arrow(df: Any) -> int:
    """Let Spark give all rows to Python, and bring nothing here but their number."""

    def count(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_arrays([pa.array([rows])], names=["rows"])

    return sum(row.rows for row in df.mapInArrow(count, "rows long").collect())


def make_slow_df(spark: Any, seconds: float) -> Any:
    """Return a DataFrame of one partition, whose ten batches take so long in all."""

    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        for batch in batches:
            time.sleep(seconds / 10)
            yield batch

    return spark.range(0, 100_000, 1, 1).mapInArrow(wait, "id long")


def first_batch(df: Any, read: ReadWay) -> float:
    """Return how many seconds the first batch takes."""

    async def work() -> float:
        env = am.StreamExecutionEnvironment()
        source = am.SparkSource(df, records="batch", read=read)
        started = time.perf_counter()
        await env.from_source(source).take(1)
        return time.perf_counter() - started

    return am.run(work())


def growth(rows: int, partitions: int) -> tuple[float, int]:
    """Let a program read pushed batches; return its seconds, and MiB that it grew by."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, _MEMORY, str(rows), str(partitions), "batch", "push"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return time.perf_counter() - started, int(done.stdout.splitlines()[-1])


async def _latencies(stop: asyncio.Event) -> list[float]:
    late: list[float] = []
    while not stop.is_set():
        started = time.perf_counter()
        await asyncio.sleep(_SAMPLE_EVERY_S)
        late.append(time.perf_counter() - started - _SAMPLE_EVERY_S)
    return late


async def _idle(df: Any) -> None:
    await asyncio.sleep(2)


async def _beside(df: Any) -> None:
    await asyncio.to_thread(by_batches, df)


async def _job(df: Any) -> None:
    env = am.StreamExecutionEnvironment()
    await env.from_source(am.SparkSource(df)).map(_value).count()


# What goes on while the loop's lateness is measured.
OCCUPATIONS: dict[str, Callable[[Any], Awaitable[None]]] = {
    "idle loop": _idle,
    "idle loop, a thread reads the DataFrame bare": _beside,
    OURS: _job,
}


def loop_latency(name: str, df: Any) -> float:
    """Return by how many seconds the loop runs late: 99 of 100 times it is less.

    Args:
        name: What goes on meanwhile: a key of `OCCUPATIONS`.
        df: What is read.
    """

    async def work() -> float:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            sampling = group.create_task(_latencies(stop))
            await OCCUPATIONS[name](df)
            stop.set()
        return percentile(sampling.result(), 0.99)

    gc.collect()
    return asyncio.run(work())
