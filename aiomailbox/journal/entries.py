"""What a journal holds of a call, as bytes.

::

    entry = kind (u8) key length (u8) fingerprint (8 bytes) key payload
"""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from aiomailbox.errors import DamagedFileError, WrongTypeError

__all__ = [
    "NO_FINGERPRINT",
    "Entry",
    "EntryKind",
    "decode_entry",
    "encode_entry",
    "record_key",
]

NO_FINGERPRINT: Final = bytes(8)
_HEAD: Final = struct.Struct("<BB8s")
# An index holds keys in memory; a longer one is held as its digest.
_KEY_BYTES_MAX: Final = 32
# No MessagePack begins with this byte.
_DIGEST: Final = b"\xc1"
_encode: Final = msgspec.msgpack.Encoder().encode
_KINDS: Final = frozenset({str, int, bytes, UUID})


class EntryKind(IntEnum):
    """What an entry says."""

    RESULT = 1
    """A call has ended well; the payload is its result."""
    FAILURE = 2
    """A call has failed permanently; the payload says how."""
    FOUND = 3
    """A row has come again whose call an earlier attempt had finished."""
    MARK = 4
    """What follows came after a checkpoint; see `SubtaskJournal.mark`."""


class Entry(NamedTuple):
    """One entry of a journal.

    Attributes:
        kind: What it says.
        key: Of which record; see `record_key`.
        fingerprint: Of what the call was made with: 8 bytes.
        payload: What it came to.
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
        Entry(kind=1, key=b'key', fingerprint=b'12345678', payload=b'')
    """
    return _HEAD.pack(kind, len(key), fingerprint) + key + payload


def decode_entry(name: str, data: bytes) -> Entry:
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
    return Entry(kind, data[_HEAD.size : end], fingerprint, data[end:])


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
