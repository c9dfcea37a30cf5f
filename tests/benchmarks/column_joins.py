"""Joins over Arrow batches, beside loops by hand."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pyarrow as pa

import aiomailbox as am
from tests.benchmarks.measure import OURS, Report, System, compare
from tests.benchmarks.records import JITTER_MS, Record, jittered

_BATCH_ROWS = 16_384
_NAMES = ["id", "key", "value", "time_ms"]
_PLAIN = "plain"
# How far a loop looks back: what comes late, and what a batch of the other side spans.
_LAG_MS = 4 * JITTER_MS
_WINDOW_MS, _NEAR_MS = 1000, 100


@cache
def tuples(count: int) -> tuple[list[Record], list[Record]]:
    """Return the records of two streams, every other one of those of all works."""
    rows = list(jittered(count))
    # Both have all keys, which come in turn.
    sides: tuple[list[Record], list[Record]] = ([], [])
    for number, row in enumerate(rows):
        sides[number // 1000 % 2].append(row)
    return sides


@cache
def batches(count: int) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Return the same records as Arrow batches."""
    first, second = (
        pa.table(
            [pa.array(column) for column in zip(*rows, strict=True)], names=_NAMES
        ).to_batches(_BATCH_ROWS)
        for rows in tuples(count)
    )
    return first, second


def _in_turn(count: int) -> Iterator[tuple[int, Record]]:
    """Yield sides and records as a job would read them, a batch of each in turn."""
    left, right = tuples(count)
    for start in range(0, max(len(left), len(right)), _BATCH_ROWS):
        for side, rows in enumerate((left, right)):
            for row in rows[start : start + _BATCH_ROWS]:
                yield side, row


def near(count: int) -> int:
    """Join records of a key that are near each other, by hand."""
    kept: tuple[Any, Any] = (defaultdict(list), defaultdict(list))
    found: list[Any] = []
    highest = swept = 0
    for side, row in _in_turn(count):
        _, key, value, time_ms = row
        others = kept[1 - side][key]
        low, high = time_ms - _NEAR_MS, time_ms + _NEAR_MS
        for place in range(bisect_left(others, (low,)), len(others)):
            other_ms, other = others[place]
            if other_ms > high:
                break
            pair = (key, value, other) if side == 0 else (key, other, value)
            found.append(pair)
        own = kept[side][key]
        if own and own[-1][0] > time_ms:
            own.insert(bisect_left(own, (time_ms,)), (time_ms, value))
        else:
            own.append((time_ms, value))
        if time_ms > highest:
            highest = time_ms
            if highest - swept > _LAG_MS:
                swept = highest
                for rows in (*kept[0].values(), *kept[1].values()):
                    del rows[: bisect_left(rows, (highest - _LAG_MS,))]
    return len(found)


def windowed(count: int) -> int:
    """Join records of a key and window, by hand."""
    windows: dict[int, dict[str, tuple[list[float], list[float]]]] = {}
    found: list[Any] = []
    highest = 0
    for side, (_, key, value, time_ms) in _in_turn(count):
        start = time_ms - time_ms % _WINDOW_MS
        window = windows.get(start)
        if window is None:
            window = windows[start] = {}
        content = window.get(key)
        if content is None:
            content = window[key] = ([], [])
        content[side].append(value)
        if time_ms > highest:
            highest = time_ms
            while windows:
                first = min(windows)
                if first + _WINDOW_MS > highest - _LAG_MS:
                    break
                _meet(windows.pop(first), found)
    for start in sorted(windows):
        _meet(windows[start], found)
    return len(found)


def _meet(window: dict[str, tuple[list[float], list[float]]], found: list[Any]) -> None:
    for key, (lefts, rights) in window.items():
        for left in lefts:
            for right in rights:
                found.append((key, left, right))


def _streams(count: int) -> tuple[Any, Any]:
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(
        am.millis(_LAG_MS)
    ).with_timestamp_assigner("time_ms")
    env = am.StreamExecutionEnvironment()
    first, second = (env.from_arrow(some, strategy) for some in batches(count))
    return first, second


def joined_near(count: int) -> int:
    """Join records of a key that are near each other."""
    left, right = _streams(count)
    join = left.key_by("key").interval_join(right.key_by("key"))
    pairs = join.between(am.millis(-_NEAR_MS), am.millis(_NEAR_MS))
    return am.run(pairs.select("key", "left.value", other="right.value").count())


def joined_windows(count: int) -> int:
    """Join records of a key and window."""
    left, right = _streams(count)
    join = left.join(right).where("key").equal_to("key")
    pairs = join.window(am.TumblingEventTimeWindows.of(am.millis(_WINDOW_MS)))
    return am.run(pairs.select("key", "left.value", other="right.value").count())


def reports(count: int, rounds: int) -> Iterator[Report]:
    """Measure both."""
    yield _report(
        "J1c",
        f"interval join, {_NEAR_MS} ms either way: columns",
        near,
        joined_near,
        (count, rounds),
    )
    yield _report(
        "J2c",
        f"join in tumbling windows of {_WINDOW_MS} ms: columns",
        windowed,
        joined_windows,
        (count, rounds),
    )


def _report(
    name: str,
    title: str,
    by_hand: Callable[[int], int],
    ours: Callable[[int], int],
    size: tuple[int, int],
) -> Report:
    count, rounds = size
    batches(count)
    assert by_hand(count) == ours(count), "both find the same pairs"
    report = Report(name, title)
    systems = [System(_PLAIN, by_hand), System(OURS, ours)]
    report.rows = compare(name, systems, count, rounds, computes=True)
    report.at_least(3.0, _PLAIN)
    return report
