"""What is said of checkpoints to people and programs: values."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.ids import SubtaskId
from aiomailbox.records.events import SnapshotType
from aiomailbox.storage import path_of

__all__ = [
    "CheckpointView",
    "CompletedCheckpoint",
    "PendingCheckpoint",
    "place_of_savepoint",
]


def place_of_savepoint(
    path: str | os.PathLike[str], own_places: Iterable[str] = ()
) -> str:
    """Return where a savepoint is to go, also for workers.

    Args:
        path: The path or URL that the user has given.
        own_places: Where the job keeps its checkpoints, and deletes them.

    Raises:
        InvalidArgumentError: If it is empty, among the job's checkpoints, or there are
            files already.
        WrongTypeError: If it is no path.

    Example:
        >>> place_of_savepoint("s3://bucket/savepoint-1", ["s3://bucket/jobs/orders"])
        's3://bucket/savepoint-1'
    """
    if not isinstance(path, str | os.PathLike):
        raise WrongTypeError("path", f"{path!r} is not a path", "Give a directory.")
    text = os.fspath(path)
    if not text:
        raise InvalidArgumentError("path", "it is empty", "Give a new directory.")
    wanted = _real(text)
    for place in own_places:
        if f"{wanted}/".startswith(f"{_real(place)}/"):
            # It would be taken for the newest of them, or go with them.
            raise InvalidArgumentError(
                "path",
                f"{text!r} is among the checkpoints of job {place!r}",
                "Give a directory beside them, e.g. one named savepoints.",
            )
    local = path_of(text)
    if local is None:
        return text
    text = os.path.abspath(local)
    # A savepoint is written once: what is there may be the only copy.
    if os.path.lexists(text) and (not os.path.isdir(text) or os.listdir(text)):
        raise InvalidArgumentError(
            "path", f"{text!r} exists already", "Give a new or empty directory."
        )
    return text


def _real(place: str) -> str:
    """Return a path or a URL in the form that all names of one place have."""
    local = path_of(place)
    if local is not None:
        return os.path.realpath(local)
    scheme, _, path = place.partition("://")
    return f"{scheme}://{posixpath.normpath(path)}"


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
