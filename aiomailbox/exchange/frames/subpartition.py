"""One channel's queue of bytes on the producer's side.

Theory of operation: the reader is notified when the first finished buffer is queued, when a
flush makes an unfinished one ready, and when a priority event comes; it then takes
until nothing more is ready. Which additions and flushes tell is Flink's, exactly: a
buffer that its writer finishes notifies nothing until the next buffer or flush comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from aiomailbox.errors import IllegalStateError, InvalidArgumentError
from aiomailbox.exchange.core.contract import (
    NO_CHANNEL_STATE,
    SEQUENCE_MODULUS,
    ChannelStateWriter,
    DataListener,
    PolledBytes,
)
from aiomailbox.exchange.core.subpartition import (
    PrioritizedDeque,
    ReadingEnd,
    ResultSubpartition,
)
from aiomailbox.exchange.frames.encoder import event_consumer
from aiomailbox.memory.buffer import DataType, ReadOnlySlice
from aiomailbox.memory.builder import BufferConsumer
from aiomailbox.records.event_codec import decode_event
from aiomailbox.records.events import CheckpointBarrier, EndOfPartition

# The queue of a subpartition of bytes: what is in it, and what counts as ready.


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


# The aligned barrier in a queue that may still time out and overtake.


def barrier_of(item: QueuedBuffer) -> CheckpointBarrier:
    """Return the barrier that a queued event is.

    Raises:
        IllegalStateError: If it is another event: nothing else has priority or times
            out.
    """
    # A copy, for looking must not take anything from the queue.
    built = item.copy_unread()
    try:
        event = decode_event(built.readable())
    finally:
        built.recycle()
    if not isinstance(event, CheckpointBarrier):
        raise IllegalStateError(
            f"{event!r} cannot be queued with priority: only barriers overtake"
        )
    return event


class PendingBarrier:
    """Which barrier the channel state waits for; at most one at a time.

    Args:
        subpartition_index: Of the subpartition that queues it.

    Attributes:
        checkpoint_id: The barrier's checkpoint, None without one.
    """

    __slots__ = ("_subpartition_index", "checkpoint_id")

    def __init__(self, subpartition_index: int) -> None:
        self._subpartition_index = subpartition_index
        self.checkpoint_id: int | None = None

    def expect(self, writer: ChannelStateWriter, barrier: CheckpointBarrier) -> None:
        """Let the channel state wait for a barrier; an older one has failed then."""
        if self.checkpoint_id is not None:
            self.fail(
                writer,
                IllegalStateError(
                    f"checkpoint {barrier.checkpoint_id} began while the barrier of "
                    f"{self.checkpoint_id} could still time out: unaligned checkpoints "
                    "do not run concurrently"
                ),
            )
        self.checkpoint_id = barrier.checkpoint_id
        writer.expect_output_data(barrier.checkpoint_id, self._subpartition_index)

    def left(self, writer: ChannelStateWriter, barrier: CheckpointBarrier) -> None:
        """Be notified that a barrier was taken in time: it has overtaken nothing."""
        if self.checkpoint_id == barrier.checkpoint_id:
            self.complete(writer, [])

    def complete(self, writer: ChannelStateWriter, overtaken: list[bytes]) -> None:
        """Give the channel state what the barrier has overtaken."""
        checkpoint_id, self.checkpoint_id = self.checkpoint_id, None
        assert checkpoint_id is not None
        writer.complete_output_data(checkpoint_id, self._subpartition_index, overtaken)

    def fail(self, writer: ChannelStateWriter, error: BaseException) -> None:
        """End the expectation, if there is one."""
        checkpoint_id, self.checkpoint_id = self.checkpoint_id, None
        if checkpoint_id is not None:
            writer.fail_output_data(checkpoint_id, self._subpartition_index, error)

    def find(self, items: Iterable[QueuedBuffer]) -> tuple[list[bytes], QueuedBuffer]:
        """Find the barrier in the queue.

        Returns:
            The data before it, and the barrier.

        Raises:
            IllegalStateError: If it is not there, although it was not taken.
        """
        overtaken: list[bytes] = []
        for item in items:
            if item.is_data:
                overtaken.append(item.unread_bytes())
            elif (
                item.data_type.requires_announcement
                and barrier_of(item).checkpoint_id == self.checkpoint_id
            ):
                return overtaken, item
        raise IllegalStateError(
            f"the barrier of checkpoint {self.checkpoint_id} is not queued"
        )


UNLIMITED_BUFFER_BYTES: Final = 2**31 - 1


class BytesSubpartition(ResultSubpartition[BytesQueue]):
    """A queue of buffers of bytes from one producer to one reader.

    Args:
        index: Its place in the partition, from 0.
        channel_state: Is given the data that barriers overtake.
        receiver_exclusive_buffers: How many buffers the reader keeps for this channel
            alone. With none, an empty finished buffer is handed out too, so that the
            credit that was given for it comes back.

    Attributes:
        receiver_exclusive_buffers: As given, or as a partition request says.
        buffers_total: Buffers queued so far, events included.
        bytes_total: Bytes taken so far.

    Invariants:
        Only the last buffer may be unfinished; an event is never unfinished.

    Concept:
        Flink, ``PipelinedSubpartition``.
    """

    __slots__ = (
        "_buffer_bytes",
        "_pending_barrier",
        "channel_state",
        "receiver_exclusive_buffers",
    )

    buffers_total: int
    bytes_total: int

    def __init__(
        self,
        index: int,
        channel_state: ChannelStateWriter = NO_CHANNEL_STATE,
        *,
        receiver_exclusive_buffers: int = 2,
    ) -> None:
        super().__init__(index, BytesQueue())
        self.channel_state: ChannelStateWriter = channel_state
        self.receiver_exclusive_buffers: int = receiver_exclusive_buffers
        self._pending_barrier = PendingBarrier(index)
        self._buffer_bytes = UNLIMITED_BUFFER_BYTES

    @property
    def backlog(self) -> int:
        """Data buffers that can be taken: the unfinished one only if it is flushed."""
        if self._is_blocked:
            return 0
        return self._queue.data_count if self.is_finished else self._queue.ready_data

    @property
    def has_unflushed_data(self) -> bool:
        """Whether the last buffer holds what the reader was not notified of."""
        return self._queue.has_unflushed_data

    @property
    def queued_bytes(self) -> int:
        """Bytes that are queued, events and what was read of a buffer included."""
        return sum(item.consumer.written_bytes for item in self._queue)

    @property
    def sequence_number(self) -> int:
        """Number of the buffer that is taken next."""
        return self._sequence_number

    @property
    def buffer_bytes(self) -> int:
        """How large buffers should be."""
        return self._buffer_bytes

    def set_buffer_bytes(self, size_bytes: int) -> None:
        """Say how large the next buffers should be; the reader's wish.

        Raises:
            InvalidArgumentError: If it is less than 1.
        """
        if size_bytes < 1:
            raise InvalidArgumentError("size_bytes", f"{size_bytes} is less than 1")
        self._buffer_bytes = size_bytes

    def add(
        self, consumer: BufferConsumer, partial_record_bytes: int = 0
    ) -> int | None:
        """Queue a buffer; an event with priority goes before the data.

        Args:
            consumer: The reading end, taken over: closed here if it is not queued.
            partial_record_bytes: How many of its first bytes end an earlier record.

        Returns:
            How large a buffer should be, in bytes; None if it was released.
        """
        return self._add(consumer, partial_record_bytes, last=False)

    def finish(self) -> None:
        """Queue the event that ends the partition, and tell the reader. Idempotent."""
        if not self.is_finished and not self.is_released:
            self._add(event_consumer(EndOfPartition()), 0, last=True)

    def flush(self) -> None:
        """Let the unfinished buffer be taken, if it holds anything."""
        if self._queue.request_flush() and not self._is_blocked:
            self._notify_data()

    def is_available(self, *, has_credit: bool = True) -> bool:
        """Say whether something can be taken; without credit only an event can."""
        if self._is_blocked:
            # An unaligned barrier passes what an aligned one has blocked.
            return self._queue.head_type.has_priority
        return self._queue.has_ready if has_credit else self._queue.head_type.is_event

    def poll(self) -> PolledBytes | None:
        """Take what is ready of the next buffer.

        Returns:
            What was taken, or None: nothing is queued, or it is empty, or blocked. A
            priority event overtakes the block too, without lifting it.
        """
        if self._is_blocked and not self._queue.head_type.has_priority:
            return None
        built = self._build_next()
        if built is None:
            return None
        if built.data_type.is_blocking_upstream:
            self._is_blocked = True
        self.bytes_total += built.size_bytes
        sequence_number = self._sequence_number
        self._sequence_number = (sequence_number + 1) % SEQUENCE_MODULUS
        is_ready = not self._is_blocked and self._queue.has_ready
        next_data_type = self._queue.head_type if is_ready else DataType.NONE
        return PolledBytes(built, self.backlog, next_data_type, sequence_number)

    def time_out_barrier(self, checkpoint_id: int) -> None:
        """Turn a queued aligned barrier into an unaligned one, at the head.

        The data that it overtakes goes to the channel state. A no-op if the barrier
        was taken, or was never queued.
        """
        if self._pending_barrier.checkpoint_id != checkpoint_id:
            return
        overtaken, item = self._pending_barrier.find(self._queue.overtaken())
        unaligned = barrier_of(item).as_unaligned()
        self._queue.remove(item)
        self._queue.append_priority(
            QueuedBuffer(event_consumer(unaligned, has_priority=True), 0)
        )
        sequence_number = self._sequence_number
        tells = self._tells_of_priority()
        self._pending_barrier.complete(self.channel_state, overtaken)
        if tells and self._listener is not None:
            self._listener.on_priority_event(sequence_number)

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """Stop waiting for a barrier that may time out; it stays where it is."""
        if self._pending_barrier.checkpoint_id == checkpoint_id:
            self._pending_barrier.fail(self.channel_state, cause)

    def _clear(self, failure: BaseException | None) -> None:
        self._queue.clear()
        released = IllegalStateError(f"{self!r} was released before the barrier left")
        self._pending_barrier.fail(self.channel_state, failure or released)

    def _add(
        self, consumer: BufferConsumer, partial_record_bytes: int, *, last: bool
    ) -> int | None:
        if self.is_finished or self.is_released:
            consumer.close()
            return None
        item = QueuedBuffer(consumer, partial_record_bytes)
        sequence_number = self._sequence_number
        tells_of_priority = self._enqueue(item)
        self.buffers_total += 1
        self.is_finished = last
        # The end tells in any case; everything else only if nothing was ready before.
        tells_of_data = last or self._tells_of_data()
        if tells_of_priority and self._listener is not None:
            self._listener.on_priority_event(sequence_number)
        if tells_of_data:
            self._notify_data()
        return self._buffer_bytes

    def _enqueue(self, item: QueuedBuffer) -> bool:
        if item.data_type.has_priority:
            self._queue.append_priority(item)
            self._keep_overtaken(item)
            return self._tells_of_priority()
        if item.data_type.requires_announcement:
            self._pending_barrier.expect(self.channel_state, barrier_of(item))
        self._queue.append(item)
        return False

    def _keep_overtaken(self, item: QueuedBuffer) -> None:
        barrier = barrier_of(item)
        data = [
            overtaken.unread_bytes()
            for overtaken in self._queue.overtaken()
            if overtaken.is_data
        ]
        if data:
            self.channel_state.add_output_data(barrier.checkpoint_id, self.index, data)

    def _tells_of_priority(self) -> bool:
        return self._queue.priority_count == 1

    def _tells_of_data(self) -> bool:
        return (
            not self._queue.flush_requested
            and not self._is_blocked
            and self._queue.finished_count == 1
        )

    def _notify_data(self) -> None:
        if self._listener is not None:
            self._listener.on_data_available()

    def _build_next(self) -> ReadOnlySlice | None:
        queue = self._queue
        if not queue:
            queue.flush_requested = False
        while (head := queue.head) is not None:
            if head.data_type.requires_announcement:
                self._pending_barrier.left(self.channel_state, barrier_of(head))
            built, is_finished = queue.build_head()
            if built.size_bytes or (
                is_finished and not self.receiver_exclusive_buffers
            ):
                return built
            built.recycle()
            if not is_finished:
                return None
        return None


# What a remote reader may do with a subpartition of bytes.


class BytesSubpartitionView(ReadingEnd[BytesSubpartition]):
    """The end of one subpartition that a connection reads; see `ReadingEnd`.

    Args:
        subpartition: What is read.
        listener: Notified when something can be taken; about what is queued
            already it is not notified.
        on_acknowledged: Called when the reader has processed all records.
        on_released: Called once, after the view was released.
    """

    __slots__ = ("_on_acknowledged",)

    def __init__(
        self,
        subpartition: BytesSubpartition,
        listener: DataListener,
        *,
        on_acknowledged: Callable[[], None],
        on_released: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(subpartition, listener, on_released)
        self._on_acknowledged = on_acknowledged

    def poll(self) -> PolledBytes | None:
        """Take the next buffer, or None; the caller recycles it."""
        return self._subpartition.poll()

    def acknowledge_all_data_processed(self) -> None:
        """Be notified that the reader has processed all records."""
        self._on_acknowledged()

    def set_buffer_bytes(self, size_bytes: int) -> None:
        """Be notified of the reader's wish for the size of buffers.

        Raises:
            InvalidArgumentError: If it is less than 1.
        """
        self._subpartition.set_buffer_bytes(size_bytes)
