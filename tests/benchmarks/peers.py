"""The same work by other libraries, where they are installed.

Each function is its library's usual program for the work and imports the library
itself; `peers_of` leaves out those that are not installed.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from tests.benchmarks.measure import System
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

_BATCH = 1000
_QUEUE_MAX = 16


def is_installed(name: str) -> bool:
    """Say whether a library is there."""
    return importlib.util.find_spec(name) is not None


def batches(items: Iterator[Record], size: int = _BATCH) -> Iterator[list[Record]]:
    """Cut an iterator into lists."""
    while batch := list(islice(items, size)):
        yield batch


async def _through_queues(source: Iterator[Any], stages: list[Any]) -> int:
    """Run stages as tasks with a bounded queue between each two."""
    queues: list[asyncio.Queue[Any]] = [
        asyncio.Queue(_QUEUE_MAX) for _ in range(len(stages) + 1)
    ]

    async def feed() -> None:
        for item in source:
            await queues[0].put(item)
        await queues[0].put(None)

    async def work(stage: Any, before: Any, after: Any) -> None:
        while (item := await before.get()) is not None:
            result = stage(item)
            if result is not None:
                await after.put(result)
        await after.put(None)

    async def count() -> int:
        total = 0
        while (item := await queues[-1].get()) is not None:
            total += len(item) if isinstance(item, list) else 1
        return total

    async with asyncio.TaskGroup() as group:
        group.create_task(feed())
        for number, stage in enumerate(stages):
            group.create_task(work(stage, queues[number], queues[number + 1]))
        counted = group.create_task(count())
    return counted.result()


def w1_queue(count: int) -> int:
    """One asyncio.Queue between source and work, a record at a time."""

    def work(record: Record) -> float | None:
        mapped = double(record)
        return value_of(mapped) if is_even(mapped) else None

    return asyncio.run(_through_queues(records(count), [work]))


def w1_queue_batches(count: int) -> int:
    """One asyncio.Queue between source and work, in batches of 1,000."""

    def work(batch: list[Record]) -> list[float]:
        return [value_of(m) for m in map(double, batch) if is_even(m)]

    return asyncio.run(_through_queues(batches(records(count)), [work]))


def w2_queue_batches(count: int) -> int:
    """Sums per key behind an asyncio.Queue, in batches of 1,000."""
    sums: dict[str, float] = {}

    def work(batch: list[Record]) -> list[float]:
        out = []
        for record in batch:
            key = key_of(record)
            total = sums[key] = sums.get(key, 0.0) + value_of(record)
            out.append(total)
        return out

    return asyncio.run(_through_queues(batches(records(count)), [work]))


def w2_queue(count: int) -> int:
    """Sums per key behind an asyncio.Queue, a record at a time."""
    sums: dict[str, float] = {}

    def work(record: Record) -> float:
        key = key_of(record)
        sums[key] = sums.get(key, 0.0) + value_of(record)
        return sums[key]

    return asyncio.run(_through_queues(records(count), [work]))


def bytewax_run(
    source: Iterable[Any], build: Any, kept: Any = None, batch: int = _BATCH
) -> int:
    """Run a dataflow, and return how many results it has.

    Args:
        source: What it reads.
        build: Makes the stream of results of Bytewax's operators and that of the source.
        kept: A list that gets the results; by default they are only counted.
        batch: How many items are read at once.
    """
    from bytewax import operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.outputs import DynamicSink, StatelessSinkPartition
    from bytewax.testing import TestingSource, run_main

    total = 0

    class Counter(StatelessSinkPartition[Any]):
        def write_batch(self, items: list[Any]) -> None:
            nonlocal total
            total += len(items)
            if kept is not None:
                kept.extend(items)

    class CountingSink(DynamicSink[Any]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Counter:
            return Counter()

    flow = Dataflow("bench")
    stream = op.input("in", flow, TestingSource(source, batch_size=batch))
    op.output("out", build(op, stream), CountingSink())
    run_main(flow)
    return total


def w1_bytewax(count: int) -> int:
    """Bytewax with source batches of 1,000."""

    def build(op: Any, stream: Any) -> Any:
        passed = op.filter("filter", op.map("double", stream, double), is_even)
        return op.map("value", passed, value_of)

    return bytewax_run(records(count), build)


def w2_bytewax(count: int) -> int:
    """Bytewax stateful_map per key."""

    def add(total: float | None, record: Record) -> tuple[float, float]:
        now = (total or 0.0) + value_of(record)
        return now, now

    def build(op: Any, stream: Any) -> Any:
        return op.stateful_map("sum", op.key_on("key", stream, key_of), add)

    return bytewax_run(records(count), build)


def w3_bytewax(count: int, per_ms: int) -> int:
    """Bytewax fold_window on an event clock."""
    from bytewax.operators import windowing as win

    clock = win.EventClock(
        ts_getter=lambda r: datetime.fromtimestamp(time_of(r) / 1000, UTC),
        wait_for_system_duration=timedelta(milliseconds=JITTER_MS),
    )
    windower = win.TumblingWindower(
        length=timedelta(milliseconds=WINDOW_MS),
        align_to=datetime(2023, 1, 1, tzinfo=UTC),
    )

    def fold(found: list[float], record: Record) -> list[float]:
        return [found[0] + 1, found[1] + value_of(record)]

    def merge(one: list[float], other: list[float]) -> list[float]:
        return [one[0] + other[0], one[1] + other[1]]

    def build(op: Any, stream: Any) -> Any:
        keyed = op.key_on("key", stream, key_of)
        made = win.fold_window(
            "window", keyed, clock, windower, lambda: [0, 0.0], fold, merge
        )
        return made.down

    return bytewax_run(jittered(count, per_ms), build)


def w1_aiostream(count: int) -> int:
    """aiostream pipes."""
    from aiostream import pipe, stream

    async def work() -> int:
        passed = (
            stream.iterate(records(count))
            | pipe.map(double)
            | pipe.filter(is_even)
            | pipe.map(value_of)
        )
        total = 0
        async with passed.stream() as streamer:
            async for _ in streamer:
                total += 1
        return total

    return asyncio.run(work())


def w2_aiostream(count: int) -> int:
    """Sums per key in an aiostream map."""
    from aiostream import pipe, stream

    sums: dict[str, float] = {}

    def add(record: Record) -> float:
        key = key_of(record)
        sums[key] = sums.get(key, 0.0) + value_of(record)
        return sums[key]

    async def work() -> int:
        total = 0
        async with (stream.iterate(records(count)) | pipe.map(add)).stream() as results:
            async for _ in results:
                total += 1
        return total

    return asyncio.run(work())


def w4_aiostream(count: int, seconds: float, concurrency: int) -> int:
    """aiostream map with a limit of tasks, ordered."""
    from aiostream import pipe, stream

    async def wait(record: Record) -> int:
        await asyncio.sleep(seconds)
        return record[0]

    async def work() -> int:
        waited = stream.iterate(records(count)) | pipe.map(wait, task_limit=concurrency)
        return len(await stream.list(waited))

    return asyncio.run(work())


def w1_streamz(count: int) -> int:
    """Streamz nodes, pushed from the loop."""
    from streamz import Stream

    total = 0

    def add(_: float) -> None:
        nonlocal total
        total += 1

    source = Stream()
    source.map(double).filter(is_even).map(value_of).sink(add)
    for record in records(count):
        source.emit(record)
    return total


def w2_streamz(count: int) -> int:
    """Sums per key in a streamz map."""
    from streamz import Stream

    sums: dict[str, float] = {}
    total = 0

    def sum_up(record: Record) -> float:
        key = key_of(record)
        sums[key] = sums.get(key, 0.0) + value_of(record)
        return sums[key]

    def add(_: float) -> None:
        nonlocal total
        total += 1

    source = Stream()
    source.map(sum_up).sink(add)
    for record in records(count):
        source.emit(record)
    return total


# Work → its peers: the library that must be there, the name in the table, the
# function, and the part of the records it gets.
_PEERS: dict[str, list[tuple[str, str, Any, float]]] = {
    "W1": [
        ("asyncio", "asyncio.Queue, batches of 1,000", w1_queue_batches, 0.5),
        ("asyncio", "asyncio.Queue per record", w1_queue, 0.2),
        ("bytewax", "bytewax, source batches of 1,000", w1_bytewax, 0.5),
        ("aiostream", "aiostream", w1_aiostream, 0.1),
        ("streamz", "streamz", w1_streamz, 0.1),
    ],
    "W2": [
        ("asyncio", "asyncio.Queue, batches of 1,000", w2_queue_batches, 0.5),
        ("asyncio", "asyncio.Queue per record", w2_queue, 0.2),
        ("bytewax", "bytewax", w2_bytewax, 0.2),
        ("aiostream", "aiostream", w2_aiostream, 0.1),
        ("streamz", "streamz", w2_streamz, 0.1),
    ],
    "W3": [("bytewax", "bytewax fold_window", w3_bytewax, 0.05)],
    "W4": [("aiostream", "aiostream, task_limit", w4_aiostream, 1.0)],
}


def peers_of(work: str, **options: Any) -> list[System]:
    """Return the installed peers of a work.

    Args:
        work: For example ``W1``.
        options: Given to each function besides the number of records.
    """
    return [
        System(name, lambda count, run=run: run(count, **options), share)
        for library, name, run, share in _PEERS.get(work, [])
        if is_installed(library)
    ]
