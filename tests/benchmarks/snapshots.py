"""S1, S2: a snapshot of a million keys, and how long the event loop is held by it.

The state is that of a keyed sum. A ticker notes when it wakes up while a thread writes
the snapshot to a file, once with nothing else to do and once beside a task that updates
keys as fast as it can; then the state is read back. Collections of garbage are turned
off meanwhile, for they stop the whole interpreter. S2 is the same of state on disk, which has
fewer keys: what counts there is what is cached and buffered when the snapshot is taken.
"""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiomailbox.clock import SystemClock
from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.operators.snapshots.codec import decode_snapshot, snapshot_chunks
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.state.backends import HeapStateStore
from aiomailbox.state.descriptors import ValueStateDescriptor
from aiomailbox.state.rocksdb.store import RocksDBStateStore
from tests.benchmarks import plain
from tests.benchmarks.measure import OURS, Report, Row

_GROUPS = 128
_TICK_S = 0.001
_RUN = 1024
_HOLD_MS = 25
_SUM = ValueStateDescriptor("rolling")


@dataclass
class _Ticks:
    """How long the loop was held at most: by the clock, and by its own processor time."""

    late_s: float = 0.0
    busy_s: float = 0.0


def _store() -> HeapStateStore:
    return HeapStateStore(_GROUPS, KeyGroupRange(0, _GROUPS - 1), SystemClock())


def _write(snapshot: OperatorSnapshot, path: Path) -> None:
    with path.open("wb") as file:
        for chunk in snapshot_chunks(snapshot):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


async def _beside_ticks(
    work: Coroutine[Any, Any, None], load: Callable[[], None] | None = None
) -> tuple[float, _Ticks]:
    """Return how long some work takes, and what a ticker sees meanwhile."""
    ticks = _Ticks()
    is_over = False

    async def tick() -> None:
        before = time.thread_time()
        while not is_over:
            due = time.perf_counter() + _TICK_S
            await asyncio.sleep(_TICK_S)
            ticks.late_s = max(ticks.late_s, time.perf_counter() - due)
            now = time.thread_time()
            ticks.busy_s = max(ticks.busy_s, now - before)
            before = now

    async def update() -> None:
        while load is not None and not is_over:
            load()
            await asyncio.sleep(0)

    others = [asyncio.create_task(tick()), asyncio.create_task(update())]
    await asyncio.sleep(0.02)
    started = time.perf_counter()
    await work
    seconds = time.perf_counter() - started
    is_over = True
    await asyncio.gather(*others)
    return seconds, ticks


class _Updates:
    """Updates all keys of a store in turn, a run of them per call."""

    def __init__(
        self, store: HeapStateStore | RocksDBStateStore, keys: list[str]
    ) -> None:
        self.count = 0
        self._table = store.table(_SUM)
        self._keys = keys

    def __call__(self) -> None:
        start = self.count % len(self._keys)
        keys = self._keys[start : start + _RUN]
        sums = self._table.for_run(keys)
        for key in keys:
            sums[key] = (sums.get(key) or 0) + 1
        self.count += len(keys)


async def _measure(keys: int, path: Path) -> Report:
    report = Report("S1", f"a snapshot of {keys:,} keys, collector off")
    names = [f"key-{number * 7919 % keys}" for number in range(keys)]
    store = _store()
    store.table(_SUM).rows.update(dict.fromkeys(names, 1))
    gc.collect()
    started = time.perf_counter()
    plain.w2(keys)
    loop_s = time.perf_counter() - started
    report.rows.append(Row("S1", "plain loop of W2", keys, loop_s, 1.0))

    def add(name: str, seconds: float, ticks: _Ticks) -> None:
        row = Row("S1", f"{OURS}, {name}", keys, seconds, loop_s / seconds)
        report.rows.append(row)
        report.notes.append(
            f"{name}: the loop held {1000 * ticks.late_s:.1f} ms at most, its own "
            f"processor time between two ticks {1000 * ticks.busy_s:.1f} ms"
        )

    def judge(name: str, ticks: _Ticks) -> None:
        held = 1000 * min(ticks.late_s, ticks.busy_s + 0.005)
        report.judge(
            f"{name}: the loop held {held:.1f} ms, wanted at most {_HOLD_MS}",
            reached=held <= _HOLD_MS,
        )

    async def written() -> None:
        await asyncio.to_thread(_write, OperatorSnapshot((store.snapshot(),)), path)

    idle_s, ticks = await _beside_ticks(written())
    add("written, nothing else to do", idle_s, ticks)
    judge("written", ticks)
    report.judge(
        f"written: {idle_s / loop_s:.1f} x the plain loop, wanted at most 5",
        reached=idle_s <= 5 * loop_s,
    )
    updates = _Updates(store, names)
    alone_s, _ = await _beside_ticks(asyncio.sleep(0.5), updates)
    alone = updates.count / alone_s
    updates.count = 0
    busy_s, ticks = await _beside_ticks(written(), updates)
    add("written beside updates", busy_s, ticks)
    judge("written beside updates", ticks)
    report.notes.append(
        f"updates beside it: {updates.count / busy_s:,.0f} per second, alone {alone:,.0f}"
    )

    async def settled() -> None:
        while store.has_snapshot:
            store.settle(2048)
            await asyncio.sleep(0.01)

    settled_s, ticks = await _beside_ticks(settled(), updates)
    add("settled beside updates", settled_s, ticks)
    judge("settled beside updates", ticks)
    restored = _store()

    async def read() -> None:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            # What is read refers to the file.
            found = decode_snapshot(memoryview(data))
            for _ in restored.restoring(found.keyed):
                await asyncio.sleep(0)
            del found

    restored_s, ticks = await _beside_ticks(read())
    assert restored.estimated_keys() == keys
    add("restored", restored_s, ticks)
    judge("restored", ticks)
    # Four seconds where a plain loop does 2.5 million records per second.
    limit = 10.0
    report.judge(
        f"restored: {restored_s / loop_s:.1f} x the plain loop, wanted at most {limit}",
        reached=restored_s <= limit * loop_s,
    )
    return report


async def _measure_disk(keys: int, path: Path) -> Report:
    report = Report("S2", f"a snapshot of {keys:,} keys on disk, collector off")
    names = [f"key-{number * 7919 % keys}" for number in range(keys)]
    store = RocksDBStateStore(_GROUPS, KeyGroupRange(0, _GROUPS - 1), SystemClock())
    updates = _Updates(store, names)
    while updates.count < keys:
        updates()
    for name, load in (("nothing else to do", None), ("beside updates", updates)):
        started = time.thread_time()
        snapshot = OperatorSnapshot((store.snapshot(),))
        taken_s = time.thread_time() - started
        written = asyncio.to_thread(_write, snapshot, path)
        seconds, ticks = await _beside_ticks(written, load)
        first = report.rows[0].seconds if report.rows else seconds
        report.rows.append(Row("S2", f"{OURS}, {name}", keys, seconds, first / seconds))
        report.notes.append(
            f"{name}: taken in {1000 * taken_s:.1f} ms; the loop held "
            f"{1000 * ticks.late_s:.1f} ms at most, its own processor time between two "
            f"ticks {1000 * ticks.busy_s:.1f} ms"
        )
        held = 1000 * (taken_s + ticks.busy_s)
        report.judge(
            f"{name}: {held:.1f} ms of the loop at once, wanted at most {_HOLD_MS}",
            reached=held <= _HOLD_MS,
        )
    store.close()
    return report


def reports(keys: int) -> Iterator[Report]:
    """Measure all of it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "snapshot"
        for measure, count in ((_measure, keys), (_measure_disk, keys // 5)):
            gc.collect()
            gc.disable()
            try:
                yield asyncio.run(measure(count, path))
            finally:
                gc.enable()
