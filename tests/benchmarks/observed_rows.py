"""O1, O2: what it costs to see a job: everything that shows one on, beside nothing on."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry

import aiomailbox as am
from aiomailbox.runtime import loop_watch
from tests.benchmarks.measure import OURS, Report, Row
from tests.benchmarks.records import (
    Record,
    double,
    is_even,
    key_of,
    records,
    value_of,
)

_PAIRS = 10
# What a pair compares is so many runs of each kind, one of each in turn: a machine that
# others use is faster in one second than in the next.
_TURNS = 3
_LOST_MAX = 0.03
_EVERY_S = 1.0
_OFF = am.JobConfig(stall_threshold=None, stuck_after=None)
_LOOK_S = loop_watch._LOOK_S

Build = Callable[[am.DataStream[Record]], am.DataStream[Any]]


def _w1(stream: am.DataStream[Record]) -> am.DataStream[Any]:
    return stream.map(double).filter(is_even).map(value_of)


def _w2(stream: am.DataStream[Record]) -> am.DataStream[Any]:
    return stream.key_by(key_of).aggregate(am.sum_(value_of))


async def _run(build: Build, count: int, busy: float | None) -> None:
    """Run a pipeline; with everything on, once in a second of this process.

    On a busy machine that is less often by the clock: what is on costs by the second.

    Args:
        build: Makes it of the records.
        count: How many there are.
        busy: Seconds by the clock for one of this process; None with nothing on.
    """
    config = _OFF
    if busy is not None:
        vars(loop_watch)["_LOOK_S"] = _LOOK_S * busy
        config = am.JobConfig(
            latency_interval=am.millis(round(1000 * busy)), trace_calls=True
        )
    env = am.StreamExecutionEnvironment(config=config)
    build(env.from_collection(records(count))).sink_to(_drop)
    async with env.start() as job:
        if busy is None:
            await job.result()
            return
        am.observe.prometheus(job, registry := CollectorRegistry())
        ended = asyncio.ensure_future(job.result())
        try:
            while not (await asyncio.wait([ended], timeout=_EVERY_S * busy))[0]:
                job.snapshot().to_json()
                list(registry.collect())
            ended.result()
        finally:
            # Interrupted, nobody asks any more how the job has ended.
            ended.cancel()


def _drop(value: object) -> None:
    """Take it."""


def _cpu_s(build: Build, count: int, busy: float | None) -> tuple[float, float]:
    """Return the seconds of the processor, and by the clock."""
    gc.collect()
    began, cpu = time.perf_counter(), time.process_time()
    am.run(_run(build, count, busy))
    return time.process_time() - cpu, time.perf_counter() - began


def _pair(build: Build, count: int, busy: float) -> tuple[float, float, float]:
    """Return the seconds of the processor with nothing on, with all on; and how busy it is."""
    spent_s = {False: 0.0, True: 0.0}
    for turn in range(_TURNS):
        # Who goes first takes turns, too.
        for is_on in (False, True) if turn % 2 else (True, False):
            cpu_s, took_s = _cpu_s(build, count, busy if is_on else None)
            spent_s[is_on] += cpu_s
            busy = max(1.0, took_s / cpu_s)
    return spent_s[False], spent_s[True], busy


def _report(work: str, title: str, build: Build, count: int) -> Report:
    report = Report(work, f"{title}: everything that shows a job on, beside nothing")
    spent_s, took_s = _cpu_s(build, count, None)
    busy = max(1.0, took_s / spent_s)
    on: list[float] = []
    off: list[float] = []
    for _ in range(_PAIRS):
        off_s, on_s, busy = _pair(build, count, busy)
        off.append(off_s)
        on.append(on_s)
    ratio = statistics.median(a / b for a, b in zip(off, on, strict=True))
    records = _TURNS * count
    report.rows = [
        Row(work, f"{OURS}, nothing on", records, statistics.median(off), 1.0, 1.0),
        Row(work, f"{OURS}, all on", records, statistics.median(on), ratio, ratio),
    ]
    report.judge(
        f"{OURS}: {1 - ratio:.1%} lost by processor time, median of {_PAIRS} pairs, "
        f"wanted at most {_LOST_MAX:.0%}",
        reached=1 - ratio <= _LOST_MAX,
    )
    return report


def reports(count: int) -> Iterator[Report]:
    """Yield O1 (stateless functions) and O2 (a running sum per key)."""
    try:
        # For more than a second each: what is on is paid by the second.
        yield _report("O1", "W1", _w1, 5 * count)
        yield _report("O2", "W2", _w2, 5 * count)
    finally:
        vars(loop_watch)["_LOOK_S"] = _LOOK_S
