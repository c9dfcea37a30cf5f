"""What the two ends of a subpartition agree on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, Protocol, cast

from aiomailbox.availability import Availability
from aiomailbox.errors import CorruptStreamError
from aiomailbox.exchange.core.buffer import ObjectBuffer
from aiomailbox.ids import PartitionId
from aiomailbox.memory.buffer import DataType, ReadOnlySlice
from aiomailbox.records import Control, Element
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import LatencyMarker, RuntimeEvent, StopMode
from aiomailbox.records.run import Run
from aiomailbox.records.spanning import RecordDeserializer, begin_frame, end_frame

# Sequence numbers are unsigned 32-bit integers, here as on the wire.
SEQUENCE_MODULUS: Final = 2**32


class PolledBuffer(NamedTuple):
    """What a poll took.

    Attributes:
        buffer: The buffer; its consumer recycles it.
        more_available: Whether another one can be taken now.
        next_is_priority: Whether that one overtook others.
        sequence_number: Number of this buffer on its channel, modulo 2**32.

    Concept:
        Flink, ``ResultSubpartition.BufferAndBacklog``.
    """

    buffer: ObjectBuffer
    more_available: bool
    next_is_priority: bool
    sequence_number: int


class PolledBytes(NamedTuple):
    """What a poll of bytes took.

    Attributes:
        buffer: The bytes; their consumer recycles them.
        backlog: Data buffers that could be taken after this one.
        next_data_type: What could be taken next, ``NONE`` if nothing is ready.
        sequence_number: Number of this buffer on its channel, modulo 2**32.

    Concept:
        Flink, ``ResultSubpartition.BufferAndBacklog``.
    """

    buffer: ReadOnlySlice
    backlog: int
    next_data_type: DataType
    sequence_number: int


class ChannelStatistics(NamedTuple):
    """What waits in a channel now, and what has been taken from it so far.

    Sizes are estimates, as in `ObjectBuffer.size_bytes`; events count as buffers.
    """

    queued_buffers: int = 0
    queued_records: int = 0
    queued_bytes: int = 0
    buffers_total: int = 0
    records_total: int = 0
    bytes_total: int = 0


class ChannelCredit(NamedTuple):
    """The buffers that the reader of a channel has for what it is going to be sent.

    Attributes:
        available: Buffers that data can arrive in: the credit there is in all.
        unannounced: Of those, what was not announced to the producer yet.
        exclusive: Buffers of this channel alone, free or not.
        exclusive_free: Of those, the free ones.
        backlog: Data buffers that wait at the producer, as it said last.

    Concept:
        Flink, ``BufferManager`` and ``RemoteInputChannel``.
    """

    available: int
    unannounced: int
    exclusive: int
    exclusive_free: int
    backlog: int


class DataListener(Protocol):
    """Is notified that a subpartition has something to take.

    Concept:
        Flink, ``BufferAvailabilityListener``.
    """

    def on_data_available(self) -> None:
        """Be notified that a poll would give something."""
        ...

    def on_priority_event(self, sequence_number: int) -> None:
        """Be notified that the next poll, of that number, gives a priority event."""
        ...


# What the two kinds of readers may do with a subpartition, without its stack.
#
# Theory of operation: channels, the registry and connections use a reader's end; which
# buffers it reads, and from what kind of partition, is nothing they import.


class _View(Protocol):
    @property
    def is_released(self) -> bool:
        """Whether either side has released it."""
        ...

    @property
    def failure(self) -> BaseException | None:
        """Why the producer released it, if it failed."""
        ...

    @property
    def backlog(self) -> int:
        """Data buffers that can be taken."""
        ...

    def is_available(self, *, has_credit: bool = True) -> bool:
        """Say whether something can be taken; without credit only an event can."""
        ...

    def resume_consumption(self) -> None:
        """Lift the block of an event; raises IllegalStateError if nothing blocks.

        The caller looks for data again: the listener is notified as well.
        """
        ...

    def acknowledge_all_data_processed(self) -> None:
        """Be notified that the reader has processed all records; repeats are ignored."""
        ...

    def release(self) -> None:
        """Recycle what is queued, and drop what is still added. Idempotent."""
        ...


class ObjectView(_View, Protocol):
    """The end of a subpartition that a consumer on this loop reads."""

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event."""
        ...

    def poll(self) -> PolledBuffer | None:
        """Take the next buffer, or None; the caller recycles it."""
        ...

    def tell_again(self) -> None:
        """Tell the listener if something can be taken now."""
        ...

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot for metrics; counting what is queued takes a walk."""
        ...


class BytesView(_View, Protocol):
    """The end of a subpartition that a connection reads, at the producer."""

    def poll(self) -> PolledBytes | None:
        """Take the next buffer, or None; the caller recycles it."""
        ...

    def set_buffer_bytes(self, size_bytes: int) -> None:
        """Be notified of the reader's wish for the size of buffers."""
        ...


# What a task, its writers and the registry use of a partition, of whichever kind.


class OutputPartition(Protocol):
    """A task's output towards one edge: one channel per consumer.

    Attributes:
        partition_id: Whose output, and towards which edge.
        availability: True while another buffer fits.
    """

    partition_id: PartitionId
    availability: Availability

    @property
    def is_released(self) -> bool:
        """Whether nothing is kept for consumers any more."""
        ...

    @property
    def all_data_processed(self) -> Availability:
        """Turns true when each consumer has acknowledged the end of data."""
        ...

    @property
    def subpartition_count(self) -> int:
        """Number of consumers."""
        ...

    @property
    def queued_buffers(self) -> int:
        """Buffers queued for all consumers, events included."""
        ...

    @property
    def has_unflushed_data(self) -> bool:
        """Whether anything is queued that its consumer cannot take yet."""
        ...

    def statistics(self) -> list[ChannelStatistics]:
        """Return a snapshot per channel, in order."""
        ...

    def emit_run(self, run: Run, channel: int) -> bool:
        """Queue records for one consumer; says whether something awaits a flush."""
        ...

    def broadcast_run(self, run: Run) -> bool:
        """Queue records for every consumer; returns as `emit_run`."""
        ...

    def emit_control(self, element: Control, channel: int) -> bool:
        """Queue a control element for one consumer; returns as `emit_run`."""
        ...

    def broadcast_control(self, element: Control) -> bool:
        """Queue a control element for every consumer; returns as `emit_run`."""
        ...

    def broadcast_event(self, event: RuntimeEvent) -> None:
        """Queue an event for every consumer, in a buffer of its own."""
        ...

    async def writable(self) -> None:
        """Suspend until another buffer fits; flushes before it does."""
        ...

    def flush(self, channel: int) -> None:
        """Let one consumer take what is queued."""
        ...

    def flush_all(self) -> None:
        """Let every consumer take what is queued."""
        ...

    def notify_end_of_data(self, mode: StopMode) -> None:
        """Tell every consumer that no more records follow. Idempotent."""
        ...

    def finish(self) -> None:
        """Tell every consumer that nothing at all follows, and close. Idempotent."""
        ...

    async def settle(self) -> None:
        """Suspend until what was emitted outlives its task, if that is its nature."""
        ...

    def create_view(
        self, subpartition_index: int, listener: DataListener
    ) -> ObjectView:
        """Return the one view of a channel for a consumer on this loop.

        Raises:
            InvalidArgumentError: If there is no such channel, or its consumer is remote.
            IllegalStateError: If it has a view already, or was released.
        """
        ...

    def create_bytes_view(
        self,
        subpartition_index: int,
        listener: DataListener,
        *,
        receiver_exclusive_buffers: int,
    ) -> BytesView:
        """Return the one view of a channel for a remote consumer.

        Args:
            subpartition_index: Which channel.
            listener: Notified from now on; not about what is queued.
            receiver_exclusive_buffers: How many the reader has of its own.

        Raises:
            InvalidArgumentError: If there is no such channel, or it stays on this loop.
            IllegalStateError: If it has a view already, or was released.
        """
        ...

    def on_consumed(self, callback: Callable[[], None]) -> None:
        """Call back once: all have released it, or everything was released."""
        ...

    def close(self) -> None:
        """End the producer's part; what is queued stays. Idempotent."""
        ...

    def release(self, failure: BaseException | None = None) -> None:
        """Recycle everything that is queued, and end what reads it. Idempotent."""
        ...


# What receives the data in flight that belongs to a checkpoint, and its bytes.
#
# Theory of operation: whatever a channel's buffers hold, its data in flight is kept as
# the bytes that would cross between processes: elements, each in a frame. So what was
# kept at the two ends of a channel can be put together, one behind the other.


class ChannelStateWriter(Protocol):
    """Keeps output that a barrier has overtaken.

    Concept:
        Flink, ``ChannelStateWriter``; its futures are `expect_output_data` and one of
        the two calls that end the expectation.
    """

    def add_output_data(
        self, checkpoint_id: int, subpartition_index: int, data: list[bytes]
    ) -> None:
        """Keep data that an unaligned barrier has overtaken."""
        ...

    def expect_output_data(self, checkpoint_id: int, subpartition_index: int) -> None:
        """Wait: a queued barrier may still time out and overtake data."""
        ...

    def complete_output_data(
        self, checkpoint_id: int, subpartition_index: int, data: list[bytes]
    ) -> None:
        """Keep what the expected barrier has overtaken: nothing if it was in time."""
        ...

    def fail_output_data(
        self, checkpoint_id: int, subpartition_index: int, error: BaseException
    ) -> None:
        """Stop waiting: the barrier will neither be taken nor overtake."""
        ...


def encode_in_flight(codec: ElementCodec, elements: Iterable[Element]) -> bytes:
    """Return elements in frames; latency markers are left out: they measure the past.

    Raises:
        WrongTypeError: If a record cannot be serialized.
        InvalidArgumentError: If an element exceeds what a frame may have.

    Example:
        >>> from aiomailbox.records import LONG_SERIALIZER, ListRun
        >>> codec = ElementCodec(LONG_SERIALIZER)
        >>> data = encode_in_flight(codec, [ListRun([1, 2])])
        >>> list(decode_in_flight(codec, [data[:5], data[5:]]))
        [ListRun([1, 2], None)]
    """
    output = bytearray()
    for element in elements:
        if not isinstance(element, LatencyMarker):
            start = begin_frame(output)
            codec.write(element, output)
            end_frame(output, start)
    return bytes(output)


def decode_in_flight(codec: ElementCodec, data: Iterable[bytes]) -> Iterator[Element]:
    """Return the elements of a channel's data, which may be cut anywhere.

    Raises:
        CorruptStreamError: If it is not what was kept, or ends within an element.
    """
    deserializer = RecordDeserializer()
    for piece in data:
        for record in deserializer.records(piece):
            yield cast("Element", codec.decode(record))
    if deserializer.has_unfinished_record:
        deserializer.clear()
        raise CorruptStreamError("the data in flight of a channel ends in an element")
