"""From runs and control elements to framed bytes of a sensible size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, cast

from aiomailbox.errors import CorruptStreamError, InvalidArgumentError
from aiomailbox.exchange.core.buffer import CONTROL, ObjectBuffer
from aiomailbox.memory.buffer import (
    DEFAULT_SEGMENT_SIZE_BYTES,
    Buffer,
    DataType,
    MemorySegment,
    NetworkBuffer,
)
from aiomailbox.memory.builder import BufferConsumer
from aiomailbox.records import Control, Element
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.event_codec import decode_event, encode_event
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

    __slots__ = ("_codec", "_length", "frame_bytes_wished")

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

    __slots__ = (
        "_codec",
        "_deserializer",
        "_name",
        "_rest",
        "buffers_total",
        "bytes_total",
        "records_total",
    )

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

    Args:
        event: The event.
        has_priority: Whether it is to overtake what is queued.

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
    """Return an event in a buffer of its own, outside of any pool.

    Args:
        event: The event; padded as Flink's partitions pad it.
        has_priority: Whether it is to overtake what is queued.
    """
    encoded = encode_event(event, padded=True)
    segment = MemorySegment(len(encoded))
    segment.put(0, encoded)
    data_type = event_data_type(event, has_priority=has_priority)
    return NetworkBuffer(
        segment, MemorySegment.free, data_type, size_bytes=len(encoded)
    )


def event_consumer(
    event: RuntimeEvent, *, has_priority: bool = False
) -> BufferConsumer:
    """Return a finished consumer of an event; each copy reads all of it."""
    return BufferConsumer.of_finished(event_buffer(event, has_priority=has_priority))


def _barrier_data_type(barrier: CheckpointBarrier) -> DataType:
    if not barrier.needs_alignment:
        return DataType.EVENT_BUFFER
    if barrier.is_timeoutable:
        return DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER
    return DataType.ALIGNED_CHECKPOINT_BARRIER
