"""A memory segment: first of all a permit, and memory only when it is asked for it.

Theory of operation: what a pool hands out and counts is the segment object. Buffers of
objects need no more than that. The arena behind all segments is mapped when the first
of them is asked for its bytes, and the operating system backs only the pages that are
written.
"""

from __future__ import annotations

import mmap
import struct
import sys
from typing import Literal

from aiomailbox.errors import IllegalStateError, InvalidArgumentError

__all__ = ["DEFAULT_SEGMENT_SIZE_BYTES", "MemoryArena", "MemorySegment"]

# 32 KiB is Flink's default size of a network segment.
DEFAULT_SEGMENT_SIZE_BYTES = 32 * 1024

ByteOrder = Literal["big", "little", "native"]
_PREFIXES = {
    "big": ">",
    "little": "<",
    "native": "<" if sys.byteorder[0] == "l" else ">",
}


class MemoryArena:
    """The memory that a pool's segments are cut from; nothing is mapped until used.

    Args:
        segments: Number of segments.
        segment_size_bytes: Size of each.
    """

    __slots__ = ("_view", "segment_size_bytes", "segments")

    def __init__(self, segments: int, segment_size_bytes: int) -> None:
        self.segments: int = segments
        self.segment_size_bytes: int = segment_size_bytes
        self._view: memoryview | None = None

    @property
    def is_mapped(self) -> bool:
        """Whether any segment has been asked for its bytes."""
        return self._view is not None

    def cut(self, index: int) -> memoryview:
        """Return the writable bytes of one segment; maps the arena the first time."""
        if self._view is None:
            # An anonymous map, since bytearray(n) writes zeros to every page.
            size_bytes = self.segments * self.segment_size_bytes
            self._view = memoryview(mmap.mmap(-1, size_bytes))
        start = index * self.segment_size_bytes
        return self._view[start : start + self.segment_size_bytes]


class MemorySegment:
    """One permit of a pool, and the bytes that belong to it.

    Args:
        size_bytes: Size of the segment.
        arena: Where its bytes are cut from; None gives it bytes of its own.
        index: Its place in the arena.

    Concept:
        Flink, ``MemorySegment``. A segment has no reference count; buffers have.

    Example:
        >>> segment = MemorySegment(8)
        >>> segment.put_int(4, 0x01020304)
        >>> segment.view.hex()
        '0000000001020304'
    """

    __slots__ = (
        "_arena",
        "_view",
        "elastic",
        "index",
        "is_freed",
        "lender",
        "size_bytes",
    )

    def __init__(
        self, size_bytes: int, arena: MemoryArena | None = None, index: int = 0
    ) -> None:
        self.size_bytes: int = size_bytes
        self.index: int = index
        self.is_freed: bool = False
        # The pool that lent it, None while it is idle: makes a second recycle visible.
        self.lender: object | None = None
        # Elastic segments exist beyond their pool's total and are dropped when recycled.
        self.elastic: bool = False
        self._arena = arena
        self._view: memoryview | None = None

    @property
    def view(self) -> memoryview:
        """The segment's bytes: writable, one byte per item, shape ``(size_bytes,)``.

        Raises:
            IllegalStateError: If the segment was freed.
        """
        view = self._view
        if view is None:
            if self.is_freed:
                raise IllegalStateError("the segment was freed; do not keep it")
            if self._arena is None:
                view = memoryview(bytearray(self.size_bytes))
            else:
                view = self._arena.cut(self.index)
            self._view = view
        return view

    def free(self) -> None:
        """Give up the bytes; every later access is refused. Idempotent."""
        # Views that are still held stay readable in CPython, released or not:
        # only new accesses can be refused.
        self.is_freed = True
        self._view = None

    def wrap(self, offset: int, length: int) -> memoryview:
        """Return a window of the segment without copying.

        Raises:
            IndexError: If the window leaves the segment.
        """
        self._check(offset, length)
        return self.view[offset : offset + length]

    def put(self, offset: int, source: bytes | memoryview) -> None:
        """Copy bytes into the segment at an offset.

        Raises:
            IndexError: If they do not fit.
        """
        self._check(offset, len(source))
        self.view[offset : offset + len(source)] = source

    def get_int(self, offset: int, byte_order: ByteOrder = "big") -> int:
        """Read a signed 32-bit integer."""
        return self._get("i", 4, offset, byte_order)

    def put_int(self, offset: int, value: int, byte_order: ByteOrder = "big") -> None:
        """Write a signed 32-bit integer."""
        self._put("i", 4, offset, value, byte_order)

    def get_long(self, offset: int, byte_order: ByteOrder = "big") -> int:
        """Read a signed 64-bit integer."""
        return self._get("q", 8, offset, byte_order)

    def put_long(self, offset: int, value: int, byte_order: ByteOrder = "big") -> None:
        """Write a signed 64-bit integer."""
        self._put("q", 8, offset, value, byte_order)

    def _get(self, code: str, width: int, offset: int, byte_order: ByteOrder) -> int:
        self._check(offset, width)
        values = struct.unpack_from(_prefix(byte_order) + code, self.view, offset)
        return int(values[0])

    def _put(
        self, code: str, width: int, offset: int, value: int, byte_order: ByteOrder
    ) -> None:
        self._check(offset, width)
        struct.pack_into(_prefix(byte_order) + code, self.view, offset, value)

    def _check(self, offset: int, width: int) -> None:
        if not 0 <= offset <= self.size_bytes - width or width < 0:
            if self.is_freed:
                raise IllegalStateError("the segment was freed; do not keep it")
            raise IndexError(
                f"offset {offset} and width {width} leave a segment of "
                f"{self.size_bytes} bytes"
            )


def _prefix(byte_order: ByteOrder) -> str:
    prefix = _PREFIXES.get(byte_order)
    if prefix is None:
        raise InvalidArgumentError(
            "byte_order", f"{byte_order!r} is unknown", "Use big, little or native."
        )
    return prefix
