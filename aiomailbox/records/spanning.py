"""Putting records together that were cut anywhere, even within their length.

Theory of operation: a record that is whole within the buffer is handed out in place,
as a view. Of any other one the pieces are collected: the length first, then the
content, in memory up to a limit, beyond it in a file. Nothing is reserved for a length
that was only announced.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from aiomailbox.errors import (
    CorruptStreamError,
    IllegalStateError,
    InvalidArgumentError,
)

# A record in a stream of bytes: its length in 32 bits, then its content.


LENGTH: Final = struct.Struct(">i")


# Far above what a sane record has, far below what would exhaust a worker.
RECORD_BYTES_MAX: Final = 256 * 1024 * 1024


def frame_record(content: bytes | bytearray | memoryview) -> bytes:
    """Return a record's content with its length before it.

    Raises:
        InvalidArgumentError: If it exceeds `RECORD_BYTES_MAX`.

    Example:
        >>> frame_record(b"ab").hex()
        '000000026162'
    """
    _check_size(len(content))
    return LENGTH.pack(len(content)) + bytes(content)


def begin_frame(output: bytearray) -> int:
    """Leave room for a length, and return where; serialize behind it.

    Example:
        >>> output = bytearray()
        >>> start = begin_frame(output)
        >>> output += b"ab"
        >>> end_frame(output, start)
        >>> output.hex()
        '000000026162'
    """
    start = len(output)
    output += bytes(LENGTH.size)
    return start


def end_frame(output: bytearray, start: int) -> None:
    """Fill in the length of what was appended since `begin_frame`.

    Raises:
        InvalidArgumentError: If it exceeds `RECORD_BYTES_MAX`; it is removed.
    """
    size_bytes = len(output) - start - LENGTH.size
    try:
        _check_size(size_bytes)
    except InvalidArgumentError:
        del output[start:]
        raise
    LENGTH.pack_into(output, start, size_bytes)


def _check_size(size_bytes: int) -> None:
    if size_bytes > RECORD_BYTES_MAX:
        raise InvalidArgumentError(
            "record",
            f"{size_bytes} bytes exceed the limit of {RECORD_BYTES_MAX}",
            "Pass such content by reference, as a path or a URL.",
        )


# A file for the one record that is too large to be put together in memory.
#
# Theory of operation: the file has no name from the beginning, so that it is gone when
# it is closed or when the process dies, however it dies. A complete record is mapped
# into memory, so that the pages that were read can be dropped again.


class SpillFile:
    """Bytes that are appended, then read once.

    Args:
        directory: Where; None for the system's place for temporary files.

    Example:
        >>> file = SpillFile()
        >>> file.append(b"large ")
        >>> file.append(b"record")
        >>> bytes(file.content())
        b'large record'
        >>> file.close()
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        # Late: its import takes long, and few jobs spill.
        import tempfile

        self._file = tempfile.TemporaryFile(  # noqa: SIM115 -- closed by close()
            dir=directory, prefix="aiomailbox-", suffix=".inputchannel"
        )
        self._map: mmap.mmap | None = None
        self.size_bytes: int = 0

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Write bytes at the end."""
        self._file.write(data)
        self.size_bytes += len(data)

    def content(self) -> memoryview:
        """Return all bytes, read-only; valid as long as a view of them exists."""
        self._file.flush()
        if self._map is None:
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return memoryview(self._map)

    def close(self) -> None:
        """Delete the file; views of its content stay valid. Idempotent."""
        # Closing the map would fail while views exist; the last of them ends it.
        self._map = None
        self._file.close()


SPILL_THRESHOLD_BYTES: Final = 5 * 1024 * 1024


_LENGTH_BYTES: Final = LENGTH.size


_EMPTY: Final = memoryview(b"")


class DeserializationResult(Enum):
    """The outcome of the search for the next record.

    Concept:
        Flink, ``RecordDeserializer.DeserializationResult``.
    """

    PARTIAL_RECORD = "no whole record; the buffer is consumed"
    INTERMEDIATE_RECORD = "a record, and more in the buffer"
    LAST_RECORD = "a record, and the buffer is consumed"

    @property
    def is_full_record(self) -> bool:
        """Whether there is a record."""
        return self is not DeserializationResult.PARTIAL_RECORD

    @property
    def is_buffer_consumed(self) -> bool:
        """Whether the buffer may be recycled, once the record was used."""
        return self is not DeserializationResult.INTERMEDIATE_RECORD


class RecordPiece(NamedTuple):
    """The outcome of one look; ``content`` is empty without a record."""

    result: DeserializationResult
    content: memoryview


_PARTIAL: Final = RecordPiece(DeserializationResult.PARTIAL_RECORD, _EMPTY)


class RecordDeserializer:
    """Finds the records in one channel's buffers.

    Args:
        spill_threshold_bytes: A record of more bytes goes to a file.
        record_bytes_max: A record of more bytes is refused.
        spill_directory: Where files go; None for the system's place.

    Invariants:
        At most ``spill_threshold_bytes`` and one buffer are held in memory.

    Concept:
        Flink, ``SpillingAdaptiveSpanningRecordDeserializer``.

    Example:
        >>> deserializer = RecordDeserializer()
        >>> deserializer.set_next_buffer(bytes.fromhex("0000000261"))
        >>> deserializer.next_record().result.name
        'PARTIAL_RECORD'
        >>> deserializer.set_next_buffer(b"b")
        >>> bytes(deserializer.next_record().content)
        b'ab'
    """

    def __init__(
        self,
        *,
        spill_threshold_bytes: int = SPILL_THRESHOLD_BYTES,
        record_bytes_max: int = RECORD_BYTES_MAX,
        spill_directory: str | os.PathLike[str] | None = None,
    ) -> None:
        self._spill_threshold_bytes = spill_threshold_bytes
        self._record_bytes_max = record_bytes_max
        self._spill_directory = spill_directory
        self._buffer = _EMPTY
        self._position = 0
        # Of a record that began in an earlier buffer: its length once that is known.
        self._length: int | None = None
        self._collected = bytearray()
        self._spilled: SpillFile | None = None

    @property
    def has_unfinished_record(self) -> bool:
        """Whether a record began in an earlier buffer and is not whole yet."""
        return self._length is not None or bool(self._collected)

    @property
    def has_rest(self) -> bool:
        """Whether the buffer holds more than was handed out."""
        return self._position < len(self._buffer)

    @property
    def is_spilling(self) -> bool:
        """Whether the unfinished record is in a file."""
        return self._spilled is not None

    def set_next_buffer(self, data: bytes | bytearray | memoryview) -> None:
        """Look into these bytes from now on; borrowed until they are consumed.

        Raises:
            IllegalStateError: If the last ones were not consumed.
        """
        if self._position < len(self._buffer):
            raise IllegalStateError(
                "the last buffer holds more: call next_record() until it is consumed"
            )
        self._buffer = memoryview(data)
        self._position = 0

    def next_record(self) -> RecordPiece:
        """Look for the next record.

        Returns:
            What was found; the content is borrowed from the buffer, so use it before
            the buffer is recycled.

        Raises:
            CorruptStreamError: If a length is negative or beyond the limit.
        """
        if self.has_unfinished_record:
            return self._continue()
        start = self._position + _LENGTH_BYTES
        if start <= len(self._buffer):
            (length,) = LENGTH.unpack_from(self._buffer, self._position)
            self._check_length(length)
            if start + length <= len(self._buffer):
                self._position = start + length
                return self._found(self._buffer[start : self._position])
        return self._continue()

    def records(self, data: bytes | bytearray | memoryview) -> Iterator[memoryview]:
        """Return the records that end in a buffer, one after the other.

        The same as `set_next_buffer` and `next_record` until the buffer is consumed,
        for less: records that are whole within the buffer cost no call each.

        Args:
            data: Borrowed until the last record was taken.

        Raises:
            IllegalStateError: If the last buffer was not consumed.
            CorruptStreamError: If a length is negative or beyond the limit.
        """
        self.set_next_buffer(data)
        if self.has_unfinished_record:
            result, content = self.next_record()
            if result.is_full_record:
                yield content
            if result.is_buffer_consumed:
                return
        yield from self._whole_records(self._buffer)
        if self._position < len(self._buffer):
            self.next_record()
        self._consumed()

    def unconsumed(self) -> bytes:
        """Return what was not handed out yet, as it came, to be replayed."""
        rest = bytes(self._buffer[self._position :])
        if self._length is None:
            return bytes(self._collected) + rest
        begun = self._collected if self._spilled is None else self._spilled_content()
        return LENGTH.pack(self._length) + bytes(begun) + rest

    def clear(self) -> None:
        """Forget everything, and delete the file if there is one. Idempotent."""
        self._buffer = _EMPTY
        self._position = 0
        self._forget_record()

    def _whole_records(self, buffer: memoryview) -> Iterator[memoryview]:
        unpack_length = LENGTH.unpack_from
        length_max = self._record_bytes_max
        end = len(buffer)
        start = self._position + _LENGTH_BYTES
        while start <= end:
            (length,) = unpack_length(buffer, start - _LENGTH_BYTES)
            stop = start + length
            if stop > end or not 0 <= length <= length_max:
                return
            self._position = stop
            yield buffer[start:stop]
            start = stop + _LENGTH_BYTES

    def _continue(self) -> RecordPiece:
        if self._length is None and not self._collect_length():
            return self._consumed()
        length = self._length
        assert length is not None
        missing = length - self._collected_bytes
        piece = self._take(missing)
        if self._spilled is not None:
            self._spilled.append(piece)
        elif length > self._spill_threshold_bytes:
            self._spilled = SpillFile(self._spill_directory)
            self._spilled.append(piece)
        else:
            self._collected += piece
        if len(piece) < missing:
            return self._consumed()
        whole = self._whole_record()
        self._forget_record()
        return self._found(whole)

    def _collect_length(self) -> bool:
        self._collected += self._take(_LENGTH_BYTES - len(self._collected))
        if len(self._collected) < _LENGTH_BYTES:
            return False
        (length,) = LENGTH.unpack(self._collected)
        self._check_length(length)
        self._length = length
        self._collected = bytearray()
        return True

    @property
    def _collected_bytes(self) -> int:
        if self._spilled is not None:
            return self._spilled.size_bytes
        return len(self._collected)

    def _take(self, size_bytes: int) -> memoryview:
        start = self._position
        self._position = min(start + size_bytes, len(self._buffer))
        return self._buffer[start : self._position]

    def _whole_record(self) -> memoryview:
        if self._spilled is not None:
            return self._spilled_content()
        return memoryview(self._collected)

    def _spilled_content(self) -> memoryview:
        assert self._spilled is not None
        return self._spilled.content() if self._spilled.size_bytes else _EMPTY

    def _found(self, content: memoryview) -> RecordPiece:
        if self._position < len(self._buffer):
            return RecordPiece(DeserializationResult.INTERMEDIATE_RECORD, content)
        self._consumed()
        return RecordPiece(DeserializationResult.LAST_RECORD, content)

    def _consumed(self) -> RecordPiece:
        # Release the memory: it goes back to its pool.
        self._buffer = _EMPTY
        self._position = 0
        return _PARTIAL

    def _forget_record(self) -> None:
        self._length = None
        # A new one, since the record that was handed out is a view of the old one.
        self._collected = bytearray()
        if self._spilled is not None:
            self._spilled.close()
            self._spilled = None

    def _check_length(self, length: int) -> None:
        if length < 0:
            raise CorruptStreamError(f"a record cannot have {length} bytes")
        if length > self._record_bytes_max:
            raise CorruptStreamError(
                f"a record of {length} bytes exceeds the limit of "
                f"{self._record_bytes_max}: the stream is corrupt, or the record should "
                "be passed by reference"
            )
