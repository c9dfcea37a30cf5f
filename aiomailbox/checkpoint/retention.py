"""Which completed checkpoints are kept.

Concept:
    Flink, ``DefaultCompletedCheckpointStore`` and ``CheckpointSubsumeHelper``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from aiomailbox.records.events import SnapshotType

__all__ = ["CompletedCheckpoints", "Retained"]


class Retained(Protocol):
    """What has to be known of a completed checkpoint."""

    @property
    def checkpoint_id(self) -> int:
        """Its number."""
        ...

    @property
    def kind(self) -> SnapshotType:
        """A checkpoint, or a savepoint that a job was restored from."""
        ...


CheckpointT = TypeVar("CheckpointT", bound=Retained)


@dataclass(slots=True)
class CompletedCheckpoints(Generic[CheckpointT]):
    """The completed checkpoints of a job, oldest first.

    Args:
        retained: How many to keep.

    Invariants:
        The latest one is always kept, and so is the newest that is no savepoint: what
        is incremental stands on it.
    """

    retained: int
    _kept: list[CheckpointT] = field(default_factory=list)

    @property
    def checkpoints(self) -> list[CheckpointT]:
        """Those that are kept, oldest first."""
        return list(self._kept)

    @property
    def latest(self) -> CheckpointT | None:
        """The one to restore from."""
        return self._kept[-1] if self._kept else None

    def recover(self, checkpoints: Iterable[CheckpointT]) -> None:
        """Keep what an earlier life of the job has left, however many.

        Which of them go is decided when the next one is added: until then a newer one
        may turn out to be damaged.
        """
        self._kept += checkpoints
        self._kept.sort(key=lambda one: one.checkpoint_id)

    def add(self, checkpoint: CheckpointT) -> list[CheckpointT]:
        """Keep a checkpoint; return those that go, whose files may be deleted.

        A savepoint that goes is left out of what is returned: its files are the
        user's.
        """
        self._kept.append(checkpoint)
        self._kept.sort(key=lambda one: one.checkpoint_id)
        subsumed: list[CheckpointT] = []
        protected = self._newest_checkpoint_id()
        for one in self._kept[:-1]:
            if len(self._kept) <= self.retained:
                break
            if one.checkpoint_id == protected:
                continue
            self._kept.remove(one)
            if not one.kind.is_savepoint:
                subsumed.append(one)
        return subsumed

    def _newest_checkpoint_id(self) -> int | None:
        """Return the newest checkpoint that is no savepoint, if it must stay."""
        ids = [one.checkpoint_id for one in self._kept if not one.kind.is_savepoint]
        return ids[-1] if ids else None
