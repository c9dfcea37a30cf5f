"""The life of a job, as a table."""

from __future__ import annotations

from enum import Enum
from typing import Final


class JobState(Enum):
    """Where a job is in its life.

    Concept:
        Flink, ``JobStatus``.
    """

    CREATED = "created"
    RUNNING = "running"
    RESTARTING = "restarting"
    CANCELLING = "cancelling"
    FAILING = "failing"
    FINISHED = "finished"
    CANCELED = "canceled"
    FAILED = "failed"


_NEXT: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.CREATED: frozenset(
        {
            JobState.RUNNING,
            JobState.RESTARTING,
            JobState.CANCELLING,
            JobState.FAILING,
        }
    ),
    JobState.RUNNING: frozenset(
        {
            JobState.FINISHED,
            JobState.RESTARTING,
            JobState.CANCELLING,
            JobState.FAILING,
        }
    ),
    JobState.RESTARTING: frozenset(
        {JobState.RUNNING, JobState.CANCELLING, JobState.FAILING}
    ),
    JobState.CANCELLING: frozenset({JobState.CANCELED, JobState.FAILING}),
    JobState.FAILING: frozenset({JobState.FAILED}),
    JobState.FINISHED: frozenset(),
    JobState.CANCELED: frozenset(),
    JobState.FAILED: frozenset(),
}


class JobLifecycle:
    """The state of one job; it only moves along the table.

    Example:
        >>> life = JobLifecycle()
        >>> life.advance(JobState.RUNNING), life.advance(JobState.CANCELED)
        (True, False)
    """

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: JobState = JobState.CREATED

    @property
    def is_terminal(self) -> bool:
        """Whether the life is over."""
        return not _NEXT[self.state]

    @property
    def is_cancelling(self) -> bool:
        """Whether the end was asked for, and has not come."""
        return self.state is JobState.CANCELLING

    def advance(self, target: JobState) -> bool:
        """Move on to ``target`` if it may follow, and say whether it did."""
        if target not in _NEXT[self.state]:
            return False
        self.state = target
        return True
