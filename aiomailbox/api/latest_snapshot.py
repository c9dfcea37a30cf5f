"""A job of which only its snapshots come here."""

from __future__ import annotations

from aiomailbox.runtime import JobSnapshot, await_tree

__all__ = ["LatestSnapshot"]


class LatestSnapshot:
    """What a job elsewhere has told last: shown as a job of this program is.

    It is called with each snapshot, as `Pipeline.run_on` does for a job inside Spark, and
    given to `progress`, to a dashboard or to an exporter in place of a job. Such a job
    cannot be stopped from there.

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
        """Keep a snapshot in place of the one before."""
        self._last = snapshot

    def snapshot(self) -> JobSnapshot | None:
        """Return the last one; None before the first."""
        return self._last

    def await_tree(self) -> str:
        """Return what the tasks of the job waited for then, as text."""
        seen = self._last
        if seen is None:
            return "no snapshot of the job has arrived yet"
        return await_tree(seen.job, seen.state, seen.tasks)
