"""One channel's queue on the producer's side, and the view a consumer has of it.

Theory of operation: the consumer is notified when "there is something to take" turns from
false to true, and at no other time: the consumer takes until `poll` says that
nothing more is ready. An unfinished buffer is nothing to take unless a flush was asked
for. After an event that blocks upstream nothing can be taken until consumption is
resumed; the flush request survives that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from aiomailbox.errors import IllegalStateError
from aiomailbox.exchange.core.buffer import ObjectBuffer
from aiomailbox.exchange.core.contract import (
    SEQUENCE_MODULUS,
    ChannelStatistics,
    PolledBuffer,
)
from aiomailbox.exchange.core.subpartition import (
    PrioritizedDeque,
    ReadingEnd,
    ResultSubpartition,
)
from aiomailbox.records import Control, Element
from aiomailbox.records.events import CheckpointBarrier, RuntimeEvent

# The buffers of a subpartition, and which of them can be taken.


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


_OnLeft: TypeAlias = Callable[[BaseException | None], None]


class PipelinedSubpartition(ResultSubpartition[BufferQueue]):
    """A queue of buffers from one producer to one consumer.

    Loop-local: every method is synchronous and belongs to the loop's thread.

    Args:
        index: Its place in the partition, from 0.

    Attributes:
        buffers_total: Buffers taken so far, events included.
        records_total: Records taken so far.
        bytes_total: Estimated bytes taken so far.

    Invariants:
        Only the last buffer may be unfinished; an event is never unfinished.

    Concept:
        Flink, ``PipelinedSubpartition``.
    """

    __slots__ = ("_expected_id", "_on_barrier_left", "records_total")

    buffers_total: int
    bytes_total: int

    def __init__(self, index: int) -> None:
        super().__init__(index, BufferQueue())
        self.records_total: int = 0
        # The barrier that may still time out, and what is called once it cannot.
        self._expected_id: int | None = None
        self._on_barrier_left: _OnLeft | None = None

    @property
    def queued_records(self) -> int:
        """Records that are queued."""
        return sum(buffer.record_count for buffer in self._queue)

    @property
    def queued_bytes(self) -> int:
        """Estimated bytes that are queued."""
        return sum(buffer.size_bytes for buffer in self._queue)

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot for metrics; counting what is queued takes a walk."""
        return ChannelStatistics(
            self.queued_buffers,
            self.queued_records,
            self.queued_bytes,
            self.buffers_total,
            self.records_total,
            self.bytes_total,
        )

    @property
    def backlog(self) -> int:
        """Data buffers that can be taken: the unfinished one only if it is flushed."""
        return 0 if self._is_blocked else self._queue.ready_data

    @property
    def has_unflushed_data(self) -> bool:
        """Whether an unfinished buffer holds something that cannot be taken yet."""
        queue = self._queue
        unfinished = queue.unfinished
        if unfinished is None or queue.flush_requested:
            return False
        return bool(unfinished.elements)

    def add(self, buffer: ObjectBuffer) -> bool:
        """Queue a buffer; a priority event goes before the data.

        The previous buffer must be sealed. If its consumer has left, the buffer
        is recycled.

        Returns:
            Whether the buffer was queued.
        """
        # The producer is not notified: it learns of a consumer's end by its own.
        if self.is_finished or self.is_released:
            buffer.recycle()
            return False
        if buffer.is_priority:
            self._add_priority(buffer)
            return True
        if self._queue.unfinished is not None:
            raise IllegalStateError(
                "the last buffer of the subpartition is unfinished; seal it first"
            )
        was_available = self._is_available()
        self._queue.append(buffer)
        self._notify_unless(was_available)
        return True

    def append_control(self, element: Control) -> bool:
        """Append a control element to the last buffer, if it is full of records.

        In a buffer of its own it would hold a permit: a stream with event time would
        have half as many records under way, and its tasks take turns twice as often.
        One element at most, as nothing else bounds a full buffer.

        Returns:
            Whether there was such a buffer.
        """
        last = self._queue.full
        if last is None:
            return False
        last.append_control(element)
        return True

    def seal_last(self) -> None:
        """Seal the unfinished buffer, if there is one, so that it can be taken."""
        unfinished = self._queue.unfinished
        if unfinished is not None:
            was_available = self._is_available()
            unfinished.seal()
            self._notify_unless(was_available)

    def flush(self) -> None:
        """Let the unfinished buffer be taken, if it holds anything."""
        if self._queue.can_flush:
            was_available = self._is_available()
            self._queue.flush_requested = True
            self._notify_unless(was_available)

    def finish(self, event: RuntimeEvent) -> None:
        """Queue the last event; nothing is added after it. Tells the consumer."""
        if self.is_finished or self.is_released:
            return
        unfinished = self._queue.unfinished
        if unfinished is not None:
            unfinished.seal()
        self._queue.append(ObjectBuffer.for_event(event))
        # Always, also while an event blocks, as Flink does: the end is no data to wait
        # for.
        self.is_finished = True
        if self._listener is not None:
            self._listener.on_data_available()

    def is_available(self, *, has_credit: bool = True) -> bool:
        """Say whether something can be taken; without credit only an event can."""
        if has_credit:
            return self._is_available()
        head = self._queue.head
        return not self._is_blocked and head is not None and head.is_event

    def poll(self) -> PolledBuffer | None:
        """Take the next buffer; an unfinished one is sealed by that.

        Returns:
            What was taken, or None if nothing can be taken now.
        """
        if self._is_blocked:
            return None
        emptied: list[ObjectBuffer] = []
        buffer = self._queue.take(emptied)
        polled = None if buffer is None else self._describe(buffer)
        # Last: this may wake the producer, which has to find the queue as it is now.
        for empty in emptied:
            empty.recycle()
        return polled

    def in_flight_elements(self) -> list[Element]:
        """Return what is queued, in order, without taking it."""
        return [
            element
            for buffer in self._queue
            if buffer.event is None
            for element in buffer.elements
        ]

    def expect_barrier(self, checkpoint_id: int, on_left: _OnLeft) -> None:
        """Tell once how a queued barrier that may time out ends before it does.

        Args:
            checkpoint_id: Of the barrier.
            on_left: Called with None when it is taken in time, with an error when it
                will not be taken any more.
        """
        self._end_expectation(
            IllegalStateError(
                f"checkpoint {checkpoint_id} began while the barrier of "
                f"{self._expected_id} could still time out: unaligned checkpoints do "
                "not run concurrently"
            )
        )
        self._expected_id, self._on_barrier_left = checkpoint_id, on_left

    def before_barrier(self, checkpoint_id: int) -> list[Element] | None:
        """Return what a queued barrier overtakes when it times out, in order.

        None if it is not queued any more, or must not overtake.
        """
        overtaken: list[Element] = []
        for buffer in self._queue:
            if buffer.event is None:
                overtaken += buffer.elements
            elif _may_time_out(buffer.event, checkpoint_id):
                return overtaken
        return None

    def time_out_barrier(self, checkpoint_id: int) -> None:
        """Turn a queued aligned barrier into an unaligned one, at the head.

        Nothing is notified that it has left. A no-op if it is not queued any more, or must
        not overtake.
        """
        for buffer in self._queue:
            event = buffer.event
            if event is not None and _may_time_out(event, checkpoint_id):
                assert isinstance(event, CheckpointBarrier), "nothing else times out"
                # No call back: the caller that lets it overtake hands over its data.
                self._expected_id = self._on_barrier_left = None
                self._queue.remove_event(buffer)
                self._add_priority(ObjectBuffer.for_event(event.as_unaligned()))
                return

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """Stop waiting for a barrier that may time out; it stays where it is."""
        if self._expected_id == checkpoint_id:
            self._end_expectation(cause)

    def _clear(self, failure: BaseException | None) -> None:
        for buffer in self._queue.clear():
            buffer.recycle()
        released = IllegalStateError(f"{self!r} was released before the barrier left")
        self._end_expectation(failure or released)

    def _end_expectation(self, error: BaseException | None) -> None:
        on_left, self._on_barrier_left = self._on_barrier_left, None
        self._expected_id = None
        if on_left is not None:
            on_left(error)

    def _is_available(self) -> bool:
        return not self._is_blocked and self._queue.has_ready

    def _notify_unless(self, was_available: bool) -> None:
        if not was_available and self._listener is not None and self._is_available():
            self._listener.on_data_available()

    def _add_priority(self, buffer: ObjectBuffer) -> None:
        self._queue.append(buffer)
        # Only the first one tells: the reader takes all priority events when it comes.
        if (
            self._queue.priority_count == 1
            and not self._is_blocked
            and self._listener is not None
        ):
            self._listener.on_priority_event(self._sequence_number)

    def _describe(self, buffer: ObjectBuffer) -> PolledBuffer:
        sequence_number = self._sequence_number
        self._sequence_number = (sequence_number + 1) % SEQUENCE_MODULUS
        self.buffers_total += 1
        self.records_total += buffer.record_count
        self.bytes_total += buffer.size_bytes
        # Set while it is described, so that `more_available` already knows of the
        # block.
        self._is_blocked = buffer.blocks_upstream
        if self._expected_id is not None and _is_barrier_of(buffer, self._expected_id):
            self._end_expectation(None)
        return PolledBuffer(
            buffer,
            self.backlog,
            self._is_available(),
            self._queue.priority_count > 0 and not self._is_blocked,
            sequence_number,
        )


def _is_barrier_of(buffer: ObjectBuffer, checkpoint_id: int) -> bool:
    event = buffer.event
    return isinstance(event, CheckpointBarrier) and event.checkpoint_id == checkpoint_id


def _may_time_out(event: RuntimeEvent, checkpoint_id: int) -> bool:
    return (
        isinstance(event, CheckpointBarrier)
        and event.checkpoint_id == checkpoint_id
        and event.may_overtake
    )


# What a consumer on this loop may do with a subpartition.


class SubpartitionView(ReadingEnd[PipelinedSubpartition]):
    """A consumer's end of one subpartition; see `ReadingEnd`."""

    __slots__ = ()

    def poll(self) -> PolledBuffer | None:
        """Take the next buffer, or None; the caller recycles it."""
        return self._subpartition.poll()

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot for metrics; counting what is queued takes a walk."""
        return self._subpartition.statistics()
