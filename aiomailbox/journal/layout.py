"""Where the parts of a journal are, below a job's directory.

::

    <operator>/fence                     which epoch may write, by subtask
    <operator>/base-<epoch>/             what earlier epochs have left
    <operator>/released/                 what the base has and is no longer asked for
    <operator>/log-<epoch>-<subtask>/    what a subtask has appended

In a storage that appends to nothing, a segment of a log is in parts, with the place of
each at the end of its name, and there is one file more::

    <operator>/begun                     by subtask the first epoch not in the base
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from aiomailbox.errors import DamagedFileError
from aiomailbox.journal.entries import EntryKind, decode_entry, encode_entry
from aiomailbox.storage.append_log import LogSegment

__all__ = [
    "LogDirectory",
    "base_directories",
    "base_directory",
    "check_finished",
    "encode_mark",
    "first_needed",
    "log_directories",
    "log_directory",
    "operator_directory",
]

_NAME_CHARS_MAX: Final = 120
_NO_KEY: Final = b""
_NONE: Final = bytes(8)


class LogDirectory(NamedTuple):
    """The log of a subtask in an epoch."""

    epoch: int
    subtask: int
    path: Path

    @classmethod
    def parse(cls, path: Path) -> LogDirectory | None:
        """Return the log that has its files at a path, None for another path."""
        kind, _, numbers = path.name.partition("-")
        epoch, _, subtask = numbers.partition("-")
        if kind != "log" or not epoch.isdecimal() or not subtask.isdecimal():
            return None
        return cls(int(epoch), int(subtask), path)

    @property
    def segments(self) -> list[LogSegment]:
        """Its segments, in order."""
        return LogSegment.all_in(self.path)


def operator_directory(directory: Path, operator_id: str) -> Path:
    """Return where an operator's journal is.

    Example:
        >>> operator_directory(Path("journal"), "ask/1").as_posix()
        'journal/op-ask%2F1'
    """
    name = quote(operator_id, safe="")
    if len(name) > _NAME_CHARS_MAX:
        digest = hashlib.blake2b(operator_id.encode(), digest_size=8).hexdigest()
        name = f"{name[:_NAME_CHARS_MAX]}~{digest}"
    return directory / f"op-{name}"


def log_directory(operator: Path, epoch: int, subtask: int) -> Path:
    """Return where a subtask of an operator appends in an epoch."""
    return operator / f"log-{epoch:09}-{subtask:06}"


def log_directories(operator: Path) -> list[LogDirectory]:
    """Return all logs of an operator, older epochs first."""
    found = (LogDirectory.parse(path) for path in operator.glob("log-*-*"))
    return sorted(log for log in found if log is not None)


def base_directory(operator: Path, epoch: int) -> Path:
    """Return where the base is that was made when an epoch began."""
    return operator / f"base-{epoch:09}"


def base_directories(operator: Path) -> list[Path]:
    """Return all bases of an operator, older ones first.

    There is one, or none; two where a crash came between making one and deleting the
    one before.
    """
    return sorted(operator.glob("base-*[0-9]"))


def encode_mark(needed: int) -> bytes:
    """Return the first entry of a segment, which a checkpoint has begun.

    Args:
        needed: The first segment that a job resumed from that checkpoint may need.
    """
    payload = needed.to_bytes(8, "little")
    return encode_entry(EntryKind.MARK, _NO_KEY, _NONE, payload)


def first_needed(segments: list[LogSegment], checkpoint_id: int | None) -> int:
    """Return the first segment that a checkpoint may ask for.

    Segments have the numbers of the checkpoints before them.

    Args:
        segments: Of one log, in order.
        checkpoint_id: The checkpoint, None for one before all.
    """
    if checkpoint_id is not None:
        for segment in reversed(segments):
            if 0 < segment.number <= checkpoint_id:
                for _, data in segment.entries():
                    entry = decode_entry(str(segment.path), data)
                    if entry.kind == EntryKind.MARK:
                        return int.from_bytes(entry.payload, "little")
                    break
    return 0


def check_finished(segment: LogSegment, *, is_last: bool) -> None:
    """Raise if what calls came to was lost, to anything but a crash.

    Raises:
        DamagedFileError: If so.
        OSError: If the segment cannot be read.
    """
    try:
        segment.check(is_last=is_last)
    except DamagedFileError as error:
        raise DamagedFileError(
            error.name,
            f"{error.problem}. It holds the results of finished calls. Delete it to "
            "make those calls again",
        ) from error
