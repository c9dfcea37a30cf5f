"""Runtime events: they ride the channels in buffers of their own, without records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class StopMode(Enum):
    """How data ended: with the end of event time and ``finish``, or without."""

    DRAIN = "drain"
    NO_DRAIN = "no_drain"


class Alignment(Enum):
    """How the barriers of a checkpoint meet at a task with several inputs."""

    AT_LEAST_ONCE = "at_least_once"
    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    FORCED_ALIGNED = "forced_aligned"


class RuntimeEvent:
    """Base of all events.

    Attributes:
        blocks_upstream: The subpartition stops after handing it out.
        is_priority: It overtakes buffers.
    """

    __slots__ = ()
    blocks_upstream = False
    is_priority = False


@dataclass(frozen=True, slots=True)
class CheckpointBarrier(RuntimeEvent):
    """Separates the records of a checkpoint from those after it."""

    checkpoint_id: int
    timestamp_ms: int
    alignment: Alignment = Alignment.ALIGNED

    @property
    def blocks_upstream(self) -> bool:  # type: ignore[override]
        """Whether the subpartition stops after handing the barrier out."""
        return self.alignment is not Alignment.UNALIGNED

    @property
    def is_priority(self) -> bool:  # type: ignore[override]
        """Whether the barrier overtakes buffers."""
        return self.alignment is Alignment.UNALIGNED


@dataclass(frozen=True, slots=True)
class CancelCheckpoint(RuntimeEvent):
    """Says that a checkpoint will not happen: stop waiting for its barriers."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class EndOfData(RuntimeEvent):
    """No more records follow on this channel."""

    mode: StopMode = StopMode.DRAIN


@dataclass(frozen=True, slots=True)
class EndOfPartition(RuntimeEvent):
    """Nothing at all follows on this channel."""
