"""Where the files of a job's checkpoints are; all names are relative."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from aiomailbox.errors import DamagedFileError
from aiomailbox.records.events import SnapshotType
from aiomailbox.storage import open_storage
from aiomailbox.storage.checked import checked_chunks, checked_frames
from aiomailbox.storage.contract import Storage

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


def open_place(place: str | os.PathLike[str]) -> tuple[Storage, str]:
    """Return where a checkpoint or savepoint is: a storage, and the directory in it.

    Args:
        place: The path or URL of its directory, or of the metadata in it.

    Example:
        >>> storage, name = open_place("/data/jobs/delays/chk-7/_metadata")
        >>> storage.place, name
        ('/data/jobs/delays', 'chk-7')
    """
    text = os.fspath(place).rstrip("/").removesuffix(f"/{METADATA_NAME}")
    above, separator, name = text.rpartition("/")
    # Nothing is above: "/" and "s3://" have no directory that both could be in.
    if not separator or above.endswith(("/", ":")):
        # At the top: what is shared with others cannot be beside it.
        return open_storage(text), ""
    return open_storage(above), name


# What outlives a job's program beside its checkpoints: a few numbers, in one file.


_KIND: Final = 2


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
        finished_from: What the run that ended well had gone on from; see
            `CheckpointMetadata.ancestors`.
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
    data = b"".join(checked_frames(name, _KIND, storage.read(name)))
    try:
        return msgspec.msgpack.decode(data, type=JobNumbers)
    except msgspec.MsgspecError as error:
        raise DamagedFileError(name, f"its content is invalid: {error}") from error


def write_job_file(storage: Storage, directory: str, numbers: JobNumbers) -> None:
    """Write a job's numbers, durably."""
    data = checked_chunks(_KIND, [msgspec.msgpack.encode(numbers)])
    storage.write(_name(directory), data)


def _name(directory: str) -> str:
    return f"{directory}/{JOB_FILE}" if directory else JOB_FILE


# Which completed checkpoints are kept.
#
# Concept:
#     Flink, ``DefaultCompletedCheckpointStore`` and ``CheckpointSubsumeHelper``.


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
