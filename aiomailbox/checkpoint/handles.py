"""The file that makes a checkpoint one: what there is of it, and where.

Theory of operation: ``_metadata`` is written last, so a checkpoint that has one is
complete. It holds the handles of all tasks with the checksums of their files, so that
its reader detects a damaged checkpoint before anything is restored from it. All
names in it are relative: a savepoint can be moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from aiomailbox.errors import DamagedFileError, StateError
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.ids import OperatorId, SubtaskId, VertexId
from aiomailbox.records.events import SnapshotType
from aiomailbox.storage.checked import checked_chunks, checked_frames
from aiomailbox.task.messages import PreparedData, TaskHandle

FORMAT_VERSION: Final = 1


_KIND: Final = 1


_FRAME_BYTES: Final = 1 << 20


class OperatorInfo(msgspec.Struct, frozen=True):
    """An operator of a vertex.

    Attributes:
        id: By what its state is found.
        uid: The user's name for it; None if there is none.
        name: What people call it.
    """

    id: OperatorId
    uid: str | None
    name: str


class VertexMetadata(msgspec.Struct, frozen=True):
    """A vertex of the job, as it was.

    Attributes:
        id: Its number in the graph.
        operators: Its operators, head first.
        parallelism: Its subtasks.
        max_parallelism: The number of key groups.
        tasks: The handle of each subtask, in order; None for one that had finished.
    """

    id: VertexId
    operators: tuple[OperatorInfo, ...]
    parallelism: int
    max_parallelism: int
    tasks: tuple[TaskHandle | None, ...]


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a completed checkpoint or savepoint.

    Attributes:
        checkpoint_id: Its number.
        kind: A checkpoint, or one of the savepoints.
        epoch: The attempt that took it.
        job_id: The identity of the job.
        job_name: What people call the job.
        timestamp_ms: When it was triggered, wall-clock time.
        vertices: The job's vertices with the handles of their subtasks.
        enumerators: Per source what its enumerator resumes from; see `encode_snapshot`.
        prepared: What sinks had prepared in tasks that are gone, and what may not be
            committed yet; the handles have that of the others.
        services: Totals of limits and budgets, opaque here.
        statistics: Durations and sizes, for people.
        ancestors: The savepoints that the job has gone on from, oldest first, each by
            the digest of its metadata: it may be moved.
        version: Of the format.

    Concept:
        Flink, ``CheckpointMetadata``.
    """

    checkpoint_id: int
    kind: SnapshotType
    epoch: int
    job_id: str
    job_name: str
    timestamp_ms: int
    vertices: tuple[VertexMetadata, ...] = ()
    enumerators: dict[OperatorId, bytes] = {}
    prepared: tuple[PreparedData, ...] = ()
    services: dict[str, bytes] = {}
    statistics: dict[str, Any] = {}
    ancestors: tuple[str, ...] = ()
    version: int = FORMAT_VERSION

    @property
    def handles(self) -> list[TaskHandle]:
        """Those of all tasks that had not finished."""
        return [
            handle
            for vertex in self.vertices
            for handle in vertex.tasks
            if handle is not None
        ]

    @property
    def finished_operators(self) -> frozenset[OperatorId]:
        """Those whose tasks had nothing more to do, all of them."""
        return frozenset(
            operator.id
            for vertex in self.vertices
            if all(task is None or task.is_finished for task in vertex.tasks)
            for operator in vertex.operators
        )

    @property
    def size_bytes(self) -> int:
        """How many bytes it consists of, with those that it shares with others."""
        return sum(
            handle.size + sum(file.size for file in handle.shared)
            for handle in self.handles
        )

    @property
    def shared_files(self) -> set[str]:
        """The names of the files that it may share with others."""
        return {file.file for handle in self.handles for file in handle.shared}

    @property
    def serializers(self) -> dict[OperatorId, dict[str, str]]:
        """By operator and state the serializers that are not the usual one."""
        found: dict[OperatorId, dict[str, str]] = {}
        for handle in self.handles:
            for operator, states in handle.serializers.items():
                found.setdefault(operator, {}).update(states)
        return found


def describe_vertices(
    graph: JobGraph, handles: Mapping[SubtaskId, TaskHandle]
) -> tuple[VertexMetadata, ...]:
    """Return what the metadata says of a graph, given what its tasks have written."""
    return tuple(
        VertexMetadata(
            vertex.id,
            tuple(
                OperatorInfo(node.operator_id, node.transformation.uid, node.name)
                for node in vertex.nodes
            ),
            vertex.parallelism,
            vertex.head.max_parallelism,
            tuple(
                handles.get(SubtaskId(vertex.id, index))
                for index in range(vertex.parallelism)
            ),
        )
        for vertex in graph.vertices
    )


def metadata_chunks(metadata: CheckpointMetadata) -> Iterator[bytes]:
    """Yield the contents of the file."""
    data = msgspec.msgpack.encode(metadata)
    parts = (
        data[start : start + _FRAME_BYTES]
        for start in range(0, len(data), _FRAME_BYTES)
    )
    return checked_chunks(_KIND, parts)


def read_metadata(name: str, chunks: Iterable[bytes]) -> CheckpointMetadata:
    """Return what a file of metadata says.

    Args:
        name: The file, for messages.
        chunks: Its contents.

    Raises:
        DamagedFileError: If it is not what was written.
        StateError: If another release has written it, in a format of its own.

    Example:
        >>> metadata = CheckpointMetadata(
        ...     checkpoint_id=7,
        ...     kind=SnapshotType.CHECKPOINT,
        ...     epoch=1,
        ...     job_id="delays",
        ...     job_name="delays",
        ...     timestamp_ms=0,
        ... )
        >>> read_metadata("_metadata", metadata_chunks(metadata)) == metadata
        True
    """
    data = b"".join(checked_frames(name, _KIND, chunks))
    try:
        # The version alone first: a later one may have other fields.
        version = msgspec.msgpack.decode(data, type=_Version).version
        if version == FORMAT_VERSION:
            return msgspec.msgpack.decode(data, type=CheckpointMetadata)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DamagedFileError(
            name, f"it does not describe a checkpoint: {error}"
        ) from error
    raise StateError(
        f"{name} has format {version}, and this release of aiomailbox reads format "
        f"{FORMAT_VERSION}: use the release that wrote it"
    )


class _Version(msgspec.Struct):
    version: int = 0
