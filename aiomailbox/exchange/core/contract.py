"""The contents of a channel inside a loop, and the contract between its ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, Protocol, cast

from aiomailbox.availability import Availability
from aiomailbox.errors import BufferRecycledError, CorruptStreamError
from aiomailbox.ids import PartitionId
from aiomailbox.memory.buffer import DataType, MemorySegment, ReadOnlySlice
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records import Control, Element
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import (
    LatencyMarker,
    RuntimeEvent,
    StopMode,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun, Run
from aiomailbox.records.spanning import RecordDeserializer, begin_frame, end_frame

# What crosses a channel inside one loop: a few runs at a time, or one event.
#
# Theory of operation: records do not cross channels, buffers do. A buffer of data holds
# one permit of its producer's pool from the moment it is opened until its consumer
# it recycles it: that is what bounds a channel. The producer appends until the buffer is
# sealed; the consumer may seal it earlier by taking it, and gets the very lists.


# A full run of rows of average size fills one buffer.
BUFFER_SIZE_BYTES: Final = RUN_LENGTH_MAX * ListRun.RECORD_BYTES_ESTIMATE

# A watermark and its place in a list; only the bound in bytes depends on it.
CONTROL_BYTES_ESTIMATE: Final = 64

# Below this, copying two runs into one is cheaper than processing two.
_MERGE_LENGTH_MAX: Final = 256

CONTROL: Final = (Watermark, WatermarkStatus, LatencyMarker)


class ObjectBuffer:
    """Runs and control elements in order, or one event.

    Made by a `ResultPartition`; `for_event` and `of_elements` make forms without a
    permit.

    Attributes:
        elements: Runs and control elements, in order; empty in an event's buffer.
            Not changed once the buffer was taken.
        event: The event, or None in a buffer of data.
        is_sealed: No records are appended any more; one control element may be, until
            the buffer is taken.
        record_count: Records in all runs together.
        size_bytes: Estimate of the memory that the elements keep alive.

    Invariants:
        A permit is returned exactly once, by `recycle`.

    Concept:
        Flink, ``NetworkBuffer``, ``BufferBuilder`` and ``BufferConsumer`` in one: in
        one loop they need not be distinguished.

    Example:
        >>> from aiomailbox.records import EndOfPartition
        >>> with ObjectBuffer.for_event(EndOfPartition()) as buffer:
        ...     buffer.event
        EndOfPartition()
        >>> buffer.is_recycled
        True
    """

    __slots__ = (
        "_channel",
        "_owns_last_run",
        "_pool",
        "_segment",
        "elements",
        "event",
        "is_recycled",
        "is_sealed",
        "record_count",
        "size_bytes",
    )

    def __init__(
        self,
        pool: LocalBufferPool | None,
        segment: MemorySegment | None,
        channel: int | None,
    ) -> None:
        self.elements: list[Element] = []
        self.event: RuntimeEvent | None = None
        self.is_sealed: bool = False
        self.is_recycled: bool = False
        self.record_count: int = 0
        self.size_bytes: int = 0
        self._pool = pool
        self._segment = segment
        self._channel = channel
        # The last element's lists are this buffer's own, so they may be extended.
        self._owns_last_run = False

    @classmethod
    def of_elements(cls, elements: Iterable[Element]) -> ObjectBuffer:
        """Return a sealed buffer of data that holds no permit: for decoded elements."""
        buffer = cls(None, None, None)
        for element in elements:
            if isinstance(element, CONTROL):
                buffer.append_control(element)
            else:
                buffer.append_run(element, len(element), element.size_bytes())
        buffer.is_sealed = True
        return buffer

    @classmethod
    def for_event(cls, event: RuntimeEvent) -> ObjectBuffer:
        """Return a sealed buffer that carries an event and holds no permit."""
        buffer = cls(None, None, None)
        buffer.event = event
        buffer.is_sealed = True
        buffer.size_bytes = CONTROL_BYTES_ESTIMATE
        return buffer

    def __repr__(self) -> str:
        if self.event is not None:
            return f"ObjectBuffer({self.event!r})"
        state = "sealed" if self.is_sealed else "unfinished"
        return (
            f"<ObjectBuffer {state}: {self.record_count} records, "
            f"{len(self.elements)} elements>"
        )

    @property
    def has_content(self) -> bool:
        """Whether it carries anything."""
        return bool(self.elements) or self.event is not None

    @property
    def ends_in_run(self) -> bool:
        """Whether records are the last that it holds."""
        elements = self.elements
        return bool(elements) and not isinstance(elements[-1], CONTROL)

    def append_run(self, run: Run, record_count: int, size_bytes: int) -> None:
        """Append a run; runs that are short become one.

        Args:
            run: The run; it is not changed.
            record_count: Its length.
            size_bytes: Its estimated size.
        """
        elements = self.elements
        self.record_count += record_count
        self.size_bytes += size_bytes
        # Only short ones: copying a long run costs more than one call more downstream.
        if elements and record_count <= _MERGE_LENGTH_MAX and self._merge(run):
            return
        elements.append(run)
        self._owns_last_run = False

    def append_control(self, element: Control) -> None:
        """Append a watermark, a status or a latency marker."""
        self.elements.append(element)
        self.size_bytes += CONTROL_BYTES_ESTIMATE

    def seal(self) -> None:
        """Allow no more appending. Idempotent."""
        self.is_sealed = True

    def recycle(self) -> None:
        """Return the permit; a waiter for one goes on.

        Raises:
            BufferRecycledError: If it was returned before.
        """
        if self.is_recycled:
            raise BufferRecycledError(
                f"{self!r} was recycled twice; recycle where it was consumed, once"
            )
        self.is_recycled = True
        pool, segment = self._pool, self._segment
        # An event and decoded elements hold no permit.
        if pool is not None and segment is not None:
            self._pool = self._segment = None
            pool.recycle(segment, self._channel)

    def __enter__(self) -> ObjectBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.recycle()

    def _merge(self, run: Run) -> bool:
        """Extend the last run if both are lists with (or both without) times."""
        last = self.elements[-1]
        if type(run) is not ListRun or type(last) is not ListRun:
            return False
        if (run.timestamps is None) is not (last.timestamps is None):
            return False
        # The first merge copies, once: until then the lists belong to the operator that
        # emitted them, or to several channels of a broadcast.
        if not self._owns_last_run:
            if len(last.values) > _MERGE_LENGTH_MAX:
                return False
            last = self._own(last)
        last.values.extend(run.values)
        if run.timestamps is not None and last.timestamps is not None:
            last.timestamps.extend(run.timestamps)
        return True

    def _own(self, last: ListRun) -> ListRun:
        timestamps = last.timestamps
        own = ListRun(
            last.values.copy(), None if timestamps is None else timestamps.copy()
        )
        self.elements[-1] = own
        self._owns_last_run = True
        return own


# Sequence numbers are unsigned 32-bit integers, here as on the wire.
SEQUENCE_MODULUS: Final = 2**32


class PolledBuffer(NamedTuple):
    """The result of a poll.

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
    """The result of a poll of bytes.

    Attributes:
        buffer: The bytes; their consumer recycles them.
        backlog: Data buffers that could be taken after this one.
        next_data_type: The type of the next buffer, ``NONE`` if nothing is ready.
        sequence_number: Number of this buffer on its channel, modulo 2**32.

    Concept:
        Flink, ``ResultSubpartition.BufferAndBacklog``.
    """

    buffer: ReadOnlySlice
    backlog: int
    next_data_type: DataType
    sequence_number: int


class ChannelStatistics(NamedTuple):
    """The queue of a channel now, and the totals that were taken from it so far.

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
        exclusive: Buffers of this channel alone, free or not, until it is released.
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

    def on_priority_event(self, sequence_number: int) -> None:
        """Be notified that the next poll, of that number, gives a priority event."""


# What the two kinds of readers may do with a subpartition, without its stack.
#
# Theory of operation: channels, the registry and connections use a reader's end; which
# buffers it reads, and from what kind of partition, is nothing they import.


class _View(Protocol):
    @property
    def is_released(self) -> bool:
        """Whether either side has released it."""

    @property
    def failure(self) -> BaseException | None:
        """Why the producer released it, if it failed."""

    @property
    def backlog(self) -> int:
        """Data buffers that can be taken."""

    def is_available(self, *, has_credit: bool = True) -> bool:
        """Say whether something can be taken; without credit only an event can."""

    def resume_consumption(self) -> None:
        """Lift the block of an event; raises IllegalStateError if nothing blocks.

        The caller looks for data again: the listener is notified as well.
        """

    def acknowledge_all_data_processed(self) -> None:
        """Be notified that the reader has processed all records; repeats are ignored."""

    def release(self) -> None:
        """Recycle what is queued, and drop what is still added. Idempotent."""


class ObjectView(_View, Protocol):
    """The end of a subpartition that a consumer on this loop reads."""

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event."""

    def poll(self) -> PolledBuffer | None:
        """Take the next buffer, or None; the caller recycles it."""

    def tell_again(self) -> None:
        """Tell the listener if something can be taken now."""

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot for metrics; counting what is queued takes a walk."""


class BytesView(_View, Protocol):
    """The end of a subpartition that a connection reads, at the producer."""

    def poll(self) -> PolledBytes | None:
        """Take the next buffer, or None; the caller recycles it."""

    def set_buffer_bytes(self, size_bytes: int) -> None:
        """Be notified of the reader's wish for the size of buffers."""


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

    @property
    def all_data_processed(self) -> Availability:
        """Turns true when each consumer has acknowledged the end of data."""

    @property
    def subpartition_count(self) -> int:
        """Number of consumers."""

    def statistics(self) -> list[ChannelStatistics]:
        """Return a snapshot per channel, in order."""

    def emit_run(self, run: Run, channel: int) -> bool:
        """Queue records for one consumer; says whether something awaits a flush."""

    def broadcast_run(self, run: Run) -> bool:
        """Queue records for every consumer; returns as `emit_run`."""

    def emit_control(self, element: Control, channel: int) -> bool:
        """Queue a control element for one consumer; returns as `emit_run`."""

    def broadcast_control(self, element: Control) -> bool:
        """Queue a control element for every consumer; returns as `emit_run`."""

    def broadcast_event(self, event: RuntimeEvent) -> None:
        """Queue an event for every consumer, in a buffer of its own."""

    def flush(self, channel: int) -> None:
        """Let one consumer take what is queued."""

    def flush_all(self) -> None:
        """Let every consumer take what is queued."""

    def notify_end_of_data(self, mode: StopMode) -> None:
        """Tell every consumer that no more records follow. Idempotent."""

    def finish(self) -> None:
        """Tell every consumer that nothing at all follows, and close. Idempotent."""

    async def settle(self) -> None:
        """Suspend until what was emitted outlives its task, if that is its nature."""

    def create_view(
        self, subpartition_index: int, listener: DataListener
    ) -> ObjectView:
        """Return the one view of a channel for a consumer on this loop.

        Raises:
            InvalidArgumentError: If there is no such channel, or its consumer is remote.
            IllegalStateError: If it has a view already, or was released.
        """

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

    def on_consumed(self, callback: Callable[[], None]) -> None:
        """Call back once: all have released it, or everything was released."""

    def close(self) -> None:
        """End the producer's part; queued buffers stay. Idempotent."""

    def release(self, failure: BaseException | None = None) -> None:
        """Recycle everything that is queued, and end what reads it. Idempotent."""


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

    def expect_output_data(self, checkpoint_id: int, subpartition_index: int) -> None:
        """Wait: a queued barrier may still time out and overtake data."""

    def complete_output_data(
        self, checkpoint_id: int, subpartition_index: int, data: list[bytes]
    ) -> None:
        """Keep what the expected barrier has overtaken: nothing if it was in time."""

    def fail_output_data(
        self, checkpoint_id: int, subpartition_index: int, error: BaseException
    ) -> None:
        """Stop waiting: the barrier will neither be taken nor overtake."""


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
