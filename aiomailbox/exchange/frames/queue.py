"""The queue of a subpartition of bytes: what is in it, and what counts as ready."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiomailbox.exchange.core.priority_deque import PrioritizedDeque
from aiomailbox.memory.buffer import ReadOnlySlice
from aiomailbox.memory.builder import BufferConsumer
from aiomailbox.memory.data_type import DataType

__all__ = ["BytesQueue", "QueuedBuffer"]


class QueuedBuffer:
    """A buffer in the queue.

    Attributes:
        consumer: The reading end.
        partial_record_bytes: How many of its first bytes end a record that began in
            an earlier buffer.
        seen_finished: Whether its writer had finished when it was last looked into.
            What is ready is judged by that: finishing a buffer notifies nothing.
    """

    __slots__ = ("consumer", "partial_record_bytes", "seen_finished")

    def __init__(self, consumer: BufferConsumer, partial_record_bytes: int) -> None:
        self.consumer: BufferConsumer = consumer
        self.partial_record_bytes: int = partial_record_bytes
        self.seen_finished: bool = consumer.is_finished

    @property
    def data_type(self) -> DataType:
        """What the bytes are."""
        return self.consumer.data_type

    @property
    def is_data(self) -> bool:
        """Whether it holds records, not an event."""
        return self.consumer.data_type.is_buffer

    def build(self) -> ReadOnlySlice:
        """Return what was not built yet, and see whether the writer has finished."""
        self.seen_finished = self.consumer.is_finished
        return self.consumer.build()

    def copy_unread(self) -> ReadOnlySlice:
        """Return what was not built yet without taking it."""
        copied = self.consumer.copy()
        try:
            return copied.build()
        finally:
            copied.close()

    def unread_bytes(self) -> bytes:
        """Return the same, copied."""
        unread = self.copy_unread()
        try:
            return bytes(unread.readable())
        finally:
            unread.recycle()


class BytesQueue:
    """Priority events, then the other buffers in order.

    Attributes:
        data_count: How many of them hold records.
        flush_requested: Whether the last one may be taken although it is unfinished.
    """

    __slots__ = ("_items", "data_count", "flush_requested")

    def __init__(self) -> None:
        self._items: Final[PrioritizedDeque[QueuedBuffer]] = PrioritizedDeque()
        self.data_count: int = 0
        self.flush_requested: bool = False

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[QueuedBuffer]:
        return iter(self._items)

    @property
    def priority_count(self) -> int:
        """How many priority events are first."""
        return self._items.priority_count

    @property
    def head(self) -> QueuedBuffer | None:
        """The buffer that is taken next."""
        return self._items.peek()

    @property
    def head_type(self) -> DataType:
        """What is taken next; ``NONE`` if nothing is queued."""
        head = self._items.peek()
        return DataType.NONE if head is None else head.data_type

    @property
    def finished_count(self) -> int:
        """How many buffers are known to be finished: all but the last one are."""
        last = self._items.peek_last()
        if len(self._items) == 1 and last is not None and last.seen_finished:
            return 1
        return max(0, len(self._items) - 1)

    @property
    def has_ready(self) -> bool:
        """Whether a buffer can be taken."""
        return self.flush_requested or self.finished_count > 0

    @property
    def has_unflushed_data(self) -> bool:
        """Whether the last buffer holds data that only a flush makes ready."""
        last = self._items.peek_last()
        if last is None or self.flush_requested or not last.is_data:
            return False
        return not last.seen_finished and last.consumer.is_data_available

    @property
    def ready_data(self) -> int:
        """How many data buffers can be taken, if nothing blocks or is finished."""
        last = self._items.peek_last()
        if last is None:
            return 0
        if self.flush_requested or not last.is_data:
            return self.data_count
        return max(0, self.data_count - 1)

    def append(self, item: QueuedBuffer) -> None:
        """Queue a buffer behind all others."""
        self._items.append(item)
        self.data_count += item.is_data

    def append_priority(self, item: QueuedBuffer) -> None:
        """Queue an event behind the priority events and before everything else."""
        self._items.append_priority(item)

    def overtaken(self) -> Iterator[QueuedBuffer]:
        """Return what priority events overtake, in order."""
        items = iter(self._items)
        for _ in range(self._items.priority_count):
            next(items)
        return items

    def request_flush(self) -> bool:
        """Let the unfinished buffer be taken, if it holds anything.

        Returns:
            Whether the reader has not been notified of it: with more than one buffer it
            was, at the latest when the second one came.
        """
        if not self._items or self.flush_requested:
            return False
        head = self._items.peek()
        alone = len(self._items) == 1
        news = alone and head is not None and head.consumer.is_data_available
        self.flush_requested = news or not alone
        return news

    def build_head(self) -> tuple[ReadOnlySlice, bool]:
        """Build the first buffer, and drop it if it is finished.

        Returns:
            What was built, to be recycled by the caller; and whether it was dropped.
        """
        head = self._items.peek()
        assert head is not None
        built = head.build()
        if len(self._items) == 1:
            # Whatever the flush was for is taken now.
            self.flush_requested = False
        if head.seen_finished:
            self._items.popleft()
            self.data_count -= head.is_data
            head.consumer.close()
        return built, head.seen_finished

    def remove(self, item: QueuedBuffer) -> None:
        """Drop an event wherever it is."""
        self._items.remove(item)
        item.consumer.close()

    def clear(self) -> None:
        """Drop everything."""
        for item in self._items.clear():
            item.consumer.close()
        self.data_count = 0
        self.flush_requested = False
