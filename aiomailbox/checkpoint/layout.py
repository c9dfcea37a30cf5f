"""Where the files of a job's checkpoints are; all names are relative."""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import quote

from aiomailbox.storage import open_storage
from aiomailbox.storage.contract import Storage

__all__ = [
    "JOB_FILE",
    "METADATA_NAME",
    "checkpoint_directory",
    "checkpoint_id_of",
    "is_checkpoint_file",
    "job_directory",
    "open_place",
]

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
