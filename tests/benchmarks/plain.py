"""The loops that one would write by hand for the same work, without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

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


def w1(count: int) -> int:
    """Map, filter, map, count."""
    return w1_of(records(count))


def w1_of(rows: Iterable[Record]) -> int:
    """Do so with records that there are."""
    passed = 0
    for record in rows:
        mapped = double(record)
        if is_even(mapped):
            value_of(mapped)
            passed += 1
    return passed


def w2(count: int) -> int:
    """Sum up per key; each new sum is a result."""
    return w2_of(records(count))


def w2_of(rows: Iterable[Record]) -> int:
    """Do so with records that there are."""
    sums: dict[str, float] = {}
    get = sums.get
    updates = 0
    for record in rows:
        key = key_of(record)
        sums[key] = get(key, 0.0) + value_of(record)
        updates += 1
    return updates


def w3(count: int, per_ms: int) -> int:
    """Count and sum per key and second; a window ends when the watermark passes."""
    return w3_of(jittered(count, per_ms))


def w3_of(rows: Iterable[Record]) -> int:
    """Do so with records that there are."""
    windows: dict[int, dict[str, list[float]]] = {}
    results = 0
    highest = 0
    next_end = 0
    for record in rows:
        key, time_ms = key_of(record), time_of(record)
        start = time_ms - time_ms % WINDOW_MS
        window = windows.get(start)
        if window is None:
            window = windows[start] = {}
            next_end = min(windows) + WINDOW_MS
        content = window.get(key)
        if content is None:
            window[key] = [1, value_of(record)]
        else:
            content[0] += 1
            content[1] += value_of(record)
        if time_ms > highest:
            highest = time_ms
            while windows and next_end <= highest - JITTER_MS:
                results += len(windows.pop(next_end - WINDOW_MS))
                next_end = min(windows, default=0) + WINDOW_MS
    return results + sum(map(len, windows.values()))


def sliding_of(rows: Iterable[Record], size_ms: int, slide_ms: int) -> int:
    """Count and sum per key and sliding window; the number of results."""
    windows: dict[int, dict[str, list[float]]] = {}
    results = highest = 0
    first_end = float("inf")
    for _, key, value, time_ms in rows:
        last = time_ms - time_ms % slide_ms
        for start in range(last, last - size_ms, -slide_ms):
            window = windows.get(start)
            if window is None:
                window = windows[start] = {}
                first_end = min(first_end, start + size_ms)
            content = window.get(key)
            if content is None:
                window[key] = [1, value]
            else:
                content[0] += 1
                content[1] += value
        if time_ms > highest:
            highest = time_ms
            while first_end <= highest - JITTER_MS:
                results += len(windows.pop(int(first_end) - size_ms))
                first_end = min(windows, default=float("inf")) + size_ms
    return results + sum(map(len, windows.values()))


def sessions_of(rows: Iterable[Record], gap_ms: int) -> int:
    """Count and sum per key and session; the number of sessions."""
    open_sessions: dict[str, list[float]] = {}
    results = 0
    for record in rows:
        key, time_ms, value = key_of(record), time_of(record), value_of(record)
        session = open_sessions.get(key)
        if session is not None and session[0] - gap_ms < time_ms < session[1]:
            session[0] = min(session[0], time_ms)
            session[1] = max(session[1], time_ms + gap_ms)
            session[2] += 1
            session[3] += value
        else:
            results += session is not None
            open_sessions[key] = [time_ms, time_ms + gap_ms, 1, value]
    return results + len(open_sessions)


async def w4(count: int, seconds: float, concurrency: int) -> int:
    """Bare workers over one iterator; results at the place of their record."""
    source = enumerate(records(count))
    results: list[int | None] = [None] * count

    async def worker() -> None:
        for index, record in source:
            await asyncio.sleep(seconds)
            results[index] = record[0]

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())
    return len(results)
