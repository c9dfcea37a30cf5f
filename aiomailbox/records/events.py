"""Runtime events: they ride the channels in buffers of their own, without records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, Generic, NamedTuple

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.typevars import T, ValueT

# Of a barrier that never turns from aligned into unaligned by itself.
NO_ALIGNED_TIMEOUT: Final = 2**63 - 1


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


class SnapshotType(Enum):
    """The kind of snapshot that a barrier asks for; savepoints say in which format.

    Concept:
        Flink, ``SnapshotType``; canonical and native are its savepoint formats.
    """

    CHECKPOINT = "checkpoint"
    FULL_CHECKPOINT = "full_checkpoint"
    SAVEPOINT_CANONICAL = "savepoint_canonical"
    SAVEPOINT_NATIVE = "savepoint_native"
    SUSPEND_CANONICAL = "suspend_canonical"
    SUSPEND_NATIVE = "suspend_native"
    TERMINATE_CANONICAL = "terminate_canonical"
    TERMINATE_NATIVE = "terminate_native"

    @property
    def is_savepoint(self) -> bool:
        """Whether the user requested it, and owns it."""
        return self not in _CHECKPOINTS

    @property
    def is_synchronous(self) -> bool:
        """Whether a task that has taken it waits until it is complete, and ends."""
        return self in _SYNCHRONOUS


_CHECKPOINTS = frozenset({SnapshotType.CHECKPOINT, SnapshotType.FULL_CHECKPOINT})


_SYNCHRONOUS = frozenset(
    {
        SnapshotType.SUSPEND_CANONICAL,
        SnapshotType.SUSPEND_NATIVE,
        SnapshotType.TERMINATE_CANONICAL,
        SnapshotType.TERMINATE_NATIVE,
    }
)


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
    """Separates the records of a checkpoint from those after it.

    Attributes:
        checkpoint_id: Number of the checkpoint.
        timestamp_ms: When it was triggered.
        alignment: How the barriers of several inputs meet.
        snapshot_type: The kind of snapshot.
        aligned_timeout_ms: After how long alignment is given up for overtaking; not at
            all with 0, as in Flink.
        location: Where the snapshot goes, None for the default place.

    Raises:
        InvalidArgumentError: If a savepoint is to be unaligned, or an unaligned
            barrier has a timeout.
    """

    checkpoint_id: int
    timestamp_ms: int
    alignment: Alignment = Alignment.ALIGNED
    snapshot_type: SnapshotType = SnapshotType.CHECKPOINT
    aligned_timeout_ms: int = NO_ALIGNED_TIMEOUT
    location: bytes | None = None

    def __post_init__(self) -> None:
        if self.alignment is not Alignment.UNALIGNED:
            return
        if self.snapshot_type.is_savepoint:
            raise InvalidArgumentError(
                "alignment",
                "a savepoint cannot be unaligned: it holds no data in flight",
                "Use ALIGNED or FORCED_ALIGNED.",
            )
        if self.aligned_timeout_ms != NO_ALIGNED_TIMEOUT:
            raise InvalidArgumentError(
                "aligned_timeout_ms", "an unaligned barrier waits for no alignment"
            )

    @property
    def is_timeoutable(self) -> bool:
        """Whether it turns into an unaligned barrier when alignment takes long."""
        return (
            self.alignment is Alignment.ALIGNED
            and 0 < self.aligned_timeout_ms < NO_ALIGNED_TIMEOUT
        )

    @property
    def is_exactly_once(self) -> bool:
        """Whether no record is counted twice after recovery."""
        return self.alignment is not Alignment.AT_LEAST_ONCE

    @property
    def needs_alignment(self) -> bool:
        """Whether inputs wait for each other's barriers."""
        return self.alignment in _ALIGNING

    @property
    def needs_channel_state(self) -> bool:
        """Whether data in flight may become part of the checkpoint."""
        return self.alignment is Alignment.UNALIGNED or self.is_timeoutable

    @property
    def may_overtake(self) -> bool:
        """Whether `as_unaligned` is allowed: a savepoint holds no data in flight."""
        return (
            self.alignment is Alignment.ALIGNED and not self.snapshot_type.is_savepoint
        )

    def as_unaligned(self) -> CheckpointBarrier:
        """Return the same barrier, now overtaking, as after a timeout.

        Raises:
            InvalidArgumentError: If it asks for a savepoint.
        """
        return replace(
            self, alignment=Alignment.UNALIGNED, aligned_timeout_ms=NO_ALIGNED_TIMEOUT
        )

    def as_forced_aligned(self) -> CheckpointBarrier:
        """Return the same barrier for an edge on which none ever overtakes."""
        return replace(self, alignment=Alignment.FORCED_ALIGNED)

    def with_wish_restored(self) -> CheckpointBarrier:
        """Return what was wished before an edge forced alignment, if one did.

        It is for the outputs of the task behind that edge.
        """
        if self.alignment is not Alignment.FORCED_ALIGNED:
            return self
        if self.aligned_timeout_ms == NO_ALIGNED_TIMEOUT:
            return self.as_unaligned()
        return replace(self, alignment=Alignment.ALIGNED)

    @property
    def blocks_upstream(self) -> bool:  # type: ignore[override]
        """Whether the subpartition stops after handing the barrier out."""
        return self.needs_alignment

    @property
    def is_priority(self) -> bool:  # type: ignore[override]
        """Whether the barrier overtakes buffers."""
        return self.alignment is Alignment.UNALIGNED


_ALIGNING = frozenset({Alignment.ALIGNED, Alignment.FORCED_ALIGNED})


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


@dataclass(frozen=True, slots=True)
class EndOfSegment(RuntimeEvent):
    """A segment of tiered storage ended; more follow in another one."""


@dataclass(frozen=True, slots=True)
class EndOfSuperstep(RuntimeEvent):
    """One round of an iteration ended."""


@dataclass(frozen=True, slots=True)
class EndOfOutputChannelState(RuntimeEvent):
    """All recovered output of a producer was sent; its consumer says when to go on."""

    blocks_upstream = True


@dataclass(frozen=True, slots=True)
class EndOfInputChannelState(RuntimeEvent):
    """All recovered input of a channel was read."""


@dataclass(frozen=True, slots=True)
class EventAnnouncement(RuntimeEvent):
    """Says ahead of the data that a barrier is on its way.

    Attributes:
        announced: The barrier.
        sequence_number: The buffer that carries it, as a signed 32-bit integer.
    """

    announced: RuntimeEvent
    sequence_number: int


@dataclass(frozen=True, slots=True)
class SubtaskConnection(RuntimeEvent):
    """The recovered data that follows went from this subtask to that one.

    Concept:
        Flink, ``SubtaskConnectionDescriptor``.
    """

    input_subtask: int
    output_subtask: int


@dataclass(frozen=True, slots=True)
class RecoveryMetadata(RuntimeEvent):
    """Which subpartition the last, partial buffer of a recovery belongs to."""

    final_subpartition: int


@dataclass(frozen=True, slots=True)
class WatermarkEvent(RuntimeEvent):
    """A generalized watermark: a value under a name that users have declared.

    Attributes:
        identifier: The name.
        value: An int of 64 bits, or a bool.
        is_aligned: Whether a channel waits, after it, for the others.
    """

    identifier: str
    value: int | bool
    is_aligned: bool = False

    @property
    def blocks_upstream(self) -> bool:  # type: ignore[override]
        """Whether the subpartition stops after handing the event out."""
        return self.is_aligned


# What travels in band: records, watermarks, status, latency markers.


MIN_TIMESTAMP: Final = -(2**63)


MAX_TIMESTAMP: Final = 2**63 - 1


class StreamRecord(NamedTuple):
    """One value and its event time in milliseconds, None when it has none.

    Inside the runtime records travel in runs; this is the form for single ones
    (test harnesses, side outputs of one record).
    """

    value: Any
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class Watermark:
    """The promise that no later record has ``timestamp <= timestamp_ms``.

    Concept:
        Flink, ``Watermark``.
    """

    timestamp_ms: int


MAX_WATERMARK: Final = Watermark(MAX_TIMESTAMP)


class WatermarkStatus(Enum):
    """Whether a channel takes part in the advance of event time."""

    ACTIVE = "active"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class LatencyMarker:
    """A stamp that a source sends through the job to measure its latency.

    Attributes:
        marked_ms: Wall-clock time at the source, milliseconds.
        operator: The source's name.
        subtask_index: The source's subtask, from 0.
    """

    marked_ms: int
    operator: str
    subtask_index: int


@dataclass(frozen=True, slots=True)
class RecordAttributes:
    """The attributes that all following records share.

    Attributes:
        is_backlog: They are old, so that throughput counts more than latency.
    """

    is_backlog: bool


@dataclass(frozen=True, slots=True)
class InternalWatermark:
    """A watermark of one of the subpartitions that share a channel."""

    subpartition_index: int
    timestamp_ms: int


# Without slots: Python 3.11 and 3.12 cannot make an ``OutputTag[int]`` with them.
@dataclass(frozen=True)
class OutputTag(Generic[ValueT]):
    """The name of a side output.

    Example:
        >>> OutputTag("late")
        OutputTag(id='late')

        For a type checker, say what it is a side output of:

        >>> OutputTag[int]("late")
        OutputTag(id='late')
    """

    id: str

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise InvalidArgumentError(
                "id",
                f"an OutputTag cannot be called {self.id!r}",
                "Give it a non-empty string.",
            )


# What is asked of a running job, and what it answers: they know of each other.


class Answer(NamedTuple, Generic[ValueT]):
    """An answer on its way back to the asker; made by `Question.answer`.

    Attributes:
        desk: Where it was asked: which job's questions.
        number: Which question it was.
        value: The answer.
    """

    desk: int
    number: int
    value: ValueT


class Question(NamedTuple, Generic[T]):
    """A caller's question, as a record.

    Attributes:
        desk: Where it was asked: which job's questions.
        number: Which question it is.
        value: The value of the question.

    Example:
        >>> Question(0, 7, "how much?").answer(3)
        Answer(desk=0, number=7, value=3)
    """

    desk: int
    number: int
    value: T

    def answer(self, value: ValueT) -> Answer[ValueT]:
        """Return an answer to this question, for the sink `Answers`."""
        return Answer(self.desk, self.number, value)
