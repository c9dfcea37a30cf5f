"""The jobs of a program and their last five minutes, for its page.

Theory of operation: every few seconds a snapshot of each running job becomes one row of
numbers, and the rows of five minutes are kept: what grows is shown as a rate. A job is
referenced until it has ended; then its last snapshot and its rows are what is left of it,
for as long as it is among the last ones.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import deque
from collections.abc import Iterator
from typing import Any, Final
from weakref import ref

from aiomailbox.api.job import JobClient, LatestSnapshot, held_jobs, watch_jobs
from aiomailbox.clock import SystemClock
from aiomailbox.metrics.catalogue import (
    LATENCY_FROM,
    HistogramValue,
    MetricValue,
)
from aiomailbox.observe.reading import ENDED
from aiomailbox.runtime.job_snapshot import JobSnapshot, OperatorSummary

_SAMPLE_S: Final = 3.0
_ROWS_MAX: Final = 100
# What has ended; what runs is held by the program itself.
_ENDED_MAX: Final = 20
# All pages share one look.
_SAME_S: Final = 0.5

Shown = JobClient | LatestSnapshot

# What is taken of an operator as it is, by what the page calls it.
_GAUGES: Final = {
    "lag": "watermark_lag",
    "state_bytes": "state_bytes",
    "state_keys": "state_keys",
    "late": "num_late_records_dropped",
    "dead_letters": "dead_letters",
    "in_flight": "in_flight",
}
_TIMES: Final = ("busy", "backpressured", "idle")
_CHECKPOINTS: Final = {
    "checkpoint_ms": "last_checkpoint_duration_ms",
    "checkpoint_bytes": "last_checkpoint_size_bytes",
}


class JobHistory:
    """One job: its rows, and what it was at its end.

    Args:
        number: Its number among those of the program, from 1.
        job: The job.
    """

    def __init__(self, number: int, job: Shown) -> None:
        self.number = number
        self.job: Shown | None = job
        self._clock = SystemClock()
        self._started_ms: float = self._clock.now_ms()
        self._rows: deque[array[float]] = deque(maxlen=_ROWS_MAX)
        self._keys: tuple[str, ...] = ()
        self._counts: dict[str, float] = {}
        self._taken_s = -math.inf
        self._row_ms = 0
        self._json = b""
        self._tree = ""
        self._facts: dict[str, Any] = {}

    def json(self, *, fresh: bool = False) -> bytes:
        """Return the last snapshot as JSON, empty before the first."""
        now_s = self._clock.monotonic()
        if self.job is not None and (fresh or now_s - self._taken_s > _SAME_S):
            self._look(now_s)
        return self._json

    def await_tree(self) -> str:
        """Return what the job waits for, or waited for at its end."""
        return self._tree if self.job is None else self.job.await_tree()

    def facts(self) -> dict[str, Any]:
        """Return what a list of jobs says of it, as of the last look."""
        if not self._facts and self.job is not None:
            self._look(self._clock.monotonic())
        return {"number": self.number, **self._facts}

    def series(self, since_ms: float) -> dict[str, Any]:
        """Return the rows after a time: ``times`` and, by name, ``series``."""
        rows = list(self._rows)
        later = [row for row in rows if row[0] > since_ms]
        return {
            "times": [row[0] for row in later],
            "series": {
                key: [_rounded(row[place]) for row in later]
                for place, key in enumerate(self._keys, 1)
                if any(not math.isnan(row[place]) for row in rows)
            },
        }

    def sample(self) -> None:
        """Add a row, and let go of the job if it has ended."""
        if self.job is None:
            return
        snapshot = self._look(self._clock.monotonic())
        if snapshot is None or not snapshot.operators:
            return
        if snapshot.taken_at_ms > self._row_ms:
            self._add(snapshot)
        if snapshot.state in ENDED and isinstance(self.job, JobClient):
            self._tree = self.job.await_tree()
            self.job = None

    def _look(self, now_s: float) -> JobSnapshot | None:
        assert self.job is not None, "a job that has ended does not change"
        snapshot = self.job.snapshot()
        if snapshot is None:
            return None
        self._taken_s, self._json = now_s, snapshot.to_json()
        # The time of a job that has ended stands still, and that of its snapshot does not.
        began_ms = snapshot.taken_at_ms - snapshot.duration_s * 1000
        self._started_ms = min(self._started_ms, began_ms)
        self._facts = {
            "job": snapshot.job,
            "state": snapshot.state,
            "started_ms": self._started_ms,
            "duration_s": snapshot.duration_s,
            "restarts": snapshot.restarts,
            "failures": len(snapshot.failures),
            "error": snapshot.failures[-1].error if snapshot.failures else "",
        }
        return snapshot

    def _add(self, snapshot: JobSnapshot) -> None:
        elapsed_s = (snapshot.taken_at_ms - self._row_ms) / 1000
        counts: dict[str, float] = {}
        values: dict[str, float] = {}
        for key, number, grows in _numbers(snapshot):
            if not grows:
                values[key] = number
                continue
            counts[key] = number
            before = self._counts.get(key)
            # A count that fell began again, with its task.
            grown = math.nan if before is None else number - before
            values[key] = (number if grown < 0 else grown) / elapsed_s
        if tuple(values) != self._keys:
            # Of another job, which tells of itself in the same place.
            self._keys = tuple(values)
            self._rows.clear()
        self._rows.append(array("d", [snapshot.taken_at_ms, *values.values()]))
        self._counts, self._row_ms = counts, snapshot.taken_at_ms


def _numbers(snapshot: JobSnapshot) -> Iterator[tuple[str, float, bool]]:
    """Yield every number of a row: its name, itself, and whether its growth is meant."""
    operators = snapshot.operators
    read = sum(one.num_records_out for one in operators if one.is_source)
    written = sum(one.num_records_in for one in operators if one.is_sink)
    yield "job in", read, True
    yield "job out", written, True
    latencies = {one.name: _latency(one) for one in snapshot.operators}
    known = [value for value in latencies.values() if not math.isnan(value)]
    yield "job latency", max(known, default=math.nan), False
    for name, metric in _CHECKPOINTS.items():
        yield f"job {name}", _number(snapshot.checkpoint_metrics.get(metric)), False
    sums: dict[str, list[float]] = {name: [] for name in _GAUGES}
    for one in snapshot.operators:
        yield f"in {one.name}", one.num_records_in, True
        yield f"out {one.name}", one.num_records_out, True
        for name, metric in _GAUGES.items():
            number = _number(one.metrics.get(metric))
            if not math.isnan(number):
                sums[name].append(number)
            yield f"{name} {one.name}", number, False
        yield f"latency {one.name}", latencies[one.name], False
        hottest = one.hot_keys[0].share if one.hot_keys else math.nan
        yield f"hot {one.name}", hottest, False
    for name, numbers in sums.items():
        whole = max(numbers, default=math.nan) if name == "lag" else sum(numbers)
        yield f"job {name}", whole if numbers else math.nan, False
    for vertex in snapshot.vertices:
        for time in _TIMES:
            share = _number(vertex.metrics.get(f"{time}_time_ms_per_second")) / 1000
            yield f"{time} {vertex.vertex}", share, False


def _latency(one: OperatorSummary) -> float:
    """Return the latency from all sources that 99 % do not exceed, in milliseconds."""
    return _number(
        HistogramValue.sum_of(
            value
            for name, value in one.metrics.items()
            if name.startswith(LATENCY_FROM) and isinstance(value, HistogramValue)
        ).p99
    )


def _number(value: MetricValue) -> float:
    return value if isinstance(value, int | float) else math.nan


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 3)


class ProgramHistory:
    """The jobs of a page: one that it was given, or all of this program.

    Args:
        only: The job, or None for all.
    """

    def __init__(self, only: Shown | None) -> None:
        self._jobs: list[JobHistory] = []
        self._number = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        if only is not None:
            self.add(only)
            return
        for job in held_jobs():
            self.add(job)
        watch_jobs(self)

    def add(self, job: Shown) -> None:
        """Keep the history of a job from now on."""
        self._number += 1
        # A snapshot of one that is just being made cannot be taken yet.
        self._jobs.append(JobHistory(self._number, job))
        over = [one for one in self._jobs if one.job is None]
        for one in over[:-_ENDED_MAX]:
            self._jobs.remove(one)

    def begin(self) -> None:
        """Take samples from now on, on the running loop; again for each request."""
        loop = asyncio.get_running_loop()
        # A timer that repeats would never let virtual time come to an end.
        if self._loop is loop or getattr(loop, "clock", None) is not None:
            return
        self._loop = loop
        _tick(ref(self), loop)

    def sample(self) -> None:
        """Take a sample of each job."""
        for one in list(self._jobs):
            one.sample()

    def find(self, number: int | None) -> JobHistory | None:
        """Return a job by its number, the one that was started last for None."""
        for one in reversed(self._jobs):
            if number is None or one.number == number:
                return one if one.json() else None
        return None

    def listed(self) -> list[dict[str, Any]]:
        """Return all jobs as values for JSON, the newest first."""
        return [one.facts() for one in reversed(self._jobs)]


def _tick(history: ref[ProgramHistory], loop: asyncio.AbstractEventLoop) -> None:
    one = history()
    if one is None or one._loop is not loop:
        return
    loop.call_later(_SAMPLE_S, _tick, history, loop)
    one.sample()
