"""Reads the snapshots of running jobs from the thread of an exporter."""

from __future__ import annotations

import asyncio
import math
import threading
from concurrent.futures import Future, TimeoutError as LateError
from typing import Final

from aiomailbox.api.job import JobClient, LatestSnapshot
from aiomailbox.clock import SystemClock
from aiomailbox.runtime.job_snapshot import JobSnapshot

_WAIT_S: Final = 5.0
_SAME_S: Final = 0.1


class JobReader:
    """One job, and the loop that it runs on.

    Made on the job's loop. A loop that is blocked for more than a few seconds is not waited
    for: the last snapshot is returned again.

    Args:
        job: The job.
    """

    def __init__(self, job: JobClient | LatestSnapshot) -> None:
        self.job: JobClient | LatestSnapshot = job
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._last: JobSnapshot | None = job.snapshot()

    def read(self) -> JobSnapshot | None:
        """Return a snapshot of the job, None if there is none; from any thread."""
        if threading.get_ident() == self._thread or self._loop.is_closed():
            return self._take()
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

    def _take(self) -> JobSnapshot | None:
        if not self._loop.is_closed():
            self._last = self.job.snapshot()
        return self._last


class SharedJobs:
    """The jobs of one exporter; several may share a registry or a meter."""

    def __init__(self) -> None:
        self._readers: list[JobReader] = []
        self._clock = SystemClock()
        self._read_s = -math.inf
        self._last: list[JobSnapshot | None] = []

    def add(self, job: JobClient | LatestSnapshot) -> JobReader:
        """Export a job from now on."""
        reader = JobReader(job)
        self._readers = [*self._readers, reader]
        return reader

    def discard(self, reader: JobReader) -> None:
        """Stop exporting a job. Idempotent."""
        self._readers = [one for one in self._readers if one is not reader]

    def __len__(self) -> int:
        return len(self._readers)

    def read(self) -> list[JobSnapshot]:
        """Return a snapshot of each job; from any thread.

        Numbers that are asked for one after the other are of one snapshot.
        """
        now_s = self._clock.monotonic()
        if now_s - self._read_s >= _SAME_S or len(self._last) != len(self._readers):
            self._last = [reader.read() for reader in self._readers]
            self._read_s = now_s
        return [snapshot for snapshot in self._last if snapshot is not None]
