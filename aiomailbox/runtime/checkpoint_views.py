"""What is said of checkpoints to people and programs: values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.ids import SubtaskId
from aiomailbox.records import SnapshotType

__all__ = [
    "CheckpointView",
    "CompletedCheckpoint",
    "PendingCheckpoint",
    "place_of_savepoint",
]


def place_of_savepoint(path: str | os.PathLike[str]) -> str:
    """Return where a savepoint is to go, also for workers.

    Raises:
        InvalidArgumentError: If it is empty, or there are files already.
        WrongTypeError: If it is no path.

    Example:
        >>> place_of_savepoint("s3://bucket/savepoint-1")
        's3://bucket/savepoint-1'
    """
    if not isinstance(path, str | os.PathLike):
        raise WrongTypeError("path", f"{path!r} is not a path", "Give a directory.")
    text = os.fspath(path)
    if not text:
        raise InvalidArgumentError("path", "it is empty", "Give a new directory.")
    if "://" in text:
        return text
    text = os.path.abspath(text)
    # A savepoint is written once: what is there may be the only copy.
    if os.path.lexists(text) and (not os.path.isdir(text) or os.listdir(text)):
        raise InvalidArgumentError(
            "path", f"{text!r} exists already", "Give a new or empty directory."
        )
    return text


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint or savepoint from which a job can go on.

    Attributes:
        checkpoint_id: Its number.
        kind: A checkpoint, or one of the savepoints.
        place: Where it is: a path or a URL; ``restore_from=`` takes it.
        size_bytes: What the tasks have written for it.
    """

    checkpoint_id: int
    kind: SnapshotType
    place: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """What a completed checkpoint took.

    Attributes:
        completed: The checkpoint.
        duration_ms: From its trigger until it was complete and committed.
        statistics: The slowest task's ``start_delay_ms``, ``alignment_ms``, ``sync_ms``
            and ``async_ms``, and ``alignment_bytes`` of all.
    """

    completed: CompletedCheckpoint
    duration_ms: float
    statistics: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """A checkpoint that is being taken.

    Attributes:
        checkpoint_id: Its number.
        age_s: How long ago it was triggered, seconds.
        missing: The tasks that have not acknowledged it; none where it is being written.
    """

    checkpoint_id: int
    age_s: float
    missing: list[SubtaskId]
