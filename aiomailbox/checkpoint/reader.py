"""The files of checkpoints and savepoints: all checksums first, then what is asked for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from aiomailbox.checkpoint.layout import (
    METADATA_NAME,
    CheckpointMetadata,
    checkpoint_id_of,
    delete_files,
    has_job_file,
    open_place,
    read_job_file,
    read_metadata,
    write_job_file,
)
from aiomailbox.checkpoint.restored import SavedJob, job_snapshot
from aiomailbox.checkpoint.shared_files import SHARED, remove_unused, shared_digest
from aiomailbox.checkpoint.writer import (
    FilesBeside,
    check_task,
    decode_prepared,
    decode_task,
)
from aiomailbox.clock import Clock
from aiomailbox.errors import DamagedFileError, StateError
from aiomailbox.ids import OperatorId
from aiomailbox.operators.snapshots.codec import decode_snapshot, describe_snapshot
from aiomailbox.records.record_classes import class_name, saved_names
from aiomailbox.state.serializers import ObjectSerializer, PickleSerializer
from aiomailbox.state.snapshot import FetchFile
from aiomailbox.storage import open_storage
from aiomailbox.storage.contract import Storage
from aiomailbox.task.in_flight import TaskSnapshot
from aiomailbox.task.messages import PreparedData, SectionKind, SharedFile, TaskHandle

# A checkpoint, the operator of a sink, and what a subtask of it had prepared for that
# checkpoint, which may not be committed yet.
RestoredCommittables = tuple[int, OperatorId, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class RestoredJob:
    """The state from which a job resumes.

    Attributes:
        metadata: Of the checkpoint.
        snapshot: The state, for `restored_tasks`.
        committables: To be committed before the job goes on, in the order of their
            checkpoints.
        place: The path or URL of the checkpoint.
        ancestors: The ancestors of the checkpoints of a job that resumes from it; see
            `CheckpointMetadata.ancestors`.
        unused_names: Of the names that classes are said to have been saved under, those
            that it has not, nor the names that these classes have now. Nothing where
            something is in it that does not say what classes it holds.
    """

    metadata: CheckpointMetadata
    snapshot: SavedJob
    committables: tuple[RestoredCommittables, ...]
    place: str
    ancestors: tuple[str, ...] = ()
    unused_names: tuple[str, ...] = ()


class CheckpointFiles:
    """The files of one checkpoint or savepoint; all calls block.

    Args:
        storage: Where it is.
        directory: Its name there; "" for the storage itself.

    Attributes:
        storage: The same.
        directory: The same.
    """

    def __init__(self, storage: Storage, directory: str) -> None:
        self.storage = storage
        self.directory = directory
        self._below = f"{directory}/" if directory else ""

    @classmethod
    def at(cls, place: str | os.PathLike[str]) -> CheckpointFiles:
        """Return those at a path or URL."""
        return cls(*open_place(place))

    @property
    def place(self) -> str:
        """The path or URL."""
        return f"{self.storage.place}/{self._below}".rstrip("/")

    @property
    def absence(self) -> str:
        """Why there is no checkpoint, where its metadata was not found."""
        name = os.path.basename(self.place)
        found = "there is no _metadata, which a complete one has"
        if "://" not in self.place and not os.path.exists(self.place):
            found = f"there is no such directory, so {found}"
        if name != "latest" and get_close_matches(name, ("latest",), 1, 0.7):
            found = f'{found}. Is "latest" meant?'
        elif newest := self._newest_below():
            found = (
                f'{found}. The newest below it is {newest!r}; restore_from="latest" '
                "takes that of the job by itself"
            )
        return found

    def _newest_below(self) -> str:
        """Return the newest checkpoint in a directory of jobs, or of one job; or ""."""
        if "://" in self.place:
            return ""
        found = [(0.0, "")]
        # A running job deletes old ones meanwhile.
        with suppress(OSError):
            for pattern in (f"*/{METADATA_NAME}", f"*/*/{METADATA_NAME}"):
                for each in Path(self.place).glob(pattern):
                    found.append((each.stat().st_mtime, str(each.parent)))
        return max(found)[1]

    def metadata(self) -> CheckpointMetadata:
        """Return what the metadata says.

        Raises:
            FileNotFoundError: If there is no checkpoint, or it never was complete.
            DamagedFileError: If the file is not what was written.
            StateError: If another release wrote it.
        """
        name = f"{self._below}{METADATA_NAME}"
        where = f"{self.storage.place}/{name}"
        return read_metadata(where, self.storage.read(name))

    def identity(self) -> str:
        """Return what tells it from every other one, wherever it is moved.

        Raises:
            FileNotFoundError: If there is no checkpoint, or it never was complete.
        """
        digest = hashlib.sha256()
        for chunk in self.storage.read(f"{self._below}{METADATA_NAME}"):
            digest.update(chunk)
        return digest.hexdigest()

    def tasks(
        self, metadata: CheckpointMetadata
    ) -> Iterator[tuple[TaskHandle, memoryview]]:
        """Yield every task with its bytes, once their checksums have been compared.

        Raises:
            DamagedFileError: If a file is missing, or not what was written.
        """
        for handle in metadata.handles:
            self.check_shared(handle)
            yield handle, self.bytes_of(handle)

    def verify(self) -> CheckpointMetadata:
        """Read everything and compare all checksums; return the metadata.

        Raises:
            FileNotFoundError: If there is no metadata.
            DamagedFileError: If a file is missing, or not what was written.
        """
        metadata = self.metadata()
        for _ in self.tasks(metadata):
            pass
        return metadata

    def restored(
        self, classes: Iterable[Any], *, allow_pickled_state: bool = False
    ) -> RestoredJob:
        """Return what a job resumes from; keyed state is decoded when it is asked for.

        Raises:
            FileNotFoundError: If there is no metadata.
            DamagedFileError: If a file is missing, or not what was written.
            StateError: If state does not fit its classes, or needs pickle.
        """
        metadata = self.metadata()
        # Before a byte is decoded: pickled state runs code when it is read.
        if not allow_pickled_state:
            self._refuse_pickle(metadata)
        declared = list(classes)
        # All of them are checked before the first one is decoded.
        tasks = {handle.task: (handle, data) for handle, data in self.tasks(metadata)}
        snapshots = {
            task: decode_task(
                handle,
                data,
                declared,
                allow_pickled_state=allow_pickled_state,
                files=self.files_beside(handle),
            )
            for task, (handle, data) in tasks.items()
        }
        vertices = {
            vertex.operators[0].id: [
                TaskSnapshot() if handle is None else snapshots[handle.task]
                for handle in vertex.tasks
            ]
            for vertex in metadata.vertices
        }
        enumerators = {
            operator: decode_snapshot(
                data, declared, allow_pickled_state=allow_pickled_state
            )
            for operator, data in metadata.enumerators.items()
        }
        committables = tuple(
            (one.checkpoint_id, one.operator, decode_prepared(one, declared))
            for one in _in_order(metadata)
        )
        snapshot = job_snapshot(vertices, enumerators)
        unused = _unused(saved_names(declared), metadata, tasks.values())
        return RestoredJob(
            metadata, snapshot, committables, self.place, metadata.ancestors, unused
        )

    def bytes_of(self, handle: TaskHandle) -> memoryview:
        """Return what a task wrote, once its checksums have been compared.

        Raises:
            DamagedFileError: If its file is missing, or not what was written.
        """
        if handle.file is None:
            name = METADATA_NAME
            data = memoryview(handle.inline)
        else:
            name = f"{self._below}{handle.file}"
            try:
                data = self.storage.view(name)
            except FileNotFoundError as error:
                where = f"{self.storage.place}/{name}"
                raise DamagedFileError(where, "it is missing") from error
        check_task(handle, data, f"{self.storage.place}/{name}")
        return data

    def files_beside(self, handle: TaskHandle) -> FilesBeside:
        """Return the shared files of a task, by operators and pieces of their state."""
        found: dict[OperatorId, dict[int, dict[str, FetchFile]]] = {}
        for file in handle.shared:
            pieces = found.setdefault(file.operator, {})
            fetch = partial(self.storage.fetch, self._shared_name(file))
            pieces.setdefault(file.piece, {})[file.name] = fetch
        return {
            operator: [pieces.get(index, {}) for index in range(max(pieces) + 1)]
            for operator, pieces in found.items()
        }

    def check_shared(self, handle: TaskHandle) -> None:
        """Compare the digests of the shared files of a task.

        Raises:
            DamagedFileError: If one is missing, or not what was written.
        """
        for file in handle.shared:
            name = self._shared_name(file)
            where = f"{self.storage.place}/{name}"
            try:
                found = shared_digest(self.storage.read(name))
            except FileNotFoundError as error:
                raise DamagedFileError(where, "it is missing") from error
            if found != (file.size, file.digest):
                raise DamagedFileError(where, "its checksum does not match its data")

    def _shared_name(self, file: SharedFile) -> str:
        above = self.directory.rpartition("/")[0]
        return f"{above}/{SHARED}/{file.file}" if above else f"{SHARED}/{file.file}"

    def _refuse_pickle(self, metadata: CheckpointMetadata) -> None:
        pickled = [
            f"{state!r} of operator {operator!r}"
            for operator, states in metadata.serializers.items()
            for state, serializer in states.items()
            if serializer == PickleSerializer.id
        ]
        if pickled:
            raise StateError(
                f"{self.place} has state that was pickled: {', '.join(pickled)}. "
                "Reading it would run the code in it. If you trust everybody who could "
                "write it, set allow_pickled_state=True, an argument of "
                "am.JobConfig and of am.Savepoint."
            )


def _unused(
    names: Mapping[str, type],
    metadata: CheckpointMetadata,
    tasks: Iterable[tuple[TaskHandle, memoryview]],
) -> tuple[str, ...]:
    """Return what is said of names that occur nowhere; see `RestoredJob`."""
    if not names:
        return ()
    parts: list[bytes | memoryview] = [*metadata.enumerators.values()]
    parts += [one.data for one in _in_order(metadata)]
    for handle, data in tasks:
        for section in handle.sections:
            if section.kind is SectionKind.CHANNEL:
                return ()
            if section.kind is SectionKind.OPERATOR:
                parts.append(data[section.start : section.start + section.length])
    found: set[str] = set()
    for part in parts:
        described = describe_snapshot(part)
        found |= described.timer_classes.keys()
        for state in described.states:
            if state.serializer != ObjectSerializer.id:
                return ()
            found |= state.classes.keys()
    return tuple(
        name
        for name, kind in names.items()
        if found.isdisjoint({name, class_name(kind)})
    )


def _in_order(metadata: CheckpointMetadata) -> list[PreparedData]:
    """Return what sinks have prepared, that of earlier checkpoints first."""
    found = [*metadata.prepared]
    for handle in metadata.handles:
        found += handle.prepared
    return sorted(found, key=lambda one: one.checkpoint_id)


# Which checkpoints and savepoints there are at a place, of any job.


_OWNER: Final = "a program that deletes checkpoints"


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A checkpoint or savepoint, complete or not, readable or not.

    Attributes:
        files: Its files.
        metadata: Its metadata; None if it cannot be read, or is not complete.
        problem: Why it cannot be read; "" if it can.
        is_complete: Whether it has metadata, readable or not.
    """

    files: CheckpointFiles
    metadata: CheckpointMetadata | None
    problem: str
    is_complete: bool = True

    @property
    def place(self) -> str:
        """Its path or URL."""
        return self.files.place


def find_checkpoints(place: str | os.PathLike[str]) -> list[FoundCheckpoint]:
    """Return the checkpoints at a place, those of a job in their order; blocks.

    Raises:
        OSError: If it cannot be read.
        StateError: If another release has written one, in a format of its own.
    """
    storage, name = open_place(place)
    if _directories(storage, name) == [name]:
        return [_found(storage, name)]
    storage = open_storage(place)
    found = [_found(storage, directory) for directory in _directories(storage, "")]
    return sorted(found, key=_newest_last)


def delete_checkpoint(found: FoundCheckpoint, clock: Clock) -> None:
    """Delete a checkpoint with all its files; blocks.

    Raises:
        StorageClaimedError: If the job that it belongs to is running.
        OSError: If a file cannot be deleted.
    """
    files = found.files
    storage, job = files.storage, files.directory.rpartition("/")[0]
    if not has_job_file(storage, job):
        # A savepoint: the place has no owner, and nothing is shared.
        delete_files(storage, files.directory)
        return
    # The same claim that a job holds: a running one is not deleted from.
    claim = storage.claim(job, _OWNER, clock.now_ms())
    try:
        delete_files(storage, files.directory)
        _write_down_newest(storage, job)
        _remove_unused(storage, job)
    finally:
        claim.release()


def _write_down_newest(storage: Storage, job: str) -> None:
    """Write down which checkpoint is the newest one now."""
    ids = [
        checkpoint_id_of(directory.rpartition("/")[2])
        for directory in _directories(storage, job)
        if f"{directory}/{METADATA_NAME}" in storage.names(directory)
    ]
    try:
        numbers = read_job_file(storage, job)
    except DamagedFileError:
        # The program that resumes the job gets the error.
        return
    newest = max((one for one in ids if one is not None), default=0)
    # Or the job would warn that its newest checkpoint is missing.
    if newest < numbers.completed:
        kept = msgspec.structs.replace(numbers, completed=newest)
        write_job_file(storage, job, kept)


def _remove_unused(storage: Storage, job: str) -> None:
    """Delete shared files that no checkpoint has any more, if all can be read."""
    used: set[str] = set()
    newest = 0
    for directory in _directories(storage, job):
        found = _found(storage, directory)
        if found.metadata is None:
            # One that cannot be read may have any of the files.
            if found.is_complete:
                return
            continue
        used |= found.metadata.shared_files
        newest = max(newest, found.metadata.checkpoint_id)
    # Files of a checkpoint that is being written have a higher number, and stay.
    remove_unused(storage, job, used, newest or 2**63)


def _directories(storage: Storage, below: str) -> list[str]:
    """Return the directories of checkpoints, also of those that are not complete."""
    found: dict[str, None] = {}
    for name in storage.names(below):
        directory, _, file = name.rpartition("/")
        is_checkpoint = checkpoint_id_of(directory.rpartition("/")[2]) is not None
        if file == METADATA_NAME or is_checkpoint:
            found[directory] = None
    return list(found)


def _found(storage: Storage, directory: str) -> FoundCheckpoint:
    files = CheckpointFiles(storage, directory)
    try:
        return FoundCheckpoint(files, files.metadata(), "")
    except FileNotFoundError:
        return FoundCheckpoint(files, None, "it is not complete", is_complete=False)
    except (DamagedFileError, StateError) as error:
        return FoundCheckpoint(files, None, str(error))


def _newest_last(found: FoundCheckpoint) -> tuple[str, int, str]:
    above, _, name = found.files.directory.rpartition("/")
    return above, checkpoint_id_of(name) or 0, name
