"""A record in a stream of bytes: its length in 32 bits, then its content."""

from __future__ import annotations

import struct
from typing import Final

from aiomailbox.errors import InvalidArgumentError

__all__ = ["LENGTH", "RECORD_BYTES_MAX", "begin_frame", "end_frame", "frame_record"]

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
