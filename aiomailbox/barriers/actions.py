"""What a barrier handler decides: values, carried out in their order by its gate.

Theory of operation: a handler is pure. Each event of a channel, and the end of an
alignment's time, gives a list of actions; the owner of the handler carries them out
before it reads on. Nothing here touches a channel, a task or a timer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from aiomailbox.records.events import CheckpointBarrier

__all__ = [
    "Abort",
    "Action",
    "AlignmentCompleted",
    "AlignmentFailed",
    "CancelAlignmentTimer",
    "ChannelInfo",
    "DeclineReason",
    "InitInputs",
    "Prioritize",
    "ResumeChannel",
    "SetAlignmentTimer",
    "StartPersisting",
    "StopPersisting",
    "Trigger",
]


class ChannelInfo(NamedTuple):
    """A channel of a task: the index of its gate, and its own in there.

    Concept:
        Flink, ``InputChannelInfo``.
    """

    gate_index: int
    channel_index: int


class DeclineReason(Enum):
    """Why a task will not take part in a checkpoint.

    Concept:
        Flink, ``CheckpointFailureReason``.
    """

    SUBSUMED = "a newer barrier overtook it"
    CANCELLED = "a task upstream cancelled it"
    END_OF_STREAM = "an input ended during the alignment"
    FAILED = "the inputs could not be prepared"
    CLOSED = "the task does not read any more"


@dataclass(frozen=True, slots=True)
class ResumeChannel:
    """Go on reading a channel that its barrier blocked."""

    channel: ChannelInfo


@dataclass(frozen=True, slots=True)
class Prioritize:
    """Let a queued barrier that was announced overtake what is before it.

    Attributes:
        channel: Where it is queued.
        sequence_number: The buffer that carries it.
    """

    channel: ChannelInfo
    sequence_number: int


@dataclass(frozen=True, slots=True)
class InitInputs:
    """Prepare for the channel state that the barrier's checkpoint may hold."""

    barrier: CheckpointBarrier


@dataclass(frozen=True, slots=True)
class StartPersisting:
    """Let every channel keep its data in flight until its barrier arrives."""

    barrier: CheckpointBarrier


@dataclass(frozen=True, slots=True)
class StopPersisting:
    """Let no channel keep data any longer for the checkpoint, or for an older one."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class Trigger:
    """Take the task's snapshot now.

    Attributes:
        barrier: With the alignment that was used in the end.
    """

    barrier: CheckpointBarrier


@dataclass(frozen=True, slots=True)
class Abort:
    """Tell the task that a checkpoint will not happen."""

    checkpoint_id: int
    reason: DeclineReason


@dataclass(frozen=True, slots=True)
class AlignmentCompleted:
    """All barriers of a checkpoint have arrived: its channel state is complete."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class AlignmentFailed:
    """Some barriers of the checkpoint, or of an older one, will never arrive."""

    checkpoint_id: int
    reason: DeclineReason


@dataclass(frozen=True, slots=True)
class SetAlignmentTimer:
    """Call ``on_timeout`` of the handler with this checkpoint after ``delay_ms``."""

    checkpoint_id: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class CancelAlignmentTimer:
    """Forget the timer, if one is set."""


Action: TypeAlias = (
    Abort
    | AlignmentCompleted
    | AlignmentFailed
    | CancelAlignmentTimer
    | InitInputs
    | Prioritize
    | ResumeChannel
    | SetAlignmentTimer
    | StartPersisting
    | StopPersisting
    | Trigger
)
