"""Requests for checkpoints, and which one is next.

Concept:
    Flink, ``CheckpointRequestDecider``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from aiomailbox.checkpoint.failures import FailureReason
from aiomailbox.checkpoint.settings import CheckpointSettings
from aiomailbox.records.events import SnapshotType

__all__ = ["CheckpointRequest", "Choice", "Refusal", "RequestQueue", "Wait"]

# Flink's number: beyond it a request is refused.
_QUEUED_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """A request for a checkpoint.

    Attributes:
        number: Requests are numbered as they come.
        kind: A checkpoint, or one of the savepoints.
        is_periodic: Whether the timer asked for it, and not a person.
        location: Where a savepoint goes; None for checkpoints.
    """

    number: int
    kind: SnapshotType = SnapshotType.CHECKPOINT
    is_periodic: bool = False
    location: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Begin this one now."""

    request: CheckpointRequest


@dataclass(frozen=True, slots=True)
class Refusal:
    """This one will not be; a periodic one may be asked for again after a while.

    Attributes:
        retry_after_ms: When the timer may ask again, None for its usual time.
    """

    request: CheckpointRequest
    reason: FailureReason
    retry_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """No request's turn: ask again when something has changed."""


@dataclass(slots=True)
class RequestQueue:
    """The requests that wait, best first.

    Args:
        settings: Say how many may be pending, and which pause is between two.
        queued_max: How many may wait.
    """

    settings: CheckpointSettings
    queued_max: int = _QUEUED_MAX
    _queued: list[CheckpointRequest] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, request: CheckpointRequest) -> Refusal | None:
        """Enqueue a request; return the one that has to make room, if one has to.

        A request of the timer makes room for one of a person, never the other way.
        """
        queued = self._queued
        queued.append(request)
        queued.sort(key=self._rank)
        if len(queued) <= self.queued_max:
            return None
        # Periodic ones make room first: there will be another one soon.
        worst = queued[-1] if queued[-1].is_periodic else request
        queued.remove(worst)
        return Refusal(worst, FailureReason.TOO_MANY_REQUESTS)

    def choose(
        self,
        now_ms: int,
        *,
        is_starting: bool,
        pending: int,
        cleaning: int,
        last_completed_ms: int | None,
    ) -> Choice | Refusal | Wait:
        """Take the request whose turn it is.

        Args:
            now_ms: A time that does not go back.
            is_starting: Whether a checkpoint is just being started.
            pending: How many have been started and are not complete.
            cleaning: How many that failed are still being deleted.
            last_completed_ms: When the last one completed, None before the first.
        """
        limit = self.settings.max_concurrent
        # While one starts its barriers are on their way, and a second one could
        # overtake it.
        if not self._queued or is_starting or cleaning > limit:
            return Wait()
        first = self._queued[0]
        if pending >= limit and not self._is_forced(first):
            return Wait()
        del self._queued[0]
        # Asked for by hand, a checkpoint waits for no pause.
        if first.is_periodic and last_completed_ms is not None:
            left_ms = last_completed_ms + self.settings.min_pause_ms - now_ms
            if left_ms > 0:
                return Refusal(first, FailureReason.MIN_PAUSE, left_ms)
        return Choice(first)

    def clear(self) -> list[CheckpointRequest]:
        """Take all requests out."""
        queued, self._queued = self._queued, []
        return queued

    def _is_forced(self, request: CheckpointRequest) -> bool:
        """Say whether a request may run beside others, whatever the limit.

        Without unaligned checkpoints nothing keeps a savepoint from running at once.
        """
        return request.kind.is_savepoint and not self.settings.unaligned

    def _rank(self, request: CheckpointRequest) -> tuple[bool, bool, bool, int]:
        return (
            not request.kind.is_savepoint,
            not self._is_forced(request),
            request.is_periodic,
            request.number,
        )
