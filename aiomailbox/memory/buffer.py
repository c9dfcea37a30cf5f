"""A filled segment and how many still need it.

Theory of operation: a buffer starts with one reference. Slices share their buffer's
count and do not add to it by themselves. When the count reaches zero the recycler gets
the segment, exactly once; from then on every access is refused, since the segment may
already hold another buffer's bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aiomailbox.errors import BufferRecycledError, InvalidArgumentError
from aiomailbox.memory.data_type import DataType
from aiomailbox.memory.segment import MemorySegment

__all__ = ["Buffer", "NetworkBuffer", "ReadOnlySlice"]


class Buffer(Protocol):
    """What a consumer of bytes sees: a window, and a reference to give up."""

    reader_index: int
    compressed: bool

    @property
    def data_type(self) -> DataType:
        """What the bytes are."""
        ...

    @property
    def size_bytes(self) -> int:
        """How many bytes were written."""
        ...

    @property
    def segment_offset(self) -> int:
        """Where the buffer begins in its segment."""
        ...

    @property
    def is_recycled(self) -> bool:
        """Whether the last reference is gone."""
        ...

    @property
    def reference_count(self) -> int:
        """How many references are left."""
        ...

    def readable(self) -> memoryview:
        """Return the bytes not yet read, without copying."""
        ...

    def read_only_slice(
        self, index: int = 0, length: int | None = None
    ) -> ReadOnlySlice:
        """Return a window that shares this buffer's references."""
        ...

    def retain(self) -> Buffer:
        """Add a reference."""
        ...

    def recycle(self) -> None:
        """Give up a reference."""
        ...


class NetworkBuffer:
    """A segment with a reference count.

    Args:
        segment: Owned until the last reference is recycled.
        recycler: Gets the segment back, once.
        data_type: What the bytes are.
        size_bytes: How many bytes of the segment are written.
        compressed: Whether the bytes are compressed.

    Concept:
        Flink, ``NetworkBuffer``.

    Example:
        >>> buffer = NetworkBuffer(MemorySegment(4), lambda segment: print("back"))
        >>> buffer.retain().reference_count
        2
        >>> buffer.recycle()
        >>> buffer.recycle()
        back
    """

    __slots__ = (
        "_recycler",
        "_references",
        "_segment",
        "_size_bytes",
        "compressed",
        "data_type",
        "reader_index",
    )

    def __init__(
        self,
        segment: MemorySegment,
        recycler: Callable[[MemorySegment], None],
        data_type: DataType = DataType.DATA_BUFFER,
        *,
        size_bytes: int = 0,
        compressed: bool = False,
    ) -> None:
        self._segment = segment
        self._recycler = recycler
        self._references = 1
        self.data_type: DataType = data_type
        self.compressed: bool = compressed
        self.reader_index: int = 0
        self.size_bytes = size_bytes

    @property
    def size_bytes(self) -> int:
        """How many bytes are written: 0 to ``capacity_bytes``."""
        return self._size_bytes

    @size_bytes.setter
    def size_bytes(self, value: int) -> None:
        if not 0 <= value <= self._segment.size_bytes:
            raise InvalidArgumentError(
                "size_bytes",
                f"{value} does not fit in a segment of {self._segment.size_bytes} bytes",
            )
        self._size_bytes = value

    @property
    def capacity_bytes(self) -> int:
        """Size of the segment."""
        return self._segment.size_bytes

    @property
    def segment(self) -> MemorySegment:
        """The segment behind the buffer.

        Raises:
            BufferRecycledError: If the last reference was recycled.
        """
        if self._references <= 0:
            raise self._recycled_error()
        return self._segment

    @property
    def segment_offset(self) -> int:
        """Where the buffer begins in its segment: always 0."""
        return 0

    @property
    def is_recycled(self) -> bool:
        """Whether the last reference was recycled."""
        return self._references <= 0

    @property
    def reference_count(self) -> int:
        """How many references are left."""
        return self._references

    def readable(self) -> memoryview:
        """Return the written bytes that are not yet read, without copying.

        Raises:
            BufferRecycledError: If the last reference was recycled.
        """
        return self.segment.view[self.reader_index : self._size_bytes]

    def read_only_slice(
        self, index: int = 0, length: int | None = None
    ) -> ReadOnlySlice:
        """Return a read-only window; it shares the count and does not retain.

        Args:
            index: Where it begins.
            length: Its size in bytes; None for up to what is written.

        Raises:
            BufferRecycledError: If the last reference was recycled.
            IndexError: If the window leaves the segment.
        """
        if self._references <= 0:
            raise self._recycled_error()
        size_bytes = self._size_bytes - index if length is None else length
        return ReadOnlySlice(self, index, size_bytes)

    def retain(self) -> NetworkBuffer:
        """Add a reference, and return the buffer.

        Raises:
            BufferRecycledError: If the last reference was recycled.
        """
        if self._references <= 0:
            raise self._recycled_error()
        self._references += 1
        return self

    def recycle(self) -> None:
        """Give up a reference; the last one sends the segment to the recycler.

        Raises:
            BufferRecycledError: If there is no reference left.
        """
        if self._references <= 0:
            raise self._recycled_error()
        self._references -= 1
        # At zero, once: from here on the segment may carry bytes of another owner.
        if not self._references:
            self._recycler(self._segment)

    def _recycled_error(self) -> BufferRecycledError:
        return BufferRecycledError(
            "the buffer's last reference was recycled. Call retain() before handing "
            "it to code that recycles it."
        )


class ReadOnlySlice:
    """A read-only window of a buffer, with a reader index of its own.

    Args:
        root: The buffer; its references are shared.
        offset: Where the window begins in the segment.
        size_bytes: Its size.

    Raises:
        IndexError: If the window leaves the segment.

    Concept:
        Flink, ``ReadOnlySlicedNetworkBuffer``.
    """

    __slots__ = ("_root", "_size_bytes", "compressed", "reader_index", "segment_offset")

    def __init__(self, root: NetworkBuffer, offset: int, size_bytes: int) -> None:
        if offset < 0 or size_bytes < 0 or offset + size_bytes > root.capacity_bytes:
            raise IndexError(
                f"a slice of {size_bytes} bytes at {offset} leaves a segment of "
                f"{root.capacity_bytes} bytes"
            )
        self._root = root
        self._size_bytes = size_bytes
        self.segment_offset: int = offset
        self.compressed: bool = root.compressed
        self.reader_index: int = 0

    @property
    def data_type(self) -> DataType:
        """What the bytes are; decided by the buffer, not by a slice."""
        return self._root.data_type

    @property
    def size_bytes(self) -> int:
        """Size of the window."""
        return self._size_bytes

    @property
    def is_recycled(self) -> bool:
        """Whether the buffer's last reference was recycled."""
        return self._root.is_recycled

    @property
    def reference_count(self) -> int:
        """How many references the buffer and all its slices have left."""
        return self._root.reference_count

    def readable(self) -> memoryview:
        """Return the bytes not yet read: read-only, without copying.

        Raises:
            BufferRecycledError: If the last reference was recycled.
        """
        start = self.segment_offset
        window = self._root.segment.view[
            start + self.reader_index : start + self._size_bytes
        ]
        # A reader that wrote would write into what others read.
        return window.toreadonly()

    def read_only_slice(
        self, index: int = 0, length: int | None = None
    ) -> ReadOnlySlice:
        """Return a window of this window; it shares the count and does not retain.

        Raises:
            IndexError: If it leaves this window.
        """
        size_bytes = self._size_bytes - index if length is None else length
        if index < 0 or size_bytes < 0 or index + size_bytes > self._size_bytes:
            raise IndexError(
                f"a slice of {size_bytes} bytes at {index} leaves a slice of "
                f"{self._size_bytes} bytes"
            )
        return ReadOnlySlice(self._root, self.segment_offset + index, size_bytes)

    def retain(self) -> ReadOnlySlice:
        """Add a reference to the buffer, and return the slice."""
        self._root.retain()
        return self

    def recycle(self) -> None:
        """Give up a reference to the buffer."""
        self._root.recycle()
