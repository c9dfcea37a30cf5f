"""Writes the snapshots of one process's tasks, off the loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final
from zlib import crc32

import msgspec

from aiomailbox.checkpoint.layout import checkpoint_directory, job_directory
from aiomailbox.checkpoint.settings import MEMORY_THRESHOLD
from aiomailbox.checkpoint.shared_files import SharedFilesWriter
from aiomailbox.errors import CorruptStreamError, DamagedFileError, StateError
from aiomailbox.eventtime.valve import ValveSnapshot
from aiomailbox.ids import OperatorId, SubtaskId
from aiomailbox.operators.snapshots.codec import (
    decode_snapshot,
    encode_snapshot,
    snapshot_chunks,
)
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records.record_classes import RecordClass
from aiomailbox.state.operator_state import OperatorStateSnapshot, RedistributionMode
from aiomailbox.state.schema import Misfit
from aiomailbox.state.serializers import (
    ObjectSerializer,
    declared_classes,
    kept_taken_apart,
)
from aiomailbox.state.snapshot import FetchFile
from aiomailbox.storage import open_storage
from aiomailbox.storage.contract import Storage
from aiomailbox.storage.local import PRIVATE
from aiomailbox.task.in_flight import TaskSnapshot
from aiomailbox.task.messages import (
    LITTLE_BYTES,
    PreparedData,
    Section,
    SectionKind,
    TaskHandle,
)

# A task's snapshot as bytes and back: sections in a row, and what is where.
#
# Theory of operation: the bytes are made a block at a time, so that a thread that
# writes them takes turns with others, and no copy of the whole is made. What describes
# them is the handle, which ends in the checkpoint's metadata; so a file that is cut
# off, or has other bits than were written, is found before a single record is restored
# from it.


FilesBeside = Mapping[OperatorId, Sequence[Mapping[str, FetchFile]]]
OnMisfitOf = Callable[[OperatorId, Misfit], None]
_COMMITTABLES: Final = "committables"
_WHOLE: Final = 1 << 22


def _batch_class() -> RecordClass:
    # Its import takes long, and few jobs need it.
    from aiomailbox.columnar.forms import batch_class

    return batch_class()


# Records that are batches of Arrow, wherever operators hold them.
kept_taken_apart("pyarrow.lib:RecordBatch", _batch_class)


class TaskBytes:
    """The bytes of one task's snapshot, made as they are asked for.

    Args:
        snapshot: The snapshot to encode.
        classes: The classes that state may hold, or type hints that name them; None
            for all that occur.
        with_files: Whether keyed state that is in files is left out, for its files are
            kept beside.
        on_misfit: Called with an operator, and what it keeps of another type than was
            declared.

    Attributes:
        sections: The sections that exist so far; all once it is exhausted.
        size: The bytes of these.

    Raises:
        StateError: While it is iterated, if something cannot be kept as bytes; its
            ``operator`` is the id of whose it is.
    """

    def __init__(
        self,
        snapshot: TaskSnapshot,
        classes: Iterable[Any] | None = None,
        *,
        with_files: bool = False,
        on_misfit: OnMisfitOf | None = None,
    ) -> None:
        self._with_files = with_files
        self._on_misfit = on_misfit
        self.sections: list[Section] = []
        self.size: int = 0
        self._snapshot = snapshot
        self._classes = None if classes is None else declared_classes(classes)

    def __iter__(self) -> Iterator[bytes]:
        snapshot = self._snapshot
        for operator, one in snapshot.operators.items():
            told = self._on_misfit
            chunks = snapshot_chunks(
                one,
                self._classes,
                with_files=self._with_files,
                on_misfit=None if told is None else partial(told, operator),
            )
            try:
                yield from self._section(SectionKind.OPERATOR, operator, chunks)
            except StateError as error:
                error.operator = str(operator)
                raise
        for operator, times in snapshot.inputs.items():
            encoded = msgspec.msgpack.encode(times)
            yield from self._section(SectionKind.INPUTS, operator, [encoded])
        for channel, buffers in snapshot.channel_state.items():
            framed = (
                part
                for buffer in buffers
                for part in (len(buffer).to_bytes(4, "big"), buffer)
            )
            yield from self._section(SectionKind.CHANNEL, channel, framed)

    def _section(
        self, kind: SectionKind, name: str, chunks: Iterable[bytes]
    ) -> Iterator[bytes]:
        start, checksum = self.size, 0
        for chunk in chunks:
            # Per section: a damaged one is named by its operator.
            checksum = crc32(chunk, checksum)
            self.size += len(chunk)
            yield chunk
        length = self.size - start
        self.sections.append(Section(kind, name, start, length, checksum))


def check_task(handle: TaskHandle, data: memoryview, name: str) -> None:
    """Raise if the bytes of a task are not those that were written.

    Raises:
        DamagedFileError: Naming the file.
    """
    if len(data) != handle.size:
        raise DamagedFileError(
            name, f"it has {len(data)} bytes where {handle.size} were written"
        )
    end = 0
    for section in handle.sections:
        # Bytes that no section has would never be checked.
        if section.start != end:
            raise DamagedFileError(name, "its description has a gap")
        end = section.start + section.length
        checksum = 0
        for start in range(section.start, end, _WHOLE):
            checksum = crc32(data[start : min(start + _WHOLE, end)], checksum)
        if checksum != section.checksum:
            raise DamagedFileError(
                name, f"a checksum does not match its data, of {section.name!r}"
            )
    if end != handle.size:
        raise DamagedFileError(name, "its description does not cover it")


def decode_task(
    handle: TaskHandle,
    data: memoryview,
    classes: Iterable[Any],
    *,
    allow_pickled_state: bool = False,
    files: FilesBeside | None = None,
) -> TaskSnapshot:
    """Return the snapshot that was encoded; committables are left out.

    Raises:
        CorruptStreamError: If the bytes are of another format.
        StateError: If state does not fit its classes, or needs pickle.
    """
    operators: dict[OperatorId, OperatorSnapshot] = {}
    inputs: dict[OperatorId, tuple[ValveSnapshot, ...]] = {}
    channels: dict[str, tuple[bytes, ...]] = {}
    for section in handle.sections:
        part = data[section.start : section.start + section.length]
        match section.kind:
            case SectionKind.OPERATOR:
                operators[OperatorId(section.name)] = decode_snapshot(
                    part,
                    classes,
                    allow_pickled_state=allow_pickled_state,
                    files=(files or {}).get(OperatorId(section.name), ()),
                )
            case SectionKind.INPUTS:
                inputs[OperatorId(section.name)] = _times(part)
            case SectionKind.CHANNEL:
                channels[section.name] = tuple(_buffers(part))
    return TaskSnapshot(
        operators, inputs, channel_state=channels, is_finished=handle.is_finished
    )


def _times(data: memoryview) -> tuple[ValveSnapshot, ...]:
    try:
        return msgspec.msgpack.decode(data, type=tuple[ValveSnapshot, ...])
    except msgspec.MsgspecError as error:
        raise CorruptStreamError(
            f"the event times of inputs cannot be read: {error}"
        ) from error


def _buffers(data: memoryview) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        length = int.from_bytes(data[start : start + 4], "big")
        start += 4
        if start + length > len(data):
            raise CorruptStreamError("a buffer of a channel is truncated")
        yield bytes(data[start : start + length])
        start += length


def serializers_in(snapshot: TaskSnapshot) -> dict[OperatorId, dict[str, str]]:
    """Return by operator and state the serializers that are not the usual one."""
    found: dict[OperatorId, dict[str, str]] = {}
    for operator, one in snapshot.operators.items():
        states = {
            meta.name: meta.serializer for piece in one.keyed for meta in piece.states
        }
        for lists in (one.operator, one.own):
            states |= {name: entry.serializer for name, entry in lists.states.items()}
        special = {
            name: serializer
            for name, serializer in states.items()
            if serializer != ObjectSerializer.id
        }
        if special:
            found[operator] = special
    return found


def encode_prepared(
    snapshot: TaskSnapshot, subtask_index: int, classes: Iterable[Any] | None = None
) -> tuple[PreparedData, ...]:
    """Return what the sinks of a task have prepared, as bytes; raises StateError."""
    grouped: dict[tuple[OperatorId, int], list[Any]] = {}
    for operator, prepared in snapshot.committables.items():
        for checkpoint_id, value in prepared:
            grouped.setdefault((operator, checkpoint_id), []).append(value)
    return tuple(
        PreparedData(operator, checkpoint_id, subtask_index, _encoded(values, classes))
        for (operator, checkpoint_id), values in grouped.items()
    )


def _encoded(values: list[Any], classes: Iterable[Any] | None) -> bytes:
    own = OperatorStateSnapshot().with_list(_COMMITTABLES, values)
    return encode_snapshot(OperatorSnapshot(own=own), classes)


def decode_prepared(prepared: PreparedData, classes: Iterable[Any]) -> tuple[Any, ...]:
    """Return the committables of a sink's subtask.

    Raises:
        CorruptStreamError: If the bytes are none.
        StateError: If one is of a class that is not declared, or does not fit.
    """
    decoded = decode_snapshot(prepared.data, classes)
    return tuple(decoded.own.elements(_COMMITTABLES))


class CheckpointWriter:
    """Writes what tasks resume from; all calls block, in any thread.

    Args:
        storage: Where checkpoints are.
        job_id: The identity of the job.
        classes: The classes that state may hold, or type hints that name them; state
            of others is refused: it could not be read again. None for all that occur.
        memory_threshold: Task state of at most so many bytes goes with the metadata.
        file_mode: The mode of a savepoint's new files; that of checkpoints is the
            storage's.
        on_misfit: Called with an operator, and what it keeps of another type than was
            declared, each time that it is written.

    Example:
        >>> import tempfile
        >>> from aiomailbox.ids import VertexId
        >>> from aiomailbox.storage.local import LocalStorage
        >>> writer = CheckpointWriter(LocalStorage(tempfile.mkdtemp()), "delays")
        >>> task = SubtaskId(VertexId(0), 0)
        >>> writer.write_task(task, 1, 1, TaskSnapshot()).file is None
        True
    """

    def __init__(
        self,
        storage: Storage,
        job_id: str,
        classes: Iterable[Any] | None = None,
        *,
        memory_threshold: int = MEMORY_THRESHOLD,
        file_mode: int = PRIVATE,
        on_misfit: OnMisfitOf | None = None,
    ) -> None:
        self._on_misfit = on_misfit
        self._storage = storage
        self._below = job_directory(job_id)
        self._classes = None if classes is None else declared_classes(classes)
        self._memory_threshold = memory_threshold
        self._file_mode = file_mode
        self._shared = SharedFilesWriter(storage, self._below)

    def write_task(
        self,
        task: SubtaskId,
        epoch: int,
        checkpoint_id: int,
        snapshot: TaskSnapshot,
        location: str | os.PathLike[str] | None = None,
    ) -> TaskHandle:
        """Write the snapshot of a task, durably, and return where it is.

        Args:
            task: The task.
            epoch: The attempt: one that is dead never writes what a later one did.
            checkpoint_id: The checkpoint.
            snapshot: The state of the task.
            location: The place of a savepoint; None for a checkpoint.

        Raises:
            OSError: If it cannot be written; nothing of it is left then.
            StateError: If something in it cannot be kept as bytes.
        """
        # First of all: what cannot be encoded fails before a file is there.
        prepared = encode_prepared(snapshot, task.subtask_index, self._classes)
        # A savepoint stands alone, and any backend can read it.
        is_own = location is None
        shared = (
            self._shared.write(checkpoint_id, task, epoch, snapshot) if is_own else ()
        )
        made = self._bytes_of(snapshot, with_files=is_own)
        chunks = iter(made)
        # Only beyond it there is a file: most tasks have little, and a file costs a sync.
        head = _taken(made, chunks, self._memory_threshold)
        name = None
        if made.size > self._memory_threshold:
            name = f"{task}-{epoch}"
            storage, below = self._place(checkpoint_id, location)
            storage.write(f"{below}{name}", chain(head, chunks))
        return msgspec.structs.replace(
            _handle(checkpoint_id, task, epoch, snapshot, made, head),
            file=name,
            inline=b"" if name else b"".join(head),
            prepared=prepared,
            shared=shared,
        )

    def write_little(
        self, task: SubtaskId, epoch: int, checkpoint_id: int, snapshot: TaskSnapshot
    ) -> TaskHandle | None:
        """Return a handle that holds the snapshot of a task; None if that is not little.

        Nothing is written, so it blocks for no longer than it takes to encode that.

        Raises:
            StateError: If something in it cannot be kept as bytes.
        """
        if any(snapshot.committables.values()) or _has_files(snapshot):
            return None
        made = self._bytes_of(snapshot, with_files=True)
        most = min(self._memory_threshold, LITTLE_BYTES)
        head = _taken(made, iter(made), most)
        if made.size > most:
            return None
        return _handle(checkpoint_id, task, epoch, snapshot, made, head)

    def _bytes_of(self, snapshot: TaskSnapshot, *, with_files: bool) -> TaskBytes:
        return TaskBytes(
            snapshot, self._classes, with_files=with_files, on_misfit=self._on_misfit
        )

    def _place(
        self, checkpoint_id: int, location: str | os.PathLike[str] | None
    ) -> tuple[Storage, str]:
        if location is not None:
            return open_storage(location, file_mode=self._file_mode), ""
        below = f"{self._below}/{checkpoint_directory(checkpoint_id)}/"
        return self._storage, below


def _taken(made: TaskBytes, chunks: Iterator[bytes], most: int) -> list[bytes]:
    """Return the first chunks, until there are more bytes than so many, or all."""
    head: list[bytes] = []
    for chunk in chunks:
        head.append(chunk)
        if made.size > most:
            break
    return head


def _handle(
    checkpoint_id: int,
    task: SubtaskId,
    epoch: int,
    snapshot: TaskSnapshot,
    made: TaskBytes,
    head: list[bytes],
) -> TaskHandle:
    return TaskHandle(
        checkpoint_id=checkpoint_id,
        vertex=task.vertex,
        subtask_index=task.subtask_index,
        epoch=epoch,
        size=made.size,
        inline=b"".join(head),
        sections=tuple(made.sections),
        serializers=serializers_in(snapshot),
        is_finished=snapshot.is_finished,
        has_union_state=_has_union_state(snapshot),
    )


def _has_files(snapshot: TaskSnapshot) -> bool:
    """Say whether a snapshot consists of files of stores, too."""
    return any(
        keyed.files for one in snapshot.operators.values() for keyed in one.keyed
    )


def _has_union_state(snapshot: TaskSnapshot) -> bool:
    return any(
        entry.mode is RedistributionMode.UNION and bool(entry.elements)
        for one in snapshot.operators.values()
        for entry in one.operator.states.values()
    )
