"""What the two ends of a subpartition agree on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, Protocol, cast

from aiomailbox.availability import Availability
from aiomailbox.errors import CorruptStreamError, IllegalStateError
from aiomailbox.exchange.core.buffer import ObjectBuffer
from aiomailbox.ids import PartitionId
from aiomailbox.memory.buffer import DataType, ReadOnlySlice
from aiomailbox.records import Element
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import LatencyMarker
from aiomailbox.records.spanning import RecordDeserializer, begin_frame, end_frame

# Sequence numbers are unsigned 32-bit integers, here as on the wire.
SEQUENCE_MODULUS: Final = 2**32


class PolledBuffer(NamedTuple):
    """What a poll took.

    Attributes:
        buffer: The buffer; its consumer recycles it.
        backlog: Data buffers that could be taken after this one.
        more_available: Whether another one can be taken now.
        next_is_priority: Whether that one overtook others.
        sequence_number: Number of this buffer on its channel, modulo 2**32.

    Concept:
        Flink, ``ResultSubpartition.BufferAndBacklog``.
    """

    buffer: ObjectBuffer
    backlog: int
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


# What still uses a partition: its producer, and each of its consumers.


class PartitionUsers:
    """Counts the releases of a partition, and the consumers that have processed it all.

    Args:
        partition_id: Used in messages.
        consumers: How many there are.
        producers: How many parts the partition is written in.

    Attributes:
        all_data_processed: Turns true when each consumer has acknowledged the end of
            data.

    Concept:
        Flink, ``PipelinedResultPartition.numberOfUsers``.

    Example:
        >>> from aiomailbox.ids import PartitionId, TaskId, VertexId
        >>> users = PartitionUsers(PartitionId(TaskId(VertexId(0), 0, 0), 0), 1)
        >>> users.on_consumed(lambda: print("all have released it"))
        >>> users.drop()
        >>> users.have_left
        False
        >>> users.drop()
        all have released it
    """

    __slots__ = (
        "_acknowledged",
        "_consumers",
        "_on_consumed",
        "_partition_id",
        "_users",
        "all_data_processed",
    )

    def __init__(
        self, partition_id: PartitionId, consumers: int, *, producers: int = 1
    ) -> None:
        self.all_data_processed: Availability = Availability()
        self._partition_id = partition_id
        self._consumers = consumers
        # The last one to leave drops the partition.
        self._users = consumers + producers
        self._acknowledged: set[int] = set()
        self._on_consumed: Callable[[], None] | None = None

    @property
    def have_left(self) -> bool:
        """Whether the partition is not used any more."""
        return not self._users

    def acknowledge(self, consumer: int) -> None:
        """Be notified that a consumer has processed all records; repeats are ignored."""
        self._acknowledged.add(consumer)
        if len(self._acknowledged) == self._consumers:
            self.all_data_processed.set_available()

    def drop(self) -> None:
        """Be notified that one consumer, or producer, has released the partition.

        Raises:
            IllegalStateError: If that happens more often than there are users.
        """
        self._users -= 1
        if self._users < 0:
            raise IllegalStateError(
                f"partition {self._partition_id} was released more often than it was used"
            )
        if not self._users:
            self.leave()

    def on_consumed(self, callback: Callable[[], None]) -> None:
        """Call back once: all have released it, or everything was released."""
        self._on_consumed = callback

    def leave(self) -> None:
        """Call back now, if that did not happen before."""
        callback, self._on_consumed = self._on_consumed, None
        if callback is not None:
            callback()


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


class _NoChannelState:
    """Keeps nothing: for jobs whose barriers never overtake."""

    def add_output_data(
        self, checkpoint_id: int, subpartition_index: int, data: list[bytes]
    ) -> None:
        pass

    def expect_output_data(self, checkpoint_id: int, subpartition_index: int) -> None:
        pass

    complete_output_data = add_output_data

    def fail_output_data(
        self, checkpoint_id: int, subpartition_index: int, error: BaseException
    ) -> None:
        pass


NO_CHANNEL_STATE: Final[ChannelStateWriter] = _NoChannelState()


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
            source = ByteReader(record)
            element = codec.read(source)
            source.expect_end("an element in flight")
            yield cast("Element", element)
    if deserializer.has_unfinished_record:
        deserializer.clear()
        raise CorruptStreamError("the data in flight of a channel ends in an element")
