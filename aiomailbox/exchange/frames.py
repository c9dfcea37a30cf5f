"""Channels to readers on other loops: records framed into pooled segments.

Theory of operation: each channel has a builder of its own while records go to one of
them, and all share one while records go to all. Changing between the two finishes what
was begun, so that the order on each channel is kept. A record that does not fit goes on
in the next buffer. Emitting never waits: an empty pool lends buffers as overdraft,
and before the next record the task looks at `availability`.

The reader is notified when the first finished buffer is queued, when a flush makes an
unfinished one ready, and when a priority event comes. Which additions and flushes tell is
Flink's, exactly: a buffer that its writer finishes notifies nothing until the next buffer
or flush comes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final, cast

from aiomailbox.errors import CorruptStreamError, InvalidArgumentError
from aiomailbox.exchange.core.contract import CONTROL, ObjectBuffer, PolledBytes
from aiomailbox.exchange.core.subpartition import Producer, ResultSubpartition
from aiomailbox.memory.buffer import (
    DEFAULT_SEGMENT_SIZE_BYTES,
    Buffer,
    BufferBuilder,
    BufferConsumer,
    DataType,
    MemorySegment,
    NetworkBuffer,
    ReadOnlySlice,
)
from aiomailbox.records import Control, Element
from aiomailbox.records.element_codec import ElementCodec, decode_event, encode_event
from aiomailbox.records.events import (
    CheckpointBarrier,
    EndOfData,
    EndOfOutputChannelState,
    EndOfPartition,
    RuntimeEvent,
    WatermarkEvent,
)
from aiomailbox.records.run import RUN_LENGTH_MAX, Run
from aiomailbox.records.spanning import RecordDeserializer, begin_frame, end_frame

# From runs and control elements to framed bytes of a sensible size.


# A frame that fills a segment: large enough to pay for itself, soon complete.
FRAME_BYTES_WISHED: Final = DEFAULT_SEGMENT_SIZE_BYTES
# Beyond so many times the wished size, a frame is made again from shorter pieces.
_EXCESS_MAX: Final = 4
# What the first frame holds, before the size of records is known.
_FIRST_LENGTH: Final = 32
_GROWTH_MAX: Final = 4


class FrameEncoder:
    """Encodes elements, each in a frame of its own, for one output.

    Runs are cut by what their records took before, so that a frame is not much larger
    than wished: a reader has to wait for the whole of it.

    Args:
        codec: For the elements.
        frame_bytes_wished: How large the frame of a run should be.

    Example:
        >>> from aiomailbox.records import LONG_SERIALIZER, ListRun
        >>> encoder = FrameEncoder(ElementCodec(LONG_SERIALIZER))
        >>> [len(frame) for frame, count in encoder.frames(ListRun([1, 2]))]
        [26]
    """

    def __init__(
        self, codec: ElementCodec, *, frame_bytes_wished: int = FRAME_BYTES_WISHED
    ) -> None:
        if frame_bytes_wished < 1:
            raise InvalidArgumentError(
                "frame_bytes_wished", f"{frame_bytes_wished} is less than 1"
            )
        self.frame_bytes_wished: int = frame_bytes_wished
        self._codec = codec
        self._length = _FIRST_LENGTH

    def frame(self, element: Control | Run) -> bytearray:
        """Return one element in a frame, whatever its size.

        Raises:
            WrongTypeError: If it cannot be serialized.
            InvalidArgumentError: If it exceeds what a frame may have.
        """
        framed = bytearray()
        start = begin_frame(framed)
        self._codec.write(element, framed)
        end_frame(framed, start)
        return framed

    def frames(self, run: Run) -> Iterator[tuple[bytearray, int]]:
        """Return a run's frames, each with the number of its records; see `frame`."""
        count = len(run)
        start = 0
        while start < count:
            stop = min(start + self._length, count)
            piece = run if stop - start == count else run.slice(start, stop)
            framed = self._frame_or_less(piece)
            if framed is not None:
                yield framed, stop - start
                start = stop

    def _frame_or_less(self, piece: Run) -> bytearray | None:
        """Return the frame, or None: it is far too large, and the next is shorter."""
        framed = bytearray()
        start = begin_frame(framed)
        self._codec.write(piece, framed)
        count, size_bytes, wished = len(piece), len(framed), self.frame_bytes_wished
        fitting = max(1, min(piece.length_max, wished * count // size_bytes))
        # It may fall to one at once, and grows fourfold at most: one run of small
        # records is no promise that the next one is as small.
        self._length = min(fitting, _GROWTH_MAX * max(count, self._length))
        # The work is lost, but only for the first of its kind: the length is known now.
        if size_bytes > _EXCESS_MAX * wished and fitting < count:
            return None
        end_frame(framed, start)
        return framed


# From the buffers of a channel back to elements, which may span several of them.


class ElementReader:
    """Reads what a channel's buffers hold, in their order.

    Args:
        codec: How the edge's elements are encoded.
        name: The sender's name, for errors.
        spill_directory: Where very large records go; None for the system's place.

    Attributes:
        buffers_total: Buffers read.
        records_total: Records read.
        bytes_total: Bytes read, events included.
    """

    def __init__(
        self,
        codec: ElementCodec,
        name: str,
        spill_directory: str | os.PathLike[str] | None = None,
    ) -> None:
        self._codec = codec
        self._name = name
        self._deserializer = RecordDeserializer(spill_directory=spill_directory)
        # Of a buffer that is read in parts.
        self._rest: Iterator[Element] | None = None
        self.buffers_total: int = 0
        self.records_total: int = 0
        self.bytes_total: int = 0

    def read(self, buffer: Buffer) -> ObjectBuffer | None:
        """Return the elements that end in a buffer, or its event; None if none does.

        After an error nothing that follows makes sense.

        Raises:
            CorruptStreamError: If it does not hold what was written.
        """
        if buffer.data_type.is_event:
            return self._read_event(buffer)
        return self._taken(list(self._begin(buffer)))

    def read_part(self, buffer: Buffer) -> ObjectBuffer | None:
        """Return some elements of a buffer, or its event; None if none ends in it.

        A buffer may hold far more records than are processed at once. What has just been
        made of bytes is in the processor's cache when it is processed, and of the rest no
        objects exist yet. As long as `has_rest`, call it again with the same buffer;
        events may come in between.

        Raises:
            CorruptStreamError: If it does not hold what was written.
        """
        if buffer.data_type.is_event:
            return self._read_event(buffer)
        if self._rest is None:
            self._rest = self._begin(buffer)
        elements: list[Element] = []
        count = 0
        for element in self._rest:
            elements.append(element)
            count += 1 if isinstance(element, CONTROL) else len(element)
            if count >= RUN_LENGTH_MAX and self._deserializer.has_rest:
                break
        else:
            self._rest = None
        return self._taken(elements)

    @property
    def has_rest(self) -> bool:
        """Whether `read_part` has left something of its buffer."""
        return self._rest is not None

    def unconsumed(self) -> bytes:
        """Return what there is of a record that is not whole yet."""
        return self._deserializer.unconsumed()

    def clear(self) -> None:
        """Forget what is not whole, and what is left of a buffer."""
        self._rest = None
        self._deserializer.clear()

    def _begin(self, buffer: Buffer) -> Iterator[Element]:
        content = buffer.readable()
        self._count(content)
        return self._elements(content)

    def _count(self, content: memoryview) -> None:
        self.buffers_total += 1
        self.bytes_total += len(content)

    def _taken(self, elements: list[Element]) -> ObjectBuffer | None:
        if not elements:
            # Not an empty buffer of elements: it would be handed around and say
            # nothing.
            return None
        taken = ObjectBuffer.of_elements(elements)
        self.records_total += taken.record_count
        return taken

    def _read_event(self, buffer: Buffer) -> ObjectBuffer:
        content = buffer.readable()
        self._count(content)
        event = decode_event(content)
        if (
            buffer.data_type is DataType.END_OF_PARTITION
            # The end is the only event that a half record may not precede: barriers
            # overtake.
            and self._deserializer.has_unfinished_record
        ):
            raise CorruptStreamError(f"{self._name} ended in the middle of a record")
        return ObjectBuffer.for_event(event)

    def _elements(self, content: memoryview) -> Iterator[Element]:
        decode = self._codec.decode
        for record in self._deserializer.records(content):
            yield cast("Element", decode(record))


# Events in buffers of bytes: which kind of buffer carries one, and the buffer.


_BY_CLASS: dict[type[RuntimeEvent], DataType] = {
    EndOfData: DataType.END_OF_DATA,
    EndOfPartition: DataType.END_OF_PARTITION,
    EndOfOutputChannelState: DataType.RECOVERY_COMPLETION,
}


def event_data_type(event: RuntimeEvent, *, has_priority: bool = False) -> DataType:
    """Return the kind of buffer that carries an event.

    Example:
        >>> event_data_type(CheckpointBarrier(1, 0)).name
        'ALIGNED_CHECKPOINT_BARRIER'
    """
    if has_priority:
        return DataType.PRIORITIZED_EVENT_BUFFER
    if isinstance(event, CheckpointBarrier):
        return _barrier_data_type(event)
    if isinstance(event, WatermarkEvent):
        if event.is_aligned:
            return DataType.ALIGNED_WATERMARK_EVENT
        return DataType.UNALIGNED_WATERMARK_EVENT
    return _BY_CLASS.get(type(event), DataType.EVENT_BUFFER)


def event_buffer(event: RuntimeEvent, *, has_priority: bool = False) -> NetworkBuffer:
    """Return an event in a buffer of its own, outside of any pool."""
    encoded = encode_event(event, padded=True)
    segment = MemorySegment(len(encoded))
    segment.view[:] = encoded
    data_type = event_data_type(event, has_priority=has_priority)
    return NetworkBuffer(
        segment, MemorySegment.free, data_type, size_bytes=len(encoded)
    )


def event_consumer(event: RuntimeEvent) -> BufferConsumer:
    """Return a finished consumer of an event; each copy reads all of it."""
    return BufferConsumer.of_finished(
        event_buffer(event, has_priority=event.is_priority)
    )


def _barrier_data_type(barrier: CheckpointBarrier) -> DataType:
    if not barrier.needs_alignment:
        return DataType.EVENT_BUFFER
    if barrier.is_timeoutable:
        return DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER
    return DataType.ALIGNED_CHECKPOINT_BARRIER


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
    """One channel that frames are written to, or all channels together.

    Attributes:
        channels: Which of them read it.
        builder: Of its unfinished buffer.
    """

    def __init__(self, channels: list[BytesSubpartition]) -> None:
        self.channels = channels
        self.builder: BufferBuilder | None = None

    def queue(self, builder: BufferBuilder, partial: int, needed: int) -> None:
        """Queue a builder's reading end at each channel, and heed their wished sizes."""
        consumer = builder.create_consumer()
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
        """Send an event to all channels, behind what was emitted; it is encoded once."""
        self._producer.check_open()
        self.finish_all()
        consumer = event_consumer(event)
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

    def __init__(
        self, index: int, writer: FrameWriter, *, receiver_exclusive_buffers: int = 2
    ) -> None:
        super().__init__(index)
        self.own: WriteTarget = WriteTarget([self])
        self.receiver_exclusive_buffers: int = receiver_exclusive_buffers
        self._writer = writer
        writer.channels.append(self)

    def emit_run(self, run: Run) -> bool:
        # Also not encoded: a consumer that has gone would cost as much as one that
        # reads.
        if self.is_released:
            return False
        self._writer.emit_run(run, self)
        return self.has_unflushed_data

    def emit_control(self, element: Control) -> bool:
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
        if self.is_blocked and not self._buffers.priority_count:
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
        if head is not None and not self.is_blocked and self._has_ready:
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
        consumer = event_consumer(event)
        return QueuedBuffer(consumer, event=event)

    def _as_bytes(self, buffers: list[QueuedBuffer]) -> list[bytes]:
        return [buffer.unread_bytes() for buffer in buffers]

    def _drop(self, buffer: QueuedBuffer) -> None:
        buffer.consumer.close()
