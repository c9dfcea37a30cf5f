"""A remote job of which only the snapshots arrive here."""

from __future__ import annotations

from aiomailbox.runtime.await_tree import await_tree
from aiomailbox.runtime.job_snapshot import JobSnapshot

__all__ = ["LatestSnapshot"]


class LatestSnapshot:
    """The latest snapshot of a remote job, which is shown like a job of this program.

    It is called with each snapshot, as `Pipeline.run_on` does for a job inside Spark, and
    passed to `progress`, to a dashboard or to an exporter in place of a job. Such a job
    cannot be stopped from here.

    Example:
        >>> import aiomailbox as am
        >>> seen = am.observe.LatestSnapshot()
        >>> page = am.observe.dashboard(seen)
        >>> seen.snapshot() is None  # await pipeline.run_on(df, path, on_snapshot=seen)
        True
    """

    def __init__(self) -> None:
        self._last: JobSnapshot | None = None

    def __call__(self, snapshot: JobSnapshot) -> None:
        """Replace the previous snapshot."""
        self._last = snapshot

    def snapshot(self) -> JobSnapshot | None:
        """Return the latest snapshot; None before the first."""
        return self._last

    def await_tree(self) -> str:
        """Return what the tasks of the job waited for at that time, as text."""
        seen = self._last
        if seen is None:
            return "no snapshot of the job has arrived yet"
        return await_tree(seen.job, seen.state, seen.tasks)
