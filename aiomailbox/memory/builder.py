"""Writing into a segment while its beginning is already being read.

Theory of operation: a builder appends behind a position that it publishes with
`BufferBuilder.commit`; a consumer builds slices of what is published and not yet read.
The segment goes back when the builder, every copy of the consumer and every slice
have released it, in any order.
"""

from __future__ import annotations

from collections.abc import Callable

from aiomailbox.errors import IllegalStateError
from aiomailbox.memory.buffer import (
    DataType,
    MemorySegment,
    NetworkBuffer,
    ReadOnlySlice,
)


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
        """Return the reading end, which begins at what is written now.

        Raises:
            IllegalStateError: If the builder has a consumer already.
        """
        return self._consumer_from(self.written_bytes)

    def create_consumer_from_beginning(self) -> BufferConsumer:
        """Return the reading end, which begins at the segment's first byte.

        Raises:
            IllegalStateError: If the builder has a consumer already.
        """
        return self._consumer_from(0)

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

    def _consumer_from(self, reader: int) -> BufferConsumer:
        if self._has_consumer:
            raise IllegalStateError(
                "the builder has a consumer already: use BufferConsumer.copy()"
            )
        self._has_consumer = True
        return BufferConsumer(self._buffer.retain(), self._position, reader)


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
        """What the bytes are."""
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
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def written_bytes(self) -> int:
        """How many bytes the writer has published."""
        return self._position.published

    def build(self) -> ReadOnlySlice:
        """Return what is published and not yet built; the caller recycles it.

        Raises:
            BufferRecycledError: If every reference is gone.
        """
        end = self._position.published
        # A consumer created ahead of the published position has nothing to read yet.
        start, self._reader = self._reader, max(self._reader, end)
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
