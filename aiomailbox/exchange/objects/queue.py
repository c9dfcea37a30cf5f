"""The buffers of a subpartition, and which of them can be taken."""

from __future__ import annotations

from collections.abc import Iterator

from aiomailbox.exchange.core.buffer import ObjectBuffer
from aiomailbox.exchange.core.priority_deque import PrioritizedDeque

__all__ = ["BufferQueue"]


class BufferQueue:
    """Buffers in order, of which only the last may be unfinished.

    The unfinished one is ready only if a flush was requested. The request is
    forgotten with the last buffer that it was for.

    Attributes:
        flush_requested: Whether the unfinished buffer may be taken.

    Invariants:
        ``0 <= ready_data <= data_count <= len(self)``.
    """

    __slots__ = ("_buffers", "data_count", "flush_requested")

    def __init__(self) -> None:
        self._buffers: PrioritizedDeque[ObjectBuffer] = PrioritizedDeque()
        self.data_count: int = 0
        self.flush_requested: bool = False

    def __len__(self) -> int:
        return len(self._buffers)

    def __iter__(self) -> Iterator[ObjectBuffer]:
        return iter(self._buffers)

    @property
    def priority_count(self) -> int:
        """Priority events at the head."""
        return self._buffers.priority_count

    @property
    def head(self) -> ObjectBuffer | None:
        """The first buffer."""
        return self._buffers.peek()

    @property
    def unfinished(self) -> ObjectBuffer | None:
        """The last buffer, if it is not sealed yet."""
        last = self._buffers.peek_last()
        return None if last is None or last.is_sealed else last

    @property
    def full(self) -> ObjectBuffer | None:
        """The last buffer, if it is sealed and ends in records."""
        last = self._buffers.peek_last()
        if last is None or not last.is_sealed or not last.ends_in_run:
            return None
        return last

    @property
    def has_ready(self) -> bool:
        """Whether `take` is worth calling."""
        last = self._buffers.peek_last()
        if last is None:
            return False
        return last.is_sealed or self.flush_requested or len(self._buffers) > 1

    @property
    def ready_data(self) -> int:
        """Data buffers that can be taken."""
        if self.flush_requested or self.unfinished is None:
            return self.data_count
        return self.data_count - 1

    @property
    def can_flush(self) -> bool:
        """Whether a flush would make anything ready, now or behind what is."""
        if self.flush_requested or not self._buffers:
            return False
        unfinished = self.unfinished
        is_alone = len(self._buffers) == 1
        # An empty buffer alone is nothing to wake the reader for.
        return not is_alone or unfinished is None or bool(unfinished.elements)

    def append(self, buffer: ObjectBuffer) -> None:
        """Add a buffer at the end, or a priority event behind the others at the head."""
        if buffer.is_priority:
            self._buffers.append_priority(buffer)
            return
        self._buffers.append(buffer)
        if buffer.event is None:
            self.data_count += 1

    def remove_event(self, buffer: ObjectBuffer) -> None:
        """Remove a queued event."""
        self._buffers.remove(buffer)

    def take(self, emptied: list[ObjectBuffer]) -> ObjectBuffer | None:
        """Remove the first buffer that holds something, and seal it.

        Args:
            emptied: Takes up the sealed empty ones before it; the caller recycles
                them, once everything here is consistent.
        """
        buffers = self._buffers
        taken = None
        while taken is None and (buffer := buffers.peek()) is not None:
            is_empty = buffer.event is None and not buffer.elements
            # The producer writes into it: it stays, and is filled or sealed later.
            if is_empty and not buffer.is_sealed:
                break
            buffers.popleft()
            buffer.is_sealed = True
            if buffer.event is None:
                self.data_count -= 1
            if is_empty:
                emptied.append(buffer)
            else:
                taken = buffer
        # The request was for what is gone, or for a buffer that turned out to be empty.
        if not buffers or (taken is None and self.unfinished is not None):
            self.flush_requested = False
        return taken

    def clear(self) -> list[ObjectBuffer]:
        """Remove all buffers, sealed, and return them."""
        self.data_count = 0
        self.flush_requested = False
        buffers = self._buffers.clear()
        for buffer in buffers:
            buffer.is_sealed = True
        return buffers
