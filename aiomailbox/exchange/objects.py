"""A channel to a consumer on the producer's loop: buffers of objects, handed over.

Theory of operation: short runs and control elements go into the unfinished buffer until
it is full; long runs are split into buffers of their own. Filling a buffer up seals it,
and sealing tells the consumer. One control element may still follow the records of a
full buffer, until the consumer takes it. An event seals first and rides in a buffer of
its own. The consumer is notified when "there is something to take" turns from false to
true; it may take the unfinished buffer, and seals it by that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from aiomailbox.errors import IllegalStateError
from aiomailbox.exchange.core.contract import (
    BUFFER_SIZE_BYTES,
    ObjectBuffer,
    PolledBuffer,
    encode_in_flight,
)
from aiomailbox.exchange.core.subpartition import Producer, ResultSubpartition
from aiomailbox.records import Control
from aiomailbox.records.events import RuntimeEvent
from aiomailbox.records.run import RUN_LENGTH_MAX, Run


class PipelinedSubpartition(ResultSubpartition[ObjectBuffer, PolledBuffer]):
    """A queue of buffers of objects from one producer to one consumer.

    Args:
        index: The channel's place in the whole output, from 0.
        producer: Lends permits.
        buffer_size_bytes: Estimated size at which a buffer is sealed.
    """

    def __init__(
        self,
        index: int,
        producer: Producer,
        *,
        buffer_size_bytes: int = BUFFER_SIZE_BYTES,
    ) -> None:
        super().__init__(index)
        self._producer = producer
        self._charged = producer.charged(index)
        self._buffer_size_bytes = buffer_size_bytes

    def emit_run(self, run: Run) -> bool:
        count = len(run)
        if not count:
            return False
        size_bytes = run.size_bytes()
        most = run.length_max
        # By rows a buffer holds as many bytes as records of average size would; columns
        # may be longer, and so are their bytes.
        most_bytes = self._buffer_size_bytes * most // RUN_LENGTH_MAX
        if count <= most and size_bytes <= most_bytes:
            return self._append_run(run, count, size_bytes)
        unfinished = False
        for piece in _cut(run, count, size_bytes, most, most_bytes):
            unfinished = self._append_run(piece, len(piece), piece.size_bytes())
        return unfinished

    def emit_control(self, element: Control) -> bool:
        last = self._buffers.peek_last()
        if last is not None and not last.is_sealed:
            last.append_control(element)
            if last.size_bytes >= self._buffer_size_bytes:
                self.seal_last()
            return not last.is_sealed
        # In a buffer of its own it would hold a permit: a stream with event time would
        # have half as many records under way, and its tasks take turns twice as often.
        # One element at most, as nothing else bounds a full buffer.
        if last is not None and last.ends_in_run:
            last.append_control(element)
            return False
        buffer = self._open()
        if buffer is None:
            return False
        buffer.append_control(element)
        return self._queue(buffer)

    def add_event(
        self,
        event: RuntimeEvent,
        buffer: ObjectBuffer | None = None,
        overtaken: Sequence[bytes] = (),
    ) -> None:
        """Queue an event behind all that was emitted."""
        # What was written before the event is before it in the channel.
        self.seal_last()
        super().add_event(event, buffer, overtaken)

    def finish(self) -> None:
        """Queue the last event, and tell the reader. Idempotent."""
        last = self._unfinished
        if last is not None:
            last.seal()
        super().finish()

    def add(self, buffer: ObjectBuffer) -> bool:
        """Queue a buffer of data, and say whether that was done.

        The previous buffer must be sealed. If its consumer has left, the buffer is
        recycled.
        """
        # The producer is not notified: it learns of a consumer's end by its own.
        if self.is_finished or self.is_released:
            buffer.recycle()
            return False
        if self._unfinished is not None:
            raise IllegalStateError(
                "the last buffer of the subpartition is unfinished; seal it first"
            )
        self._add(buffer)
        return True

    def seal_last(self) -> None:
        """Seal the unfinished buffer, if there is one, so that it can be taken."""
        last = self._buffers.peek_last()
        if last is not None and not last.is_sealed:
            had_ready = self._has_ready
            last.is_sealed = True
            if not had_ready:
                self._tell_of_data()

    def poll(self) -> PolledBuffer | None:
        """Take the next buffer; an unfinished one is sealed by that.

        Returns:
            The buffer that was taken, or None if there is none now.
        """
        if self.is_blocked and not self._buffers.priority_count:
            return None
        emptied: list[ObjectBuffer] = []
        buffer = self._take(emptied)
        polled = None if buffer is None else self._describe(buffer)
        # Last: this may wake the producer, which has to find the queue as it is now.
        for empty in emptied:
            empty.recycle()
        return polled

    def _take(self, emptied: list[ObjectBuffer]) -> ObjectBuffer | None:
        """Remove the first buffer that holds something, and seal it."""
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
                self._data_count -= 1
            if is_empty:
                emptied.append(buffer)
            else:
                taken = buffer
        # The request was for what is gone, or for a buffer that turned out to be empty.
        if not buffers or (taken is None and self._unfinished is not None):
            self._flush_requested = False
        return taken

    def _describe(self, buffer: ObjectBuffer) -> PolledBuffer:
        number = self._count_taken(buffer.event, buffer.size_bytes, buffer.record_count)
        return PolledBuffer(buffer, self.is_available(), self.has_priority, number)

    def _append_run(self, run: Run, count: int, size_bytes: int) -> bool:
        buffer = self._buffers.peek_last()
        if buffer is not None and not buffer.is_sealed:
            # Neither count nor bytes may exceed: the one bounds a slice of work, the
            # other the memory. The first run would be alone in a buffer of its own, too.
            if not buffer.record_count or (
                buffer.record_count + count <= RUN_LENGTH_MAX
                and buffer.size_bytes + size_bytes <= self._buffer_size_bytes
            ):
                buffer.append_run(run, count, size_bytes)
                if self._is_full(buffer):
                    self.seal_last()
                return not buffer.is_sealed
            # Sealed early rather than filled up: whole runs move without copies.
            self.seal_last()
        buffer = self._open()
        if buffer is None:
            return False
        buffer.append_run(run, count, size_bytes)
        return self._queue(buffer)

    def _open(self) -> ObjectBuffer | None:
        """Return a new buffer, or None if the consumer has gone."""
        producer = self._producer
        producer.check_open()
        # It would never be taken: dropping costs nothing and holds no permit.
        if self.is_released:
            return None
        pool, charged = producer.pool, self._charged
        return ObjectBuffer(pool, pool.request_elastic(charged), charged)

    def _queue(self, buffer: ObjectBuffer) -> bool:
        """Queue a new buffer that holds its first element, so one notice is enough."""
        buffer.is_sealed = self._is_full(buffer)
        self._add(buffer)
        return not buffer.is_sealed

    def _is_full(self, buffer: ObjectBuffer) -> bool:
        return (
            buffer.record_count >= RUN_LENGTH_MAX
            or buffer.size_bytes >= self._buffer_size_bytes
        )

    def _buffer_of(self, event: RuntimeEvent) -> ObjectBuffer:
        return ObjectBuffer.for_event(event)

    def _as_bytes(self, buffers: list[ObjectBuffer]) -> list[bytes]:
        if self._codec is None:
            return []
        elements = chain.from_iterable(buffer.elements for buffer in buffers)
        data = encode_in_flight(self._codec, elements)
        return [data] if data else []

    def _drop(self, buffer: ObjectBuffer) -> None:
        buffer.is_sealed = True
        buffer.recycle()


def _cut(
    run: Run, count: int, size_bytes: int, most: int, most_bytes: int
) -> Iterator[Run]:
    """Split a run into pieces that fit a buffer by count and, on average, by size."""
    by_size = most_bytes * count // size_bytes if size_bytes else count
    # A single record is sent, however large.
    length = max(1, min(most, by_size))
    for start in range(0, count, length):
        yield run.slice(start, min(start + length, count))
