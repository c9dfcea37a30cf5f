"""A filled segment and how many still need it.

Theory of operation: a buffer starts with one reference. Slices share their buffer's
count and do not add to it by themselves. When the count reaches zero the recycler gets
the segment, exactly once; from then on every access is refused, since the segment may
already hold another buffer's bytes.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

from aiomailbox.errors import (
    BufferRecycledError,
    IllegalStateError,
    InvalidArgumentError,
)

# What a buffer carries, and how the exchange has to treat it.


class DataType(IntEnum):
    """The kinds of buffers; the value is the byte that travels, so only append.

    Invariants:
        No type both has priority and requires an announcement.

    Concept:
        Flink 2.3, ``Buffer.DataType``; same order.

    Example:
        >>> DataType.ALIGNED_CHECKPOINT_BARRIER.is_blocking_upstream
        True
    """

    NONE = 0
    DATA_BUFFER = 1
    EVENT_BUFFER = 2
    PRIORITIZED_EVENT_BUFFER = 3
    ALIGNED_CHECKPOINT_BARRIER = 4
    TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER = 5
    RECOVERY_COMPLETION = 6
    END_OF_SEGMENT = 7
    DATA_BUFFER_WITH_CLEAR_END = 8
    END_OF_DATA = 9
    END_OF_PARTITION = 10
    RECOVERY_METADATA = 11
    ALIGNED_WATERMARK_EVENT = 12
    UNALIGNED_WATERMARK_EVENT = 13

    @property
    def is_buffer(self) -> bool:
        """Whether it carries records."""
        return self in _BUFFERS

    @property
    def is_event(self) -> bool:
        """Whether it carries a runtime event."""
        return self is not DataType.NONE and self not in _BUFFERS

    @property
    def has_priority(self) -> bool:
        """Whether it overtakes what is queued."""
        return self is DataType.PRIORITIZED_EVENT_BUFFER

    @property
    def is_blocking_upstream(self) -> bool:
        """Whether the sender stops after it until consumption is resumed."""
        return self in _BLOCKING_UPSTREAM

    @property
    def requires_announcement(self) -> bool:
        """Whether its arrival is announced ahead of what is queued."""
        return self is DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER


_BUFFERS = frozenset({DataType.DATA_BUFFER, DataType.DATA_BUFFER_WITH_CLEAR_END})
_BLOCKING_UPSTREAM = frozenset(
    {
        DataType.ALIGNED_CHECKPOINT_BARRIER,
        DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER,
        DataType.RECOVERY_COMPLETION,
        DataType.ALIGNED_WATERMARK_EVENT,
    }
)


# A memory segment: first of all a permit, and memory only when it is asked for it.
#
# Theory of operation: what a pool hands out and counts is the segment object. Buffers
# of objects need no more than that. The arena behind all segments is mapped when the
# first of them is asked for its bytes, and the operating system backs only the pages
# that are written.


# 32 KiB is Flink's default size of a network segment.
DEFAULT_SEGMENT_SIZE_BYTES = 32 * 1024


class MemoryArena:
    """The memory that a pool's segments are cut from; nothing is mapped until used.

    Args:
        segments: Number of segments.
        segment_size_bytes: Size of each.
    """

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
        >>> segment.view[:] = b"8  bytes"
        >>> bytes(segment.view[3:])
        b'bytes'
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


class NetworkBuffer:
    """A segment with a reference count.

    Args:
        segment: Owned until the last reference is recycled.
        recycler: Gets the segment back, once.
        data_type: The type of the contents.
        size_bytes: How many bytes of the segment are written.

    Concept:
        Flink, ``NetworkBuffer``.

    Example:
        >>> buffer = NetworkBuffer(MemorySegment(4), lambda segment: print("back"))
        >>> buffer.retain().recycle()
        >>> buffer.recycle()
        back
    """

    __slots__ = (
        "_recycler",
        "_references",
        "_segment",
        "_size_bytes",
        "data_type",
    )

    def __init__(
        self,
        segment: MemorySegment,
        recycler: Callable[[MemorySegment], None],
        data_type: DataType = DataType.DATA_BUFFER,
        *,
        size_bytes: int = 0,
    ) -> None:
        self._segment = segment
        self._recycler = recycler
        self._references = 1
        self.data_type: DataType = data_type
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

    def readable(self) -> memoryview:
        """Return the written bytes, without copying.

        Raises:
            BufferRecycledError: If the last reference was recycled.
        """
        return self.segment.view[: self._size_bytes]

    def read_only_slice(self, index: int, length: int) -> ReadOnlySlice:
        """Return a read-only window; it shares the count and does not retain.

        Args:
            index: Where it begins.
            length: Its size in bytes.

        Raises:
            BufferRecycledError: If the last reference was recycled.
        """
        if self._references <= 0:
            raise self._recycled_error()
        return ReadOnlySlice(self, index, length)

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
    """A read-only window of a buffer.

    Args:
        root: The buffer; its references are shared.
        offset: Where the window begins in the segment.
        size_bytes: Its size.

    Attributes:
        size_bytes: As given.

    Concept:
        Flink, ``ReadOnlySlicedNetworkBuffer``.
    """

    __slots__ = ("_offset", "_root", "size_bytes")

    def __init__(self, root: NetworkBuffer, offset: int, size_bytes: int) -> None:
        self._root = root
        self._offset = offset
        self.size_bytes: int = size_bytes

    @property
    def data_type(self) -> DataType:
        """The type of the contents; the buffer decides it, not the slice."""
        return self._root.data_type

    def readable(self) -> memoryview:
        """Return the bytes: read-only, without copying.

        Raises:
            BufferRecycledError: If the last reference was recycled.
        """
        start = self._offset
        window = self._root.segment.view[start : start + self.size_bytes]
        # A reader that wrote would write into what others read.
        return window.toreadonly()

    def recycle(self) -> None:
        """Give up a reference to the buffer."""
        self._root.recycle()


# What a consumer of bytes sees: a window, and a reference to give up.
Buffer: TypeAlias = NetworkBuffer | ReadOnlySlice


# Writing into a segment while its beginning is already being read.
#
# Theory of operation: a builder appends behind a position that it publishes with
# `BufferBuilder.commit`; a consumer builds slices of what is published and not yet read.
# The segment goes back when the builder, every copy of the consumer and every slice
# have released it, in any order.


class _Position:
    """How far the writer has published, and whether it has finished."""

    __slots__ = ("finished", "published")

    def __init__(self, published: int = 0, *, finished: bool = False) -> None:
        self.published: int = published
        self.finished: bool = finished


class BufferBuilder:
    """The writing end of a segment.

    Args:
        segment: Owned until all users have released it.
        recycler: Gets the segment back, once.

    Invariants:
        ``published <= written_bytes <= capacity_bytes``; both only grow.

    Concept:
        Flink, ``BufferBuilder``.

    Example:
        >>> builder = BufferBuilder(MemorySegment(4), lambda segment: None)
        >>> consumer = builder.create_consumer()
        >>> builder.append_and_commit(b"stream")
        4
        >>> bytes(consumer.build().readable())
        b'stre'
    """

    __slots__ = (
        "_buffer",
        "_closed",
        "_has_consumer",
        "_position",
        "capacity_bytes",
        "written_bytes",
    )

    def __init__(
        self, segment: MemorySegment, recycler: Callable[[MemorySegment], None]
    ) -> None:
        self._buffer = NetworkBuffer(segment, recycler, size_bytes=segment.size_bytes)
        self._position = _Position()
        self._has_consumer = False
        self._closed = False
        self.capacity_bytes: int = segment.size_bytes
        self.written_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing more can be appended."""
        return self.written_bytes >= self.capacity_bytes

    @property
    def is_finished(self) -> bool:
        """Whether `finish` was called."""
        return self._position.finished

    @property
    def writable_bytes(self) -> int:
        """How many bytes can still be appended."""
        return self.capacity_bytes - self.written_bytes

    def create_consumer(self) -> BufferConsumer:
        """Return the reading end, which begins at the segment's first byte.

        Raises:
            IllegalStateError: If the builder has a consumer already.
        """
        if self._has_consumer:
            raise IllegalStateError(
                "the builder has a consumer already: use BufferConsumer.copy()"
            )
        self._has_consumer = True
        return BufferConsumer(self._buffer.retain(), self._position, 0)

    def append(self, source: bytes | bytearray | memoryview) -> int:
        """Copy as much as fits, without publishing it, and say how much that was.

        Args:
            source: Bytes, item size one, shape ``(n,)``; borrowed for the call.

        Returns:
            Bytes copied, 0 to ``n``; less than ``n`` means that the builder is full.

        Raises:
            IllegalStateError: If the builder is finished.
        """
        if self._position.finished:
            raise IllegalStateError(
                "append() after finish(): request a new builder for the rest"
            )
        start = self.written_bytes
        size_bytes = len(source)
        copied = min(self.capacity_bytes - start, size_bytes)
        # A slice of bytes would be a copy of its own.
        piece = source if copied == size_bytes else source[:copied]
        self._buffer.segment.view[start : start + copied] = piece
        self.written_bytes = start + copied
        return copied

    def commit(self) -> None:
        """Let the consumer see what was appended."""
        self._position.published = self.written_bytes

    def append_and_commit(self, source: bytes | bytearray | memoryview) -> int:
        """Append and publish; see `append`."""
        copied = self.append(source)
        self.commit()
        return copied

    def finish(self) -> int:
        # Before the flag: a reader that sees "finished" must find all that was written.
        """Publish everything and allow no more; idempotent.

        Returns:
            Bytes written.
        """
        self.commit()
        self._position.finished = True
        return self.written_bytes

    def trim(self, capacity_bytes: int) -> None:
        """Set how much may be written: at least what is, at most the segment.

        Args:
            capacity_bytes: The wish. A larger one than before grows the builder back.
        """
        # Never below what is written; growing back is allowed, for a record that does
        # not fit is better in one large buffer than in many small ones (FLINK-33077).
        wished = max(capacity_bytes, self.written_bytes)
        self.capacity_bytes = min(wished, self._buffer.capacity_bytes)

    def close(self) -> None:
        """Release the segment; idempotent. The consumer reads on."""
        if not self._closed:
            self._closed = True
            self._buffer.recycle()


class BufferConsumer:
    """The reading end of a segment; made by a builder, or by `of_finished`.

    ``is_finished`` looks at the writer itself. Flink's lags behind until the next
    build, which one loop does not need.

    Concept:
        Flink, ``BufferConsumer``.
    """

    __slots__ = ("_buffer", "_closed", "_position", "_reader")

    def __init__(self, buffer: NetworkBuffer, position: _Position, reader: int) -> None:
        self._buffer = buffer
        self._position = position
        self._reader = reader
        self._closed = False

    @classmethod
    def of_finished(cls, buffer: NetworkBuffer) -> BufferConsumer:
        """Return a consumer of a whole buffer, such as an event.

        Args:
            buffer: Written up to its ``size_bytes``; its reference is taken over.
        """
        return cls(buffer, _Position(buffer.size_bytes, finished=True), 0)

    @property
    def data_type(self) -> DataType:
        """The type of the contents."""
        return self._buffer.data_type

    @property
    def is_finished(self) -> bool:
        """Whether the writer has finished."""
        return self._position.finished

    @property
    def is_data_available(self) -> bool:
        """Whether something is published that was not built yet."""
        return self._position.published > self._reader

    @property
    def written_bytes(self) -> int:
        """How many bytes the writer has published."""
        return self._position.published

    def build(self) -> ReadOnlySlice:
        """Return what is published and not yet built; the caller recycles it.

        Raises:
            BufferRecycledError: If every reference is gone.
        """
        start, self._reader = self._reader, self._position.published
        self._buffer.retain()
        return self._buffer.read_only_slice(start, self._reader - start)

    def copy(self) -> BufferConsumer:
        """Return another consumer, which begins where this one is now."""
        return BufferConsumer(self._buffer.retain(), self._position, self._reader)

    def close(self) -> None:
        """Release the segment; idempotent. Slices already built stay valid."""
        if not self._closed:
            self._closed = True
            self._buffer.recycle()
