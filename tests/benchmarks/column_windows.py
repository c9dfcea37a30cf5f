"""Sliding and session windows over Arrow batches, beside loops by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import pyarrow as pa

import aiomailbox as am
from tests.benchmarks.measure import OURS, Report, System, compare
from tests.benchmarks.plain import sliding_of
from tests.benchmarks.records import JITTER_MS, RECORDS_PER_MS, Record, jittered

_BATCH_ROWS = 16_384
_NAMES = ["id", "key", "value", "time_ms"]
_PLAIN = "plain"
_SIZE_MS, _SLIDE_MS, _GAP_MS = 10_000, 1000, 3000
# After so many records all keys pause, for longer than a gap and what comes late.
_BUSY, _PAUSE_MS = 10_000 * RECORDS_PER_MS, 6000


@cache
def tuples(count: int, *, pauses: bool) -> list[Record]:
    """Return records that come up to two seconds late, with pauses or without."""
    rows = list(jittered(count))
    if not pauses:
        return rows
    return [
        (number, key, value, at + number // _BUSY * _PAUSE_MS)
        for number, key, value, at in rows
    ]


@cache
def batches(count: int, *, pauses: bool) -> list[pa.RecordBatch]:
    """Return the same records as Arrow batches."""
    rows = tuples(count, pauses=pauses)
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    return pa.table(columns, names=_NAMES).to_batches(_BATCH_ROWS)


def sessions(rows: list[Record]) -> int:
    """Count and sum per key and session, by hand; no record here joins two of them."""
    found: dict[str, list[list[float]]] = {}
    results = highest = swept = 0
    for _, key, value, time_ms in rows:
        own = found.get(key)
        if own is None:
            own = found[key] = []
        for session in reversed(own):
            if session[0] - _GAP_MS <= time_ms <= session[1]:
                if time_ms + _GAP_MS > session[1]:
                    session[1] = time_ms + _GAP_MS
                elif time_ms < session[0]:
                    session[0] = time_ms
                session[2] += 1
                session[3] += value
                break
        else:
            own.append([time_ms, time_ms + _GAP_MS, 1, value])
        if time_ms > highest:
            highest = time_ms
            if highest - swept > _GAP_MS:
                swept = highest
                results += _end(found, highest - JITTER_MS)
    return results + sum(map(len, found.values()))


def _end(found: dict[str, list[list[float]]], watermark_ms: int) -> int:
    results = 0
    for own in found.values():
        while own and own[0][1] <= watermark_ms:
            own.pop(0)
            results += 1
    return results


def windowed(count: int, *, assigner: Any, pauses: bool) -> int:
    """Count and sum per key and window."""
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.millis(JITTER_MS))
    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(
        batches(count, pauses=pauses), strategy.with_timestamp_assigner("time_ms")
    )
    both = am.aggregates(n=am.count(), total=am.sum_("value"))
    return am.run(stream.key_by("key").window(assigner).aggregate(both).count())


def reports(count: int, rounds: int) -> Iterator[Report]:
    """Measure both."""
    size, slide, gap = map(am.millis, (_SIZE_MS, _SLIDE_MS, _GAP_MS))
    yield _report(
        "W9c",
        "sliding windows of 10 s, one per second, count and sum per key: columns",
        partial(sliding_of, size_ms=_SIZE_MS, slide_ms=_SLIDE_MS),
        partial(windowed, assigner=am.SlidingEventTimeWindows.of(size, slide)),
        (count, rounds),
        pauses=False,
    )
    yield _report(
        "W10c",
        "sessions with a gap of 3 s, count and sum per key: columns",
        sessions,
        partial(windowed, assigner=am.EventTimeSessionWindows.with_gap(gap)),
        (count, rounds),
        pauses=True,
    )


def _report(
    name: str,
    title: str,
    by_hand: Callable[[list[Record]], int],
    ours: Callable[..., int],
    size: tuple[int, int],
    *,
    pauses: bool,
) -> Report:
    count, rounds = size
    batches(count, pauses=pauses)
    rows = tuples(count, pauses=pauses)
    assert by_hand(rows) == ours(count, pauses=pauses), "both find the same windows"
    report = Report(name, title)
    systems = [
        System(_PLAIN, lambda n: by_hand(tuples(n, pauses=pauses))),
        System(OURS, lambda n: ours(n, pauses=pauses)),
    ]
    report.rows = compare(name, systems, count, rounds, computes=True)
    report.at_least(3.0, _PLAIN)
    return report
