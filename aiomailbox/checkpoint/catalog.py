"""Which checkpoints and savepoints there are at a place, of any job."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

import msgspec

from aiomailbox.checkpoint.job_file import (
    has_job_file,
    read_job_file,
    write_job_file,
)
from aiomailbox.checkpoint.layout import (
    METADATA_NAME,
    checkpoint_id_of,
    open_place,
)
from aiomailbox.checkpoint.metadata import CheckpointMetadata
from aiomailbox.checkpoint.reader import CheckpointFiles
from aiomailbox.checkpoint.shared_files import remove_unused
from aiomailbox.clock import Clock
from aiomailbox.errors import DamagedFileError, StateError
from aiomailbox.storage import open_storage
from aiomailbox.storage.contract import Storage

__all__ = ["FoundCheckpoint", "delete_checkpoint", "find_checkpoints"]

_OWNER: Final = "a program that deletes checkpoints"


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A checkpoint or savepoint, complete or not, readable or not.

    Attributes:
        files: Its files.
        metadata: What it is; None if that cannot be read, or it is not complete.
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

    Args:
        place: The path or URL of a checkpoint or savepoint, or of a directory that has
            some at any depth: of a job, or of several.

    Raises:
        OSError: If it cannot be read.
        StateError: If another release has written one, in a format of its own.
    """
    storage, name = open_place(place)
    if _directories(storage, name) == [name]:
        return [_found(storage, name)]
    storage = open_storage(place)
    found = [_found(storage, directory) for directory in _directories(storage, "")]
    return sorted(found, key=_in_order)


def delete_checkpoint(found: FoundCheckpoint, clock: Clock) -> None:
    """Delete a checkpoint with all its files; blocks.

    Args:
        found: The checkpoint.
        clock: Tells when a claim runs out.

    Raises:
        StorageClaimedError: If the job that it belongs to is running.
        OSError: If a file cannot be deleted.
    """
    files = found.files
    storage, job = files.storage, files.directory.rpartition("/")[0]
    if not has_job_file(storage, job):
        # A savepoint: the place has no owner, and nothing is shared.
        files.delete()
        return
    # The same claim that a job holds: a running one is not deleted from.
    claim = storage.claim(job, _OWNER, clock.now_ms())
    try:
        files.delete()
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


def _in_order(found: FoundCheckpoint) -> tuple[str, int, str]:
    above, _, name = found.files.directory.rpartition("/")
    return above, checkpoint_id_of(name) or 0, name
