"""Why checkpoints fail, and how many may before the job does.

Concept:
    Flink, ``CheckpointFailureReason`` and ``CheckpointFailureManager``.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["FailureCounter", "FailureReason", "trigger_failure"]


class FailureReason(Enum):
    """Why a checkpoint did not complete; some reasons are no fault."""

    EXPIRED = "it took longer than its timeout"
    DECLINED = "a task declined it"
    STORAGE = "it could not be written"
    NOT_TRIGGERED = "the sources' coordinators gave no snapshot of themselves"
    SUBSUMED = "a newer checkpoint completed before it"
    MIN_PAUSE = "the last checkpoint completed too recently"
    TOO_MANY_REQUESTS = "too many checkpoints were asked for at once"
    NOT_RUNNING = "not all of its tasks run"
    TASKS_FINISHED = "some tasks have finished, and checkpoints end with them"
    TASK_CLOSING = "some subtasks of an operator with union state have finished"
    TASK_FAILED = "a task failed"
    NOT_KEPT = "it was to hold records in flight that cannot be serialized"
    SUSPENDED = "checkpoints were stopped"
    CANCELLED = "the job was cancelled"

    @property
    def counts(self) -> bool:
        """Whether it counts towards the failures that a job tolerates."""
        return self in _COUNTED


_COUNTED: Final = frozenset(
    {FailureReason.EXPIRED, FailureReason.DECLINED, FailureReason.STORAGE}
)


def trigger_failure(error: BaseException) -> FailureReason:
    """Return why a checkpoint could not be triggered: for the world's sake, or not.

    Flink counts it if an I/O error is behind it, and else does not.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return FailureReason.STORAGE
        cause = cause.__cause__
    return FailureReason.NOT_TRIGGERED


class FailureCounter:
    """Counts failures since the last success.

    Args:
        tolerable: How many in a row are taken.

    Example:
        >>> counter = FailureCounter(tolerable=1)
        >>> counter.on_failure(5, FailureReason.EXPIRED)
        False
        >>> counter.on_failure(6, FailureReason.DECLINED)
        True
    """

    __slots__ = ("_failed_ids", "_last_success", "_tolerable")

    def __init__(self, tolerable: int) -> None:
        self._tolerable = tolerable
        self._last_success = 0
        self._failed_ids: set[int] = set()

    def on_failure(self, checkpoint_id: int, reason: FailureReason) -> bool:
        """Count a failure; say whether it is one more than the job tolerates.

        A checkpoint counts once, and not after a newer one succeeded.
        """
        if not reason.counts or checkpoint_id <= self._last_success:
            return False
        # A set: several tasks may decline one checkpoint, which failed once.
        self._failed_ids.add(checkpoint_id)
        if len(self._failed_ids) <= self._tolerable:
            return False
        self._failed_ids.clear()
        return True

    def on_success(self, checkpoint_id: int) -> None:
        """Forget the failures before a success; that of an older one forgives nothing."""
        if checkpoint_id > self._last_success:
            self._last_success = checkpoint_id
            self._failed_ids.clear()
