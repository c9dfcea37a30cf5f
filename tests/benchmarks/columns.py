"""Pipelines that are written by field names, over Arrow batches, beside loops by hand.

"Plain" loops over tuples that are there already; "plain from Arrow" has to make them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import aiomailbox as am
from tests.benchmarks import plain
from tests.benchmarks.column_peers import column_peers
from tests.benchmarks.measure import OURS, Report, System, compare
from tests.benchmarks.records import (
    JITTER_MS,
    WINDOW_MS,
    Record,
    jittered,
    records,
)

_BATCH_ROWS = 16_384
_NAMES = ["id", "key", "value", "time_ms"]
_PLAIN = "plain"
_FROM_ARROW = "plain from Arrow"
_READ = f"{OURS}, results read"
# Works whose target is smaller, and not set beside a loop that makes tuples.
_SMALLER = {"W9c", "W10c"}
# Works whose results are only counted, unless they are asked for.
_READABLE = {"W2c", "W3c"}


@cache
def batches(count: int, *, late: bool) -> list[pa.RecordBatch]:
    """Return the records of the row works as Arrow batches."""
    rows = list(jittered(count) if late else records(count))
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    return pa.table(columns, names=_NAMES).to_batches(_BATCH_ROWS)


@cache
def tuples(count: int, *, late: bool) -> list[Record]:
    """Return the same records as tuples."""
    return list(jittered(count) if late else records(count))


def made(count: int, *, late: bool) -> Iterator[Record]:
    """Yield the tuples, made of the batches."""
    for batch in batches(count, late=late):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def stream(count: int, *, late: bool) -> am.DataStream[Any]:
    """Return the records as a stream of columns."""
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.millis(JITTER_MS))
    env = am.StreamExecutionEnvironment()
    return env.from_arrow(
        batches(count, late=late),
        strategy.with_timestamp_assigner("time_ms") if late else None,
    )


def w1(count: int) -> int:
    """Filter, arithmetic, count, by expressions."""
    even = pc.equal(pc.bit_wise_and(pc.field("id"), 1), 0)
    chosen = stream(count, late=False).filter(even)
    return am.run(chosen.select(value=pc.field("value") * 2).count())


def w2(count: int, *, read: bool = False) -> int:
    """Sum up per key."""
    keyed = stream(count, late=False).key_by("key")
    return _counted(keyed.aggregate(am.sum_("value")), read=read)


def windowed(count: int, assigner: Any, *, read: bool = False) -> int:
    """Count and sum per key and window."""
    keyed = stream(count, late=True).key_by("key").window(assigner)
    both = am.aggregates(n=am.count(), total=am.sum_("value"))
    return _counted(keyed.aggregate(both), read=read)


def _counted(results: am.DataStream[Any], *, read: bool) -> int:
    """Count results; where they are read, their columns have to be made."""
    if not read:
        return am.run(results.count())

    async def count() -> int:
        return sum([batch.num_rows async for batch in results.arrow_batches()])

    return am.run(count())


def reports(count: int, rounds: int, *, peers: bool) -> Iterator[Report]:
    """Measure all of them."""
    tumbling = am.TumblingEventTimeWindows.of(am.millis(WINDOW_MS))
    sliding = am.SlidingEventTimeWindows.of(am.seconds(10), am.seconds(1))
    sessions = am.EventTimeSessionWindows.with_gap(am.seconds(3))
    works: list[tuple[str, str, bool, Callable[..., int], Callable[..., int]]] = [
        ("W1c", "filter, arithmetic, count", False, plain.w1_of, w1),
        ("W2c", "running sum per key, every update", False, plain.w2_of, w2),
        (
            "W3c",
            "1 s tumbling windows, count and sum per key",
            True,
            plain.w3_of,
            partial(windowed, assigner=tumbling),
        ),
        (
            "W9c",
            "sliding windows of 10 s, one per second, count and sum per key",
            True,
            lambda rows: plain.sliding_of(rows, 10_000, 1000),
            lambda n: windowed(n, sliding),
        ),
        (
            "W10c",
            "sessions, gap of 3 s, count and sum per key",
            True,
            lambda rows: plain.sessions_of(rows, 3000),
            lambda n: windowed(n, sessions),
        ),
    ]
    for name, title, late, by_hand, ours in works:
        systems = column_peers(name, partial(batches, late=late)) if peers else []
        yield _report(name, title, late, by_hand, ours, systems, count, rounds)


def _report(
    name: str,
    title: str,
    late: bool,
    by_hand: Callable[..., int],
    ours: Callable[..., int],
    peers: list[System],
    count: int,
    rounds: int,
) -> Report:
    for each in (batches, tuples):
        each(count, late=late)
    if name in _READABLE:
        peers = [System(_READ, partial(ours, read=True)), *peers]
    report = Report(name, f"{title}: columns")
    systems = [
        System(_PLAIN, lambda n: by_hand(tuples(n, late=late))),
        System(_FROM_ARROW, lambda n: by_hand(made(n, late=late))),
        System(OURS, ours),
        *peers,
    ]
    report.rows = compare(name, systems, count, rounds, computes=True)
    if name in _SMALLER:
        report.at_least(3.0, _PLAIN)
        return report
    report.at_least(4.0, _PLAIN)
    ratio = report.row(_FROM_ARROW).seconds / report.row().seconds
    report.judge(
        f"{OURS}: {ratio:.1f} x {_FROM_ARROW}, wanted at least 20", reached=ratio >= 20
    )
    return report
