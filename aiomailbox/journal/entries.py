"""The entry of a call in a journal, as bytes.

::

    entry = kind (u8) key length (u8) fingerprint (8 bytes) key payload
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from uuid import UUID

import msgspec

from aiomailbox.errors import DamagedFileError, WrongTypeError
from aiomailbox.storage.append_log import LogSegment, entry_at

NO_FINGERPRINT: Final = bytes(8)


_HEAD: Final = struct.Struct("<BB8s")


# An index holds keys in memory; a longer one is held as its digest.
_KEY_BYTES_MAX: Final = 32


# No MessagePack begins with this byte.
_DIGEST: Final = b"\xc1"


_encode: Final = msgspec.msgpack.Encoder().encode


_KINDS: Final = frozenset({str, int, bytes, UUID})


class EntryKind(IntEnum):
    """The contents of an entry."""

    RESULT = 1
    """A call has ended well; the payload is its result."""
    FAILURE = 2
    """A call has failed permanently; the payload says how."""
    FOUND = 3
    """A row has come again whose call an earlier attempt had finished."""
    MARK = 4
    """The entries behind it came after a checkpoint; see `SubtaskJournal.mark`."""


class JournalEntry(NamedTuple):
    """One entry of a journal.

    Attributes:
        kind: Its kind.
        key: Of which record; see `record_key`.
        fingerprint: Of what the call was made with: 8 bytes.
        payload: Its outcome.
    """

    kind: int
    key: bytes
    fingerprint: bytes
    payload: bytes


def encode_entry(kind: int, key: bytes, fingerprint: bytes, payload: bytes) -> bytes:
    """Return an entry as bytes.

    Example:
        >>> decode_entry(
        ...     "log", encode_entry(EntryKind.RESULT, b"key", b"12345678", b"")
        ... )
        JournalEntry(kind=1, key=b'key', fingerprint=b'12345678', payload=b'')
    """
    return _HEAD.pack(kind, len(key), fingerprint) + key + payload


def decode_entry(name: str, data: bytes) -> JournalEntry:
    """Return the entry that was encoded.

    Args:
        name: The file, for messages.
        data: The bytes.

    Raises:
        DamagedFileError: If they are none that `encode_entry` has made.
    """
    if len(data) < _HEAD.size:
        raise DamagedFileError(name, "an entry has no head")
    kind, length, fingerprint = _HEAD.unpack_from(data)
    end = _HEAD.size + length
    return JournalEntry(kind, data[_HEAD.size : end], fingerprint, data[end:])


def entries_in(segment: LogSegment) -> Iterator[tuple[int, JournalEntry]]:
    """Yield the entries of a segment with their places, as far as they are whole."""
    name = str(segment.path)
    for place, data in segment.entries():
        yield place, decode_entry(name, data)


def entry_in(segment: LogSegment, place: int) -> JournalEntry:
    """Return the entry at a place of a segment; raises as `LogSegment.entry_at`."""
    return decode_entry(str(segment.path), segment.entry_at(place))


def record_key(identity: Any) -> bytes:
    """Return a record's id as the bytes that name it in a journal, at most 32.

    Args:
        identity: A str, int, bytes or UUID, or a tuple of these.

    Raises:
        WrongTypeError: If it is of another type.

    Example:
        >>> record_key("order-7") == record_key(("order", 7))
        False
        >>> len(record_key("order-7" * 100))
        17
    """
    if type(identity) not in _KINDS:
        _check(identity)
    try:
        key = _encode(identity)
    except (OverflowError, UnicodeEncodeError):
        # An int beyond 64 bits, or a text that is none.
        key = repr(identity).encode("ascii", "backslashreplace")
        return _DIGEST + hashlib.blake2b(key, digest_size=16).digest()
    if len(key) <= _KEY_BYTES_MAX:
        return key
    return _DIGEST + hashlib.blake2b(key, digest_size=16).digest()


def _check(identity: Any) -> None:
    if type(identity) is tuple and identity:
        for part in identity:
            if type(part) not in _KINDS:
                _check(part)
        return
    raise WrongTypeError(
        "id",
        f"{identity!r} is a {type(identity).__qualname__}",
        "The id of a record is a str, an int, bytes or a UUID, or a tuple of these.",
    )


# Where the parts of a journal are, below a job's directory.
#
# ::
#
#     <operator>/fence                     which epoch may write, by subtask
#     <operator>/base-<epoch>/             what earlier epochs have left
#     <operator>/released/                 what the base has and is no longer asked for
#     <operator>/log-<epoch>-<subtask>/    what a subtask has appended
#
# In a storage that appends to nothing, a segment of a log is in parts, with the place
# of each at the end of its name, and there is one file more::
#
#     <operator>/begun                     by subtask the first epoch not in the base


_NAME_CHARS_MAX: Final = 120


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
    return encode_entry(EntryKind.MARK, b"", NO_FINGERPRINT, payload)


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
                for _, entry in entries_in(segment):
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


# What calls of earlier epochs came to: keys in memory, all else in a file.
#
# Theory of operation: an index has for each key the place of its entry, about 150
# bytes, however large the results are.


class FinishedBefore:
    """The base of an operator, as all its subtasks in one process share it; blocks.

    It stays readable when its files are deleted, until it is closed.

    Args:
        operator: The operator's directory.

    Attributes:
        places: By key where its entry is.
        users: Subtasks that have it open.

    Raises:
        DamagedFileError: If the base is not what was written.
        OSError: If it cannot be read.
    """

    def __init__(self, operator: Path) -> None:
        self.places: dict[bytes, int] = {}
        self.users: int = 0
        self._file = -1
        self._path = Path()
        for base in base_directories(operator)[-1:]:
            for segment in LogSegment.all_in(base):
                self._load(segment)

    def read(self, place: int) -> JournalEntry:
        """Return the entry at a place.

        Raises:
            DamagedFileError: If it is not what was written.
            OSError: If it cannot be read.
        """
        data = entry_at(self._file, place, self._path)
        return decode_entry(str(self._path), data)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _load(self, segment: LogSegment) -> None:
        check_finished(segment, is_last=False)
        for place, entry in entries_in(segment):
            self.places[entry.key] = place
        self._path = segment.path
        self._file = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
