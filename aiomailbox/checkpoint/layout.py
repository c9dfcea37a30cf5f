"""Where the files of a job's checkpoints are, and the one that makes each complete."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote
from zlib import crc32

import msgspec

from aiomailbox.errors import DamagedFileError, StateError
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.ids import OperatorId, SubtaskId, VertexId
from aiomailbox.records.events import SnapshotType
from aiomailbox.storage import open_storage
from aiomailbox.storage.contract import Storage
from aiomailbox.task.messages import PreparedData, TaskHandle

# The file that makes a checkpoint one: what there is of it, and where.
#
# Theory of operation: ``_metadata`` is written last, so a checkpoint that has one is
# complete. It holds the handles of all tasks with the checksums of their files, so that
# its reader detects a damaged checkpoint before anything is restored from it. All
# names in it are relative: a savepoint can be moved.


FORMAT_VERSION: Final = 1
_METADATA_KIND: Final = 1
_FRAME_BYTES: Final = 1 << 20


class OperatorInfo(msgspec.Struct, frozen=True):
    """An operator of a vertex.

    Attributes:
        id: By what its state is found.
        uid: The user's name for it; None if there is none.
        name: Its name, for people.
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
        job_name: The job's name.
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


def describe_vertices(graph: JobGraph) -> tuple[VertexMetadata, ...]:
    """Return what the metadata says of a graph whose tasks have written nothing yet."""
    return tuple(
        VertexMetadata(
            vertex.id,
            tuple(
                OperatorInfo(node.operator_id, node.transformation.uid, node.name)
                for node in vertex.nodes
            ),
            vertex.parallelism,
            vertex.head.max_parallelism,
            (None,) * vertex.parallelism,
        )
        for vertex in graph.vertices
    )


def with_handles(
    vertices: Iterable[VertexMetadata], handles: Mapping[SubtaskId, TaskHandle]
) -> tuple[VertexMetadata, ...]:
    """Return what the metadata says of vertices, given what their tasks have written."""
    return tuple(
        msgspec.structs.replace(
            vertex,
            tasks=tuple(
                handles.get(SubtaskId(vertex.id, index))
                for index in range(vertex.parallelism)
            ),
        )
        for vertex in vertices
    )


def metadata_chunks(metadata: CheckpointMetadata) -> Iterator[bytes]:
    """Yield the contents of the file."""
    data = msgspec.msgpack.encode(metadata)
    parts = (
        data[start : start + _FRAME_BYTES]
        for start in range(0, len(data), _FRAME_BYTES)
    )
    return checked_chunks(_METADATA_KIND, parts)


def read_metadata(name: str, chunks: Iterable[bytes]) -> CheckpointMetadata:
    """Return what a file of metadata says.

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
    data = b"".join(checked_frames(name, _METADATA_KIND, chunks))
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


METADATA_NAME: Final = "_metadata"
JOB_FILE: Final = "_job"
# As the writer names them: vertex, subtask, epoch.
_TASK: Final = re.compile(r"\d+\.\d+-\d+")
_CHECKPOINT: Final = re.compile(r"chk-(\d+)")


def job_directory(job_id: str) -> str:
    """Return the name of a job's directory: its identity, as a file system takes it.

    Example:
        >>> job_directory("delays of 3/4"), job_directory("..")
        ('delays%20of%203%2F4', '%2E.')
    """
    name = quote(job_id, safe="")
    # Or the directory would be hidden, or be "." or "..".
    return f"%2E{name[1:]}" if name.startswith(".") else name


def checkpoint_directory(checkpoint_id: int) -> str:
    """Return the name of a checkpoint's files in the directory of its job.

    Example:
        >>> checkpoint_directory(7)
        'chk-7'
    """
    return f"chk-{checkpoint_id}"


def checkpoint_id_of(name: str) -> int | None:
    """Return the checkpoint that a directory's name is of, None if it is of none."""
    found = _CHECKPOINT.fullmatch(name)
    return int(found[1]) if found else None


def is_checkpoint_file(name: str) -> bool:
    """Say whether a file in a checkpoint's directory was written for it.

    Example:
        >>> is_checkpoint_file("1.0-3"), is_checkpoint_file("thesis.pdf")
        (True, False)
    """
    return name == METADATA_NAME or _TASK.fullmatch(name) is not None


def delete_files(storage: Storage, directory: str) -> None:
    """Delete the files of a checkpoint or savepoint; what else is there stays. Blocks.

    Args:
        storage: Where it is.
        directory: Its name there; "" for the storage itself.

    Raises:
        OSError: If one cannot be deleted; it is no checkpoint any more then.
    """
    below = f"{directory}/" if directory else ""
    # The metadata goes first: half a checkpoint must not look like one.
    storage.delete([f"{below}{METADATA_NAME}"])
    storage.delete(
        name
        for name in storage.names(directory)
        if is_checkpoint_file(name.removeprefix(below))
    )


def open_place(place: str | os.PathLike[str]) -> tuple[Storage, str]:
    """Return where a checkpoint or savepoint is: a storage, and the directory in it.

    Example:
        >>> storage, name = open_place("/data/jobs/delays/chk-7/_metadata")
        >>> storage.place, name
        ('/data/jobs/delays', 'chk-7')
    """
    text = os.fspath(place).rstrip("/").removesuffix(f"/{METADATA_NAME}")
    above, _, name = text.rpartition("/")
    # Nothing is above: "/" and "s3://" have no directory that both could be in.
    if not above or above.endswith(("/", ":")):
        # At the top: what is shared with others cannot be beside it.
        return open_storage(text or "/"), ""
    return open_storage(above), name


# What outlives a job's program beside its checkpoints: a few numbers, in one file.


_NUMBERS_KIND: Final = 2


class JobNumbers(msgspec.Struct, frozen=True):
    """The numbers that a job never uses twice.

    Attributes:
        epoch: The newest attempt.
        completed: The newest checkpoint that completed and was not deleted; 0 for none.
        last_id: The largest number of a checkpoint that ever completed: sinks know
            what they have committed by it.
        savepoint: The path or URL of the savepoint that was to end the job, "" if there
            was none, or a checkpoint has completed since: what sinks committed with it
            is not to be done again, should the job fail before it ends.
        savepoint_id: Its number.
        finished_ms: When the job ended well, by the clock on the wall, written before
            its checkpoints are deleted; 0 if it has not, or has begun again.
        finished_from: The savepoints from which the run that ended well had resumed;
            see `CheckpointMetadata.ancestors`.
        lineage: Names the executions that have gone on from each other here: the first
            one; "" before there was one, and in what earlier versions have written.
    """

    epoch: int = 0
    completed: int = 0
    last_id: int = 0
    savepoint: str = ""
    savepoint_id: int = 0
    finished_ms: int = 0
    finished_from: tuple[str, ...] = ()
    lineage: str = ""


def has_job_file(storage: Storage, directory: str) -> bool:
    """Say whether a directory is that of a job; "" for the storage itself."""
    return _name(directory) in storage.names(directory)


def read_job_file(storage: Storage, directory: str) -> JobNumbers:
    """Return a job's numbers.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedFileError: If it is not what was written.
    """
    name = _name(directory)
    data = b"".join(checked_frames(name, _NUMBERS_KIND, storage.read(name)))
    try:
        return msgspec.msgpack.decode(data, type=JobNumbers)
    except msgspec.MsgspecError as error:
        raise DamagedFileError(name, f"its content is invalid: {error}") from error


def write_job_file(storage: Storage, directory: str, numbers: JobNumbers) -> None:
    """Write a job's numbers, durably."""
    data = checked_chunks(_NUMBERS_KIND, [msgspec.msgpack.encode(numbers)])
    storage.write(_name(directory), data)


def _name(directory: str) -> str:
    return f"{directory}/{JOB_FILE}" if directory else JOB_FILE


# A file that says whether it is whole: frames with a checksum each, and an end.
#
#     file  = magic (6 bytes) version (1 byte) kind (1 byte) frame* end
#     frame = size (u32, above 0) crc32 of the payload (u32) payload
#     end   = 0 (u32) crc32 over the checksums of all frames (u32)
#
# A file that was cut off has no end; one whose bits changed has a wrong checksum, and
# frames that were lost or swapped give a wrong last one.


FRAME_BYTES_MAX: Final = 1 << 26
_MAGIC: Final = b"AIOMBX"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<6sBB")
_FRAME: Final = struct.Struct("<II")


def checked_chunks(kind: int, payloads: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of a file that holds ``payloads``, one frame each.

    Example:
        >>> data = b"".join(checked_chunks(7, [b"one", b"two"]))
        >>> list(checked_frames("name", 7, [data]))
        [b'one', b'two']
    """
    yield _HEADER.pack(_MAGIC, _VERSION, kind)
    digest = 0
    for payload in payloads:
        assert 0 < len(payload) <= FRAME_BYTES_MAX, "a frame has 1 byte to 64 MiB"
        checksum = crc32(payload)
        frame = _FRAME.pack(len(payload), checksum)
        digest = crc32(frame, digest)
        yield frame + payload if len(payload) < 4096 else frame
        if len(payload) >= 4096:
            yield payload
    yield _FRAME.pack(0, digest)


def checked_frames(name: str, kind: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the payloads of a file, each after its checksum has been compared.

    The frames before an error are right, but they are not all.

    Raises:
        DamagedFileError: If it is not whole, or of another kind or version.
    """
    source = _Bytes(name, chunks)
    magic, version, found = _HEADER.unpack(source.take(_HEADER.size))
    if magic != _MAGIC:
        raise DamagedFileError(name, "it does not begin like a file of aiomailbox")
    if version != _VERSION:
        raise DamagedFileError(
            name, f"it has version {version}, and this release reads {_VERSION}"
        )
    if found != kind:
        raise DamagedFileError(name, f"it is of kind {found}, not {kind}")
    digest = 0
    while True:
        frame = source.take(_FRAME.size)
        size, checksum = _FRAME.unpack(frame)
        if size == 0:
            break
        if size > FRAME_BYTES_MAX:
            raise DamagedFileError(name, f"a frame of {size} bytes is too large")
        payload = source.take(size)
        if crc32(payload) != checksum:
            raise DamagedFileError(name, "a checksum does not match its data")
        digest = crc32(frame, digest)
        yield payload
    if checksum != digest:
        raise DamagedFileError(name, "frames are missing, or in another order")
    if not source.is_at_end():
        raise DamagedFileError(name, "something follows its end")


class _Bytes:
    """Takes counted bytes from chunks."""

    def __init__(self, name: str, chunks: Iterable[bytes]) -> None:
        self._name = name
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def take(self, size: int) -> bytes:
        """Return exactly ``size`` bytes."""
        parts = []
        missing = size
        while missing:
            if not self._rest and not self._fetch():
                raise DamagedFileError(self._name, "it is truncated")
            part = self._rest[:missing]
            self._rest = self._rest[missing:]
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def is_at_end(self) -> bool:
        """Say whether all has been taken."""
        return not self._rest and not self._fetch()

    def _fetch(self) -> bool:
        for chunk in self._chunks:
            if chunk:
                self._rest = memoryview(chunk)
                return True
        return False
