"""A look at the headers of Arrow's messages before Arrow reads them.

Theory of operation: Arrow allocates what compressed content claims to become, so that
has to be refused before. A header is a flatbuffer: a table, whose vtable says where each
of its slots is.
"""

from __future__ import annotations

import struct
from typing import Final

from aiomailbox.errors import CorruptStreamError

__all__ = ["check_messages"]

_CONTINUATION: Final = 0xFFFF_FFFF
_PREFIX: Final = struct.Struct("<II")
_END: Final = _PREFIX.pack(_CONTINUATION, 0)
_SHORT: Final = struct.Struct("<H")
_INT: Final = struct.Struct("<i")
_LONG: Final = struct.Struct("<q")

# Types of messages, and where their tables keep what is looked at.
_SCHEMA: Final = 1
_DICTIONARY: Final = 2
_BATCH: Final = 3
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_COMPRESSION: Final = 3
_DICTIONARY_ID, _DICTIONARY_DATA, _DICTIONARY_IS_DELTA = 0, 1, 2


def check_messages(written: bytes) -> tuple[int, bool]:
    """Check that there is a schema, dictionaries, and one batch, none compressed.

    Returns:
        Where the schema ends, and whether there are dictionaries.

    Raises:
        CorruptStreamError: If there is anything else.
        struct.error: And `LookupError`, if a header refers to what is beyond it.
    """
    position = head_bytes = 0
    seen: set[int] = set()
    while True:
        mark, size_bytes = _PREFIX.unpack_from(written, position)
        start = position + _PREFIX.size
        if mark != _CONTINUATION or size_bytes > len(written) - start:
            raise CorruptStreamError("there is no Arrow message where one should be")
        header = _Table.root(written[start : start + size_bytes])
        body_bytes = header.long(_BODY_LENGTH)
        position = start + size_bytes + body_bytes
        if body_bytes < 0 or position > len(written):
            raise CorruptStreamError(f"an Arrow message cannot have {body_bytes} bytes")
        kind, content = header.byte(_HEADER_TYPE), header.table(_HEADER)
        if (kind == _SCHEMA) != (not head_bytes):
            raise CorruptStreamError(f"an Arrow message of type {kind} is out of place")
        if kind == _SCHEMA:
            head_bytes = position
            continue
        if kind == _DICTIONARY:
            identity = content.long(_DICTIONARY_ID)
            if identity in seen or content.byte(_DICTIONARY_IS_DELTA):
                raise CorruptStreamError(f"there are two dictionaries {identity}")
            seen.add(identity)
            content = content.table(_DICTIONARY_DATA)
        elif kind != _BATCH:
            raise CorruptStreamError(f"there is no Arrow message of type {kind} here")
        if content.has(_COMPRESSION):
            raise CorruptStreamError("compressed Arrow messages are not read")
        if kind == _BATCH:
            break
    if written[position:] not in {b"", _END}:
        raise CorruptStreamError("more than one record batch was sent")
    return head_bytes, bool(seen)


class _Table:
    """A flatbuffer's table, as far as it has to be looked at."""

    __slots__ = ("_content", "_start", "_vtable", "_vtable_bytes")

    def __init__(self, content: bytes, start: int) -> None:
        self._content = content
        self._start = start
        self._vtable = start - _at(_INT, content, start)
        self._vtable_bytes = _at(_SHORT, content, self._vtable)

    @classmethod
    def root(cls, content: bytes) -> _Table:
        return cls(content, _at(_INT, content, 0))

    def has(self, slot: int) -> bool:
        return self._place(slot) is not None

    def byte(self, slot: int) -> int:
        place = self._place(slot)
        return 0 if place is None else self._content[place]

    def long(self, slot: int) -> int:
        place = self._place(slot)
        return 0 if place is None else _at(_LONG, self._content, place)

    def table(self, slot: int) -> _Table:
        place = self._place(slot)
        if place is None:
            raise CorruptStreamError("an Arrow message has no content")
        return _Table(self._content, place + _at(_INT, self._content, place))

    def _place(self, slot: int) -> int | None:
        entry = _SHORT.size * (2 + slot)
        if entry + _SHORT.size > self._vtable_bytes:
            return None
        offset = _at(_SHORT, self._content, self._vtable + entry)
        return self._start + offset if offset else None


def _at(form: struct.Struct, content: bytes, place: int) -> int:
    if place < 0:
        raise CorruptStreamError("an Arrow message refers to what is not in it")
    number: int = form.unpack_from(content, place)[0]
    return number
