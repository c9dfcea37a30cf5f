"""Reads the snapshots of jobs from the thread of an exporter.

Theory of operation: numbers of two jobs must not have the same labels: Prometheus would
take one for the other, and programs that add them up would count twice. So a job replaces
one of its name that has ended, and two that run are numbered, as operators are. One that
has ended is exported for five minutes more, so that its last numbers are scraped.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from concurrent.futures import Future, TimeoutError as LateError
from typing import Final, NamedTuple

import msgspec

from aiomailbox.api.job import JobClient, LatestSnapshot
from aiomailbox.clock import SystemClock
from aiomailbox.graph.job_graph import free_name
from aiomailbox.metrics.catalogue import (
    DECLARED,
    LATENCY,
    LATENCY_FROM,
    Merge,
    Metric,
    MetricKind,
    MetricScope,
    MetricValue,
)
from aiomailbox.runtime.config import ENDED as ENDED_STATES
from aiomailbox.runtime.job_snapshot import JobSnapshot

_WAIT_S: Final = 5.0
_SAME_S: Final = 0.1
# As long as Prometheus shows the last value of what it does not find any more.
_ENDED_S: Final = 300.0
ENDED: Final = frozenset(state.value for state in ENDED_STATES)


class JobReader:
    """One job, and the loop that it runs on.

    Made on the job's loop. A loop that is blocked for more than a few seconds is not waited
    for: the last snapshot is returned again.

    Args:
        job: The job.

    Attributes:
        label: What it is called among those that are exported; None before it has a
            name.
        ended_s: When it was seen to have ended, seconds; None while it runs.
    """

    def __init__(self, job: JobClient | LatestSnapshot) -> None:
        self.job: JobClient | LatestSnapshot = job
        self.label: str | None = None
        self.ended_s: float | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._last: JobSnapshot | None = job.snapshot()

    @property
    def name(self) -> str | None:
        """The job's name, None before it is known; from any thread."""
        job = self.job
        if isinstance(job, JobClient):
            return job.name
        seen = job.snapshot()
        return None if seen is None else seen.job

    def is_followed_by(self, other: JobReader) -> bool:
        """Whether another job has the same name."""
        return other.job is not self.job and other.name == self.name

    def look(self, now_s: float) -> None:
        """Notice that the job has ended; from any thread."""
        job = self.job
        if isinstance(job, JobClient):
            state = job.state.value
        else:
            seen = job.snapshot()
            state = "" if seen is None else seen.state
        if state not in ENDED:
            # Another job may report to the same `LatestSnapshot`.
            self.ended_s = None
        elif self.ended_s is None:
            self.ended_s = now_s

    def read(self) -> JobSnapshot | None:
        """Return a snapshot of the job, None if there is none; from any thread."""
        if self._loop.is_closed():
            return self._last
        if threading.get_ident() == self._thread:
            self._last = self.job.snapshot()
            return self._last
        result: Future[JobSnapshot | None] = Future()

        def answer() -> None:
            if result.set_running_or_notify_cancel():
                result.set_result(self.job.snapshot())

        try:
            self._loop.call_soon_threadsafe(answer)
            self._last = result.result(_WAIT_S)
        except (RuntimeError, LateError):
            # The loop is closed, or held: what is known is all there is.
            result.cancel()
        return self._last


class SharedJobs:
    """The jobs of one exporter; several may share a registry or a meter."""

    def __init__(self) -> None:
        self._readers: list[JobReader] = []
        self._clock = SystemClock()
        self._read_s = -math.inf
        self._read: list[JobReader] = []
        self._last: list[JobSnapshot] = []

    def add(self, job: JobClient | LatestSnapshot) -> JobReader:
        """Export a job from now on."""
        reader = JobReader(job)
        self._readers = [*self._readers, reader]
        self._label()
        return reader

    def discard(self, reader: JobReader) -> None:
        """Stop exporting a job. Idempotent."""
        self._readers = [one for one in self._readers if one is not reader]

    def read(self) -> list[JobSnapshot]:
        """Return a snapshot of each job, by its label; from any thread.

        Numbers that are asked for one after the other are of one snapshot.
        """
        now_s = self._clock.monotonic()
        self._label()
        readers = self._readers
        if now_s - self._read_s >= _SAME_S or self._read != readers:
            self._last = [
                msgspec.structs.replace(snapshot, job=reader.label)
                for reader in readers
                if reader.label is not None and (snapshot := reader.read()) is not None
            ]
            self._read, self._read_s = readers, now_s
        return self._last

    def _label(self) -> None:
        """Leave out what has ended long ago or was followed, and number the others."""
        now_s = self._clock.monotonic()
        readers = self._readers
        for reader in readers:
            reader.look(now_s)
        kept = [
            reader
            for place, reader in enumerate(readers)
            if reader.ended_s is None
            or (
                now_s - reader.ended_s < _ENDED_S
                and not any(reader.is_followed_by(one) for one in readers[place + 1 :])
            )
        ]
        if len(kept) < len(readers):
            # `close` may have discarded one meanwhile, in another thread.
            self._readers = [one for one in self._readers if one in kept]
        taken: dict[str, JobReader] = {}
        for reader in kept:
            name = reader.name
            # A job that is exported twice is counted once.
            if name is None or any(reader.job is one.job for one in taken.values()):
                reader.label = None
                continue
            label = reader.label or ""
            is_its = label == name or label.startswith(f"{name} #")
            if not is_its or label in taken:
                label = free_name(name, taken)
            reader.label = label
            taken[label] = reader


class Export:
    """A job that an exporter shows until it is closed."""

    def __init__(self, jobs: SharedJobs, job: JobClient | LatestSnapshot) -> None:
        self._jobs = jobs
        self._reader = jobs.add(job)

    def close(self) -> None:
        """Stop exporting the job; the others stay. Idempotent."""
        self._jobs.discard(self._reader)


class Point(NamedTuple):
    """One value of one metric.

    Attributes:
        metric: What it is.
        scope: ``"job"``, ``"task"`` or ``"operator"``.
        labels: Whose value it is: ``job`` first, then ``task``, or ``operator`` and
            ``uid``, and the ``source`` of a latency.
        value: The value; never None or a text.
    """

    metric: Metric
    scope: MetricScope
    labels: dict[str, str]
    value: MetricValue


def points_of(snapshot: JobSnapshot) -> Iterator[Point]:
    """Yield every number of a job, declared metrics only."""
    job = {"job": snapshot.job}
    restarts = {**snapshot.checkpoint_metrics, "num_restarts": snapshot.restarts}
    yield from _points(snapshot, MetricScope.JOB, job, restarts)
    for operator in snapshot.operators:
        labels = {**job, "operator": operator.name, "uid": operator.uid or ""}
        yield from _points(snapshot, MetricScope.OPERATOR, labels, operator.metrics)
    for task in snapshot.tasks:
        labels = {**job, "task": task.name}
        yield from _points(snapshot, MetricScope.TASK, labels, task.metrics)


def _points(
    snapshot: JobSnapshot,
    scope: MetricScope,
    labels: dict[str, str],
    metrics: dict[str, MetricValue],
) -> Iterator[Point]:
    for name, value in metrics.items():
        if value is None or isinstance(value, str):
            continue
        if name.startswith(LATENCY_FROM):
            source = name.removeprefix(LATENCY_FROM)
            yield Point(LATENCY, scope, {**labels, "source": source}, value)
            continue
        metric = DECLARED.get(name) or snapshot.metric(name)
        if metric is None:
            metric = Metric(name, MetricKind.GAUGE, "1", Merge.SUM, "")
        yield Point(metric, scope, labels, value)
