"""The messages to and from a task: values, here and between processes.

Theory of operation: a command runs as mail of the task. An event is reported on the task's
loop; between processes it is one tagged array in MessagePack, whose types are checked when
it is decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final, TypeAlias

import msgspec

from aiomailbox.ids import OperatorId, SubtaskId, VertexId
from aiomailbox.records.events import CheckpointBarrier, StopMode

# Commands.


@dataclass(frozen=True, slots=True)
class AddSplits:
    """Give splits to the reader of a source; ``no_more`` says that these are the last."""

    description: ClassVar[str] = "add splits"
    splits: list[Any]
    no_more: bool


@dataclass(frozen=True, slots=True)
class StopSource:
    """Let a source read no more; other tasks have nothing to do."""

    description: ClassVar[str] = "stop the source"
    mode: StopMode


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    """Take the coordinator's barrier: nothing upstream sends one.

    It comes behind the splits that were sent before: these are on one side of it.

    Concept:
        Flink, ``StreamTask.triggerCheckpointAsync``.
    """

    description: ClassVar[str] = "take a checkpoint"
    barrier: CheckpointBarrier


@dataclass(frozen=True, slots=True)
class CheckpointComplete:
    """A checkpoint is complete."""

    description: ClassVar[str] = "a checkpoint is complete"
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    """A checkpoint will not complete; ``latest_completed_id`` did before, 0 for none."""

    description: ClassVar[str] = "a checkpoint was aborted"
    checkpoint_id: int
    latest_completed_id: int


Command: TypeAlias = (
    AddSplits | StopSource | TriggerCheckpoint | CheckpointComplete | CheckpointAborted
)

# Where the snapshot of a task is.


class SectionKind(Enum):
    """The kinds of sections in a task's bytes.

    Attributes:
        OPERATOR: The snapshot of the operator that the section is named by.
        INPUTS: How far event time had come on the inputs of that operator.
        CHANNEL: The buffers of the channel that it is named by.
    """

    OPERATOR = "operator"
    INPUTS = "inputs"
    CHANNEL = "channel"


class Section(msgspec.Struct, frozen=True):
    """A part of what one task wrote.

    Attributes:
        kind: What it is.
        name: Whose it is.
        start: Its first byte.
        length: Its bytes.
        checksum: Its CRC-32.
    """

    kind: SectionKind
    name: str
    start: int
    length: int
    checksum: int


class PreparedData(msgspec.Struct, frozen=True):
    """Committables that a sink prepared in one subtask.

    Attributes:
        operator: The sink.
        checkpoint_id: Before whose barrier it was prepared.
        subtask_index: The subtask.
        data: Its committables; see `decode_prepared`.
    """

    operator: OperatorId
    checkpoint_id: int
    subtask_index: int
    data: bytes


class SharedFile(msgspec.Struct, frozen=True):
    """A file of a store that several checkpoints may consist of.

    Attributes:
        operator: Whose state it holds.
        piece: Which piece of its keyed state.
        name: What the store calls it.
        file: Its name among the files of the job that are shared.
        size: Its bytes.
        digest: Of its contents, hexadecimal: BLAKE2b of 16 bytes.
    """

    operator: OperatorId
    piece: int
    name: str
    file: str
    size: int
    digest: str


# A snapshot that is encoded in less time than another thread needs to begin.
LITTLE_BYTES: Final = 4096


class TaskHandle(msgspec.Struct, frozen=True, kw_only=True):
    """Where the snapshot of one task is.

    What is small is in the handle itself; the rest is one file.

    Attributes:
        checkpoint_id: The checkpoint that it was written for.
        vertex: The task's vertex.
        subtask_index: Its number there.
        epoch: The attempt that wrote it.
        size: All bytes, without shared files.
        file: The name of the file, relative to the checkpoint; None if it is inline.
        inline: The bytes, if they are few.
        sections: What is where in them.
        serializers: By operator and by state the serializers that are not the usual
            one: a reader of the state needs them.
        prepared: What sinks have prepared and may not be committed yet.
        is_finished: Whether the task had nothing more to do but to wait.
        shared: The files of stores that the snapshot consists of beside them.
        has_union_state: Whether it holds elements that every subtask is to get.

    Example:
        >>> handle = TaskHandle(
        ...     checkpoint_id=1, vertex=VertexId(0), subtask_index=2, epoch=1, size=0
        ... )
        >>> handle.task
        SubtaskId(vertex=0, subtask_index=2)
    """

    checkpoint_id: int
    vertex: VertexId
    subtask_index: int
    epoch: int
    size: int
    file: str | None = None
    inline: bytes = b""
    sections: tuple[Section, ...] = ()
    serializers: dict[OperatorId, dict[str, str]] = {}
    prepared: tuple[PreparedData, ...] = ()
    is_finished: bool = False
    shared: tuple[SharedFile, ...] = ()
    has_union_state: bool = False

    @property
    def task(self) -> SubtaskId:
        """The task."""
        return SubtaskId(self.vertex, self.subtask_index)

    def is_as(self, other: TaskHandle) -> bool:
        """Whether a task resumes from both in the same way, as far as can be told here.

        What is in files of its own cannot; nor is anything to be committed.
        """
        return (
            self.file is None
            and not self.prepared
            and not self.is_finished
            and msgspec.structs.replace(self, checkpoint_id=other.checkpoint_id)
            == other
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatistics:
    """The time and bytes that one checkpoint took at one task.

    Attributes:
        start_delay_ms: From the trigger at the coordinator to the first barrier.
        alignment_ms: From the first barrier to the last.
        alignment_bytes: Bytes that were read meanwhile.
        sync_ms: How long the task stood still to capture its state.
        async_ms: How long it took to write that.

    Concept:
        Flink, ``CheckpointMetrics``.
    """

    start_delay_ms: float = 0.0
    alignment_ms: float = 0.0
    alignment_bytes: int = 0
    sync_ms: float = 0.0
    async_ms: float = 0.0


# Events.


class TaskEvent(msgspec.Struct, tag=True, array_like=True):
    """Something that a task reports; ``task`` is which one."""

    task: SubtaskId


class TaskRunning(TaskEvent):
    """A task has been restored and runs."""


class DataEnded(TaskEvent):
    """No more records will come out of a task."""


class SplitRequest(TaskEvent):
    """A reader wants another split."""


class Acknowledged(TaskEvent):
    """A task's part of a checkpoint is written."""

    checkpoint_id: int
    handle: TaskHandle
    statistics: TaskStatistics


class Declined(TaskEvent):
    """A task takes no part in a checkpoint."""

    checkpoint_id: int
    error: BaseException


class TaskCancelled(TaskEvent):
    """A task ended itself as cancelled, or was interrupted; `TaskEnded` follows."""


class TaskEnded(TaskEvent):
    """A task ended, well or with an error; ``name`` is for people."""

    name: str
    error: BaseException | None
