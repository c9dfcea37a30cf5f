"""What outlives a job's program beside its checkpoints: a few numbers, in one file."""

from __future__ import annotations

from typing import Final

import msgspec

from aiomailbox.checkpoint.layout import JOB_FILE
from aiomailbox.errors import DamagedFileError
from aiomailbox.storage.checked import checked_chunks, checked_frames
from aiomailbox.storage.contract import Storage

__all__ = ["JobNumbers", "has_job_file", "read_job_file", "write_job_file"]

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
