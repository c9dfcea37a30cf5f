"""Records of all sizes between processes for minutes: all arrive, memory stays flat.

Two processes send each other records of 0 bytes to beyond the size at which they are put
together on disk, with random pauses, so that credit is short now and plentiful then. At
the end everything that was sent is accounted for, once and in order.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from aiomailbox.connectors.collection import IteratorSource
from aiomailbox.records.spanning import SPILL_THRESHOLD_BYTES

pytestmark = pytest.mark.real_time

MIB = 1024 * 1024
# What a worker may hold at one time varies with the records that meet there: up to six
# of some MiB, each in pieces and whole. A record of the smallest size that was kept for
# ever would show within minutes.
GROWTH_BYTES_MAX = 64 * MIB
WARM_UP_SHARE = 0.2
KEYS = 64
TOTALS = struct.Struct(">qqqQ")


class Parcel(NamedTuple):
    """What is sent; the last one of an origin has number -1 and holds its totals."""

    origin: int
    number: int
    check: int
    content: bytes


class Receipt(NamedTuple):
    """What the parent is told of a parcel that has come through twice."""

    origin: int
    number: int
    check: int
    size_bytes: int
    totals: bytes


def sizes(rng: random.Random) -> Iterator[int]:
    """0 bytes to 5 MB, most of them small, and a few that go to disk."""
    while True:
        kind = rng.random()
        if kind < 0.1:
            yield 0
        elif kind < 0.9:
            yield rng.randrange(4_000)
        elif kind < 0.98:
            yield rng.randrange(100_000)
        elif kind < 0.9985:
            yield rng.randrange(5_000_000)
        else:
            yield SPILL_THRESHOLD_BYTES + rng.randrange(MIB)


def parcels(origin: int, seconds: float) -> Iterator[Parcel]:
    """Send until the time is up and one has gone to disk, then the totals."""
    rng = random.Random(origin)
    block = rng.randbytes(8 * MIB)
    count = total_bytes = checks = 0
    end = time.monotonic() + seconds
    has_spilled = False
    for size_bytes in sizes(rng):
        if has_spilled and time.monotonic() > end:
            break
        has_spilled = has_spilled or size_bytes >= SPILL_THRESHOLD_BYTES
        start = rng.randrange(len(block) - size_bytes)
        content = block[start : start + size_bytes]
        check = zlib.crc32(content)
        yield Parcel(origin, count, check, content)
        count += 1
        total_bytes += size_bytes
        checks ^= check * (count + 1)
    totals = TOTALS.pack(count, count * (count - 1) // 2, total_bytes, checks)
    yield Parcel(origin, -1, zlib.crc32(totals), totals)


class Inspection:
    """Looks into every parcel, and that those of a key come in order."""

    def __init__(self, spread: int) -> None:
        self._spread = spread
        self._last: dict[tuple[int, int], int] = {}

    def key(self, parcel: Parcel) -> int:
        return parcel.number * self._spread % KEYS

    def __call__(self, parcel: Parcel) -> Parcel:
        if zlib.crc32(parcel.content) != parcel.check:
            raise AssertionError(f"{parcel[:3]} was changed on its way")
        if parcel.number >= 0:
            place = parcel.origin, self.key(parcel)
            last = self._last.get(place, -1)
            if parcel.number <= last:
                raise AssertionError(f"{parcel[:3]} came after {last}")
            self._last[place] = parcel.number
        return parcel


async def dawdle(parcel: Parcel) -> Parcel:
    """Be slow now and then: credit runs out, and what waits is let go at once."""
    chance = zlib.crc32(b"%d %d" % parcel[:2])
    if not chance % 200:
        await asyncio.sleep(chance % 97 / 1000)
    return parcel


def count_segments_at_the_end(directory: str) -> Callable[[Parcel], Parcel]:
    """Let each worker write down, when its pool goes, whether all is back in it."""
    is_watching = False

    def watch(parcel: Parcel) -> Parcel:
        nonlocal is_watching
        if not is_watching:
            is_watching = True
            _watch_pools(directory)
        return parcel

    return watch


def _watch_pools(directory: str) -> None:
    import os

    from aiomailbox.memory.local_pool import NetworkBufferPool

    destroy = NetworkBufferPool.destroy

    def note_and_destroy(pool: NetworkBufferPool) -> None:
        if pool.total_segments:
            found = {
                "total": pool.total_segments,
                "available": pool.available_segments,
                "leaks": [str(leak) for leak in pool.leaks()],
            }
            path = Path(directory) / f"{os.getpid()}.json"
            path.write_text(json.dumps(found))
        destroy(pool)

    NetworkBufferPool.destroy = note_and_destroy  # type: ignore[method-assign]


class Tally:
    """The parent's books."""

    def __init__(self) -> None:
        self.seen: dict[int, bytearray] = {}
        self.totals: dict[int, tuple[int, ...]] = {}
        self.sums: Counter[int] = Counter()
        self.bytes: Counter[int] = Counter()
        self.checks: Counter[int] = Counter()
        self.spilled = 0

    def __call__(self, receipt: Receipt) -> None:
        origin, number, check, size_bytes, totals = receipt
        if totals:
            assert origin not in self.totals
            self.totals[origin] = TOTALS.unpack(totals)
            return
        seen = self.seen.setdefault(origin, bytearray())
        if number >= len(seen):
            seen += bytes(number + 1000 - len(seen))
        assert not seen[number], f"{receipt} came twice"
        seen[number] = 1
        self.sums[origin] += number
        self.bytes[origin] += size_bytes
        self.checks[origin] ^= check * (number + 2)
        self.spilled += size_bytes > SPILL_THRESHOLD_BYTES

    @property
    def count(self) -> int:
        return sum(map(sum, self.seen.values()))

    def check(self) -> None:
        assert sorted(self.totals) == [1, 2]
        for origin, totals in self.totals.items():
            count = sum(self.seen[origin])
            found = count, self.sums[origin], self.bytes[origin], self.checks[origin]
            assert found == totals, origin


class MemoryWatch:
    """What the workers hold, every half second."""

    def __init__(self, traces: Any, tally: Tally, every_s: float) -> None:
        self._traces = traces
        self._tally = tally
        self._every_s = every_s
        self.samples: dict[int, list[int]] = {}

    async def run(self) -> None:
        began = told = time.monotonic()
        while True:
            await asyncio.sleep(0.5)
            now = time.monotonic()
            if not self._tally.seen:
                # Interpreters take their time to start; the sources begin after that.
                began = now
                continue
            for worker in self._traces.workers():
                try:
                    held = worker.memory_info().rss
                except psutil.Error:
                    continue
                self.samples.setdefault(worker.pid, []).append(held)
            if now - told >= self._every_s:
                told = now
                held_mib = [held[-1] // MIB for held in self.samples.values()]
                print(
                    f"soak: {now - began:5.0f} s, {self._tally.count:,} records, "
                    f"{sum(self._tally.bytes.values()) / MIB:,.0f} MiB, workers hold "
                    f"{held_mib} MiB",
                    flush=True,
                )

    def check(self) -> dict[int, tuple[int, int]]:
        """Return MiB at most in the first and the last third after the warm-up."""
        found = {}
        for pid, samples in self.samples.items():
            # Shares of what was seen: who looks may have had no turn for some seconds.
            held = samples[int(WARM_UP_SHARE * len(samples)) :]
            third = -(-len(held) // 3)
            first, last = max(held[:third]), max(held[-third:])
            found[pid] = first // MIB, last // MIB
            assert last <= first + GROWTH_BYTES_MAX, found
        return found


async def soak(env: Any, traces: Any, notes: Path, minutes: float) -> None:
    """Run the job for so long, and check everything at its end."""
    seconds = 60 * minutes
    first, second = Inspection(1), Inspection(37)
    tally = Tally()

    def source(origin: int) -> Any:
        return env.from_source(IteratorSource(lambda: parcels(origin, seconds)))

    (
        source(1)
        .union(source(2))
        .key_by(first.key)
        .map(first)
        .map(count_segments_at_the_end(str(notes)))
        .map(dawdle)
        .key_by(second.key)
        .map(second)
        .map(dawdle)
        .map(
            lambda parcel: Receipt(
                *parcel[:3],
                len(parcel.content),
                parcel.content if parcel.number < 0 else b"",
            )
        )
        .sink_to(tally)
    )
    watch = MemoryWatch(traces, tally, max(5.0, seconds / 20))
    sampling = asyncio.get_running_loop().create_task(watch.run())
    try:
        async with asyncio.timeout(2 * seconds + 240):
            await env.execute("soak")
    finally:
        sampling.cancel()
    tally.check()
    held = watch.check()
    assert len(held) == 2
    assert tally.spilled
    traces.check_none()
    pools = [json.loads(path.read_text()) for path in notes.glob("*.json")]
    assert len(pools) == 2
    for pool in pools:
        assert pool["available"] == pool["total"], pool
        assert not pool["leaks"]
    print(
        f"soak: {tally.count:,} records with "
        f"{sum(tally.bytes.values()) / MIB:,.0f} MiB in {seconds:.0f} s, "
        f"{tally.spilled} of them through a file; workers held at most (first third, "
        f"last third) {list(held.values())} MiB; none lost, none twice, all "
        f"{sum(pool['total'] for pool in pools)} segments back, nothing left",
        flush=True,
    )


@pytest.mark.timeout(300)
async def test_records_of_all_sizes_in_both_directions_for_a_while(
    env: Any, traces: Any, tmp_path: Path
) -> None:
    await soak(env, traces, tmp_path, 8 / 60)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_records_of_all_sizes_in_both_directions_for_minutes(
    env: Any, traces: Any, tmp_path: Path, request: Any
) -> None:
    await soak(env, traces, tmp_path, request.config.getoption("minutes"))
