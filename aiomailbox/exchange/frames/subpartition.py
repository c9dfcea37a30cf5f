"""One channel's queue of bytes on the producer's side.

Theory of operation: the reader is notified when the first finished buffer is queued, when a
flush makes an unfinished one ready, and when a priority event comes; it then takes
until nothing more is ready. Which additions and flushes tell is Flink's, exactly: a
buffer that its writer finishes notifies nothing until the next buffer or flush comes.
"""

from __future__ import annotations

from typing import Final

from aiomailbox.errors import IllegalStateError, InvalidArgumentError
from aiomailbox.exchange.core.channel_state import NO_CHANNEL_STATE, ChannelStateWriter
from aiomailbox.exchange.core.contract import SEQUENCE_MODULUS, PolledBytes
from aiomailbox.exchange.core.subpartition import ResultSubpartition
from aiomailbox.exchange.frames.event_buffer import event_consumer
from aiomailbox.exchange.frames.pending_barrier import PendingBarrier, barrier_of
from aiomailbox.exchange.frames.queue import BytesQueue, QueuedBuffer
from aiomailbox.memory.buffer import ReadOnlySlice
from aiomailbox.memory.builder import BufferConsumer
from aiomailbox.memory.data_type import DataType
from aiomailbox.records.events import EndOfPartition

__all__ = ["UNLIMITED_BUFFER_BYTES", "BytesSubpartition", "PolledBytes"]

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
