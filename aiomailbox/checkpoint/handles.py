"""Where the parts of a checkpoint are: what travels from tasks to the master."""

from __future__ import annotations

from enum import Enum

import msgspec

from aiomailbox.ids import OperatorId, SubtaskId, VertexId

__all__ = ["PreparedData", "Section", "SectionKind", "SharedFile", "TaskHandle"]


class SectionKind(Enum):
    """What a part of a task's bytes is.

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
    """What a sink prepared in one subtask, to be committed.

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
