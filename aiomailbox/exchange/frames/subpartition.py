"""Channels to readers on other loops: records framed into pooled segments.

Theory of operation: each channel has a builder of its own while records go to one of
them, and all share one while records go to all. Changing between the two finishes what
was begun, so that the order on each channel is kept. A record that does not fit goes on
in the next buffer. Emitting never waits: what a pool does not lend, it lends as
overdraft, and before the next record the task looks at `availability`.

The reader is notified when the first finished buffer is queued, when a flush makes an
unfinished one ready, and when a priority event comes. Which additions and flushes tell is
Flink's, exactly: a buffer that its writer finishes notifies nothing until the next buffer
or flush comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiomailbox.exchange.core.contract import PolledBytes
from aiomailbox.exchange.core.subpartition import Producer, ResultSubpartition
from aiomailbox.exchange.frames.encoder import FrameEncoder, event_consumer
from aiomailbox.memory.buffer import DataType, ReadOnlySlice
from aiomailbox.memory.builder import BufferBuilder, BufferConsumer
from aiomailbox.records import Control
from aiomailbox.records.events import RuntimeEvent
from aiomailbox.records.run import Run

Framed = bytes | bytearray | memoryview


class QueuedBuffer:
    """A buffer in the queue.

    Attributes:
        consumer: The reading end.
        event: The event that it carries, or None in a buffer of data.
        is_sealed: Whether its writer had finished when it was last looked into.
            What is ready is judged by that: finishing a buffer notifies nothing.
        partial_record_bytes: How many of its first bytes end a record that began in
            an earlier buffer.
    """

    __slots__ = ("consumer", "event", "is_sealed", "partial_record_bytes")

    # They count once they were emitted.
    record_count: Final = 0

    def __init__(
        self,
        consumer: BufferConsumer,
        partial_record_bytes: int = 0,
        event: RuntimeEvent | None = None,
    ) -> None:
        self.consumer: BufferConsumer = consumer
        self.event: RuntimeEvent | None = event
        self.is_sealed: bool = consumer.is_finished
        self.partial_record_bytes: int = partial_record_bytes

    @property
    def has_content(self) -> bool:
        """Whether something was not built yet."""
        return self.consumer.is_data_available

    @property
    def size_bytes(self) -> int:
        """Bytes in it, what was read of them included."""
        return self.consumer.written_bytes

    def build(self) -> ReadOnlySlice:
        """Return what was not built yet, and see whether the writer has finished."""
        self.is_sealed = self.consumer.is_finished
        return self.consumer.build()

    def unread_bytes(self) -> bytes:
        """Return what was not built yet, copied and without taking it."""
        copied = self.consumer.copy()
        unread = copied.build()
        copied.close()
        try:
            return bytes(unread.readable())
        finally:
            unread.recycle()


class WriteTarget:
    """What is written to one channel, or to all of them together.

    Attributes:
        channels: Which of them read it.
        builder: Of its unfinished buffer.
    """

    __slots__ = ("builder", "channels")

    def __init__(self, channels: list[BytesSubpartition]) -> None:
        self.channels = channels
        self.builder: BufferBuilder | None = None

    def queue(self, builder: BufferBuilder, partial: int, needed: int) -> None:
        """Queue a builder's reading end at each channel, and heed their wished sizes."""
        consumer = builder.create_consumer_from_beginning()
        try:
            wished = [
                channel.buffer_bytes
                for channel in self.channels
                if channel.add(QueuedBuffer(consumer.copy(), partial))
            ]
        finally:
            consumer.close()
        if wished:
            # Debloating never makes it smaller than what has to go in.
            builder.trim(max(needed, min(wished)))

    def finish(self) -> None:
        """Finish the unfinished buffer, if there is one."""
        builder, self.builder = self.builder, None
        if builder is not None:
            builder.finish()
            builder.close()


class FrameWriter:
    """Frames what goes to the remote channels of one output, together or to one.

    Args:
        producer: Lends segments.
        encoder: Makes frames of runs and control elements.
        small_buffers_max: How many segments beyond the pool may be taken rather than
            make buffers larger than wished.

    Attributes:
        channels: The channels; each enters itself.
        shared: What all channels read, while records go to all of them.

    Concept:
        Flink, ``BufferWritingResultPartition``.
    """

    __slots__ = (
        "_encoder",
        "_frame_bytes_max",
        "_producer",
        "_small_buffers_max",
        "channels",
        "shared",
    )

    def __init__(
        self, producer: Producer, encoder: FrameEncoder, *, small_buffers_max: int = 0
    ) -> None:
        self.channels: list[BytesSubpartition] = []
        self.shared: WriteTarget = WriteTarget(self.channels)
        self._producer = producer
        self._encoder = encoder
        self._frame_bytes_max = encoder.frame_bytes_wished
        self._small_buffers_max = small_buffers_max

    def emit_run(self, run: Run, channel: BytesSubpartition) -> None:
        """Append a run's frames to one channel; see `write`."""
        # A buffer is never smaller than what it holds whole.
        wished = min(self._frame_bytes_max, channel.buffer_bytes)
        self._encoder.frame_bytes_wished = wished
        for framed, count in self._encoder.frames(run):
            self.write(framed, channel.own)
            channel.records_total += count

    def emit_control(self, element: Control, channel: BytesSubpartition) -> None:
        """Append a control element's frame to one channel; see `write`."""
        self.write(self._encoder.frame(element), channel.own)

    def broadcast_run(self, run: Run) -> None:
        """Append a run's frames to all channels; it is encoded once."""
        # One buffer for all, so the smallest wish counts.
        least = min(each.buffer_bytes for each in self.channels)
        self._encoder.frame_bytes_wished = min(self._frame_bytes_max, least)
        for framed, count in self._encoder.frames(run):
            self.write(framed, self.shared)
            for channel in self.channels:
                channel.records_total += count

    def broadcast_control(self, element: Control) -> None:
        """Append a control element's frame to all channels; it is encoded once.

        It goes where the records went: to the shared buffer if they are broadcast,
        else to each channel's own, so that none is finished early.
        """
        framed = self._encoder.frame(element)
        if self.shared.builder is not None:
            self.write(framed, self.shared)
            return
        for channel in self.channels:
            if not channel.is_released:
                self.write(framed, channel.own)

    def broadcast_event(
        self, event: RuntimeEvent, overtaken: Sequence[Sequence[bytes]]
    ) -> None:
        """Send an event to all channels, behind what was emitted; it is encoded once.

        Args:
            event: The event.
            overtaken: What was in flight on each channel, if it overtakes.
        """
        self._producer.check_open()
        self.finish_all()
        consumer = event_consumer(event, has_priority=event.is_priority)
        try:
            for channel, data in zip(self.channels, overtaken, strict=True):
                # A copy for each channel: they read at their own pace, and the last one
                # gives the memory back.
                buffer = QueuedBuffer(consumer.copy(), event=event)
                channel.add_event(event, buffer, data)
        finally:
            consumer.close()

    def write(self, framed: Framed, target: WriteTarget) -> None:
        """Append a record.

        Args:
            framed: Its length and its content; borrowed for the call.
            target: A channel's own, or the one that all share.

        Raises:
            IllegalStateError: If the partition is closed.
            OverdraftCeilingError: If one record needs more than may be lent.
        """
        builder = target.builder
        # The hot path: less than what fits, so it is neither full nor continued.
        if builder is not None and len(framed) < builder.writable_bytes:
            builder.append_and_commit(framed)
            return
        rest = memoryview(framed)
        if builder is None:
            builder = self._open(target)
            # Queued while it is empty, so that its reader can take a part of it when it
            # is flushed.
            target.queue(builder, 0, len(rest))
        rest = rest[self._append(builder, rest) :]
        while rest:
            target.finish()
            builder = self._open(target)
            written = self._append(builder, rest)
            # The other way round than above: written first, so that it is known where
            # the first whole record begins.
            target.queue(builder, written, written)
            rest = rest[written:]
        if builder.is_full:
            target.finish()

    def finish_all(self) -> None:
        """Finish the buffers that are written to."""
        self.shared.finish()
        for channel in self.channels:
            channel.own.finish()

    def _append(self, builder: BufferBuilder, record: memoryview) -> int:
        missing = len(record) - builder.writable_bytes
        if missing >= 0 and self._must_save_segments():
            # Rather ignore the wished size than need a segment that is not there; one
            # more byte, so that the buffer is not full at once.
            builder.trim(builder.capacity_bytes + missing + 1)
        return builder.append_and_commit(record)

    def _must_save_segments(self) -> bool:
        pool, most = self._producer.pool, self._small_buffers_max
        return not pool.available and (not most or pool.outstanding - pool.size >= most)

    def _open(self, target: WriteTarget) -> BufferBuilder:
        self._producer.check_open()
        if target is self.shared:
            self.finish_all()
        else:
            self.shared.finish()
        pool = self._producer.pool
        # All channels hold a shared one; the quota of the first one counts it.
        charged = self._producer.charged(target.channels[0].index)
        segment = pool.request_elastic(charged)
        builder = target.builder = BufferBuilder(segment, pool.recycler(charged))
        return builder


class BytesSubpartition(ResultSubpartition[QueuedBuffer, PolledBytes]):
    """A queue of buffers of bytes from one producer to one reader.

    Args:
        index: The channel's place in the whole output, from 0.
        writer: Of the output's remote channels.
        receiver_exclusive_buffers: How many buffers the reader keeps for this channel
            alone. With none, an empty finished buffer is handed out too, so that the
            credit that was given for it comes back.

    Attributes:
        own: What only this channel reads.
        receiver_exclusive_buffers: As given, or as a partition request says.
    """

    __slots__ = ("_writer", "own", "receiver_exclusive_buffers")

    def __init__(
        self, index: int, writer: FrameWriter, *, receiver_exclusive_buffers: int = 2
    ) -> None:
        super().__init__(index)
        self.own: WriteTarget = WriteTarget([self])
        self.receiver_exclusive_buffers: int = receiver_exclusive_buffers
        self._writer = writer
        writer.channels.append(self)

    def emit_run(self, run: Run) -> bool:
        """Queue records; see `ResultPartition.emit_run`."""
        # Also not encoded: a consumer that has gone would cost as much as one that
        # reads.
        if self.is_released:
            return False
        self._writer.emit_run(run, self)
        return self.has_unflushed_data

    def emit_control(self, element: Control) -> bool:
        """Queue a control element, in order with the records; as `emit_run`."""
        if self.is_released:
            return False
        self._writer.emit_control(element, self)
        return self.has_unflushed_data

    def add(self, buffer: QueuedBuffer) -> bool:
        """Queue a buffer of data, and say whether that was done.

        If its reader has left, the buffer is closed.
        """
        if self.is_finished or self.is_released:
            self._drop(buffer)
            return False
        self._add(buffer)
        return True

    def poll(self) -> PolledBytes | None:
        """Take what is ready of the next buffer.

        Returns:
            What was taken, or None: nothing is queued, or it is empty, or blocked. A
            priority event overtakes the block too, without lifting it.
        """
        if self._is_blocked and not self._buffers.priority_count:
            return None
        if not self._buffers:
            self._flush_requested = False
        while (head := self._buffers.peek()) is not None:
            built = head.build()
            if len(self._buffers) == 1:
                # Whatever the flush was for is taken now.
                self._flush_requested = False
            if head.is_sealed:
                self._buffers.popleft()
                self._data_count -= head.event is None
                head.consumer.close()
            if built.size_bytes or (
                head.is_sealed and not self.receiver_exclusive_buffers
            ):
                return self._describe(built, head.event)
            built.recycle()
            if not head.is_sealed:
                return None
        return None

    def _describe(
        self, built: ReadOnlySlice, event: RuntimeEvent | None
    ) -> PolledBytes:
        number = self._count_taken(event, built.size_bytes)
        head = self._buffers.peek()
        next_type = DataType.NONE
        if head is not None and not self._is_blocked and self._has_ready:
            next_type = head.consumer.data_type
        return PolledBytes(built, self.backlog, next_type, number)

    def _on_added(self, *, had_ready: bool) -> None:
        # As Flink: whenever one buffer is known to be finished, told before or not.
        finished = len(self._buffers) - 1
        if not finished:
            last = self._buffers.peek_last()
            finished = last is not None and last.is_sealed
        if finished == 1 and not self._flush_requested:
            self._tell_of_data()

    def _buffer_of(self, event: RuntimeEvent) -> QueuedBuffer:
        consumer = event_consumer(event, has_priority=event.is_priority)
        return QueuedBuffer(consumer, event=event)

    def _as_bytes(self, buffers: list[QueuedBuffer]) -> list[bytes]:
        return [buffer.unread_bytes() for buffer in buffers]

    def _drop(self, buffer: QueuedBuffer) -> None:
        buffer.consumer.close()
