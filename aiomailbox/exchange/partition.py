"""A task's output towards one edge of the job graph: one subpartition per consumer.

Theory of operation: a partition is its subpartitions, each of objects for a consumer on
this loop or of bytes for one elsewhere, and the pool that bounds them together. It is
there until its producer and all consumers have released it; the last one to leave drops
it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NoReturn

from aiomailbox.availability import Availability
from aiomailbox.errors import IllegalStateError, InvalidArgumentError
from aiomailbox.exchange.core.contract import (
    BUFFER_SIZE_BYTES,
    ChannelStateWriter,
    ChannelStatistics,
    DataListener,
    ObjectBuffer,
    PolledBuffer,
    PolledBytes,
    encode_in_flight,
)
from aiomailbox.exchange.core.subpartition import (
    PolledT,
    Producer,
    ResultSubpartition,
    SubpartitionView,
)
from aiomailbox.exchange.frames import (
    FRAME_BYTES_WISHED,
    BytesSubpartition,
    Framed,
    FrameEncoder,
    FrameWriter,
)
from aiomailbox.ids import PartitionId
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records import Control
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import EndOfData, RuntimeEvent, StopMode
from aiomailbox.records.run import RUN_LENGTH_MAX, Run

# A channel to a consumer on the producer's loop: buffers of objects, handed over.
#
# Theory of operation: short runs and control elements go into the unfinished buffer until
# it is full; long runs are split into buffers of their own. Filling a buffer up seals it,
# and sealing tells the consumer. One control element may still follow the records of a
# full buffer, until the consumer takes it. An event seals first and rides in a buffer of
# its own. The consumer is notified when "there is something to take" turns from false to
# true; it may take the unfinished buffer, and seals it by that.


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


# The output as a whole.


# A run is emitted as a whole: in small buffers it keeps the next one waiting longer.
SMALL_BUFFERS_MAX = 64


class ResultPartition:
    """The subpartitions of one output, and the pool that bounds them together.

    Everything is synchronous. Emitting always succeeds up to the pool's ceiling;
    between two buffers of input the task looks at `availability`.

    Args:
        partition_id: Whose output, and towards which edge.
        pool: Where buffers get their permits and segments, at least one more than there
            are remote channels; the partition owns it and destroys it.
        subpartition_count: Number of consumers, at least 1.
        buffer_size_bytes: Estimated size at which a buffer of objects is sealed.
        remote_channels: Which channels have consumers on other loops.
        codec: How the elements of those are encoded.
        frame_bytes_wished: How large an encoded run should be.
        small_buffers_max: How many segments beyond the pool may be taken rather than
            make buffers of bytes larger than wished.

    Attributes:
        partition_id: As given.
        subpartitions: Shape ``(subpartition_count,)``.
        availability: True while another buffer fits: the pool's own latch.
        all_data_processed: Turns true when each consumer has acknowledged the end of
            data.

    Raises:
        InvalidArgumentError: If there is no subpartition, a remote channel is not there
            or has no codec, or the pool does not fit.

    Concept:
        Flink, ``PipelinedResultPartition``.

    Example:
        >>> from aiomailbox.ids import PartitionId, TaskId, VertexId
        >>> from aiomailbox.memory import NetworkBufferPool
        >>> from aiomailbox.records import LONG_SERIALIZER, ListRun
        >>> partition = ResultPartition(
        ...     PartitionId(TaskId(VertexId(0), 0, 0), 0),
        ...     NetworkBufferPool(8).create_local_pool(3, subpartitions=2),
        ...     2,
        ...     remote_channels=[1],
        ...     codec=ElementCodec(LONG_SERIALIZER),
        ... )
        >>> partition.emit_run(ListRun([7]), 0), partition.emit_run(ListRun([8]), 1)
        (True, True)
        >>> [channel.queued_bytes for channel in partition.statistics()]
        [128, 18]
    """

    def __init__(
        self,
        partition_id: PartitionId,
        pool: LocalBufferPool,
        subpartition_count: int,
        *,
        buffer_size_bytes: int = BUFFER_SIZE_BYTES,
        remote_channels: Collection[int] = (),
        codec: ElementCodec | None = None,
        frame_bytes_wished: int = FRAME_BYTES_WISHED,
        small_buffers_max: int = SMALL_BUFFERS_MAX,
    ) -> None:
        remote = set(remote_channels)
        _check(subpartition_count, buffer_size_bytes, remote)
        _check_pool(pool, subpartition_count, len(remote))
        self.partition_id: PartitionId = partition_id
        self.availability: Availability = pool.availability
        self.all_data_processed: Availability = Availability()
        self._producer = producer = Producer(partition_id, pool)
        self._local: list[PipelinedSubpartition] = []
        self._remote: FrameWriter | None = None
        self.subpartitions: list[PipelinedSubpartition | BytesSubpartition] = []
        if remote:
            if codec is None:
                raise InvalidArgumentError(
                    "codec", "without one, nothing can go to remote channels"
                )
            encoder = FrameEncoder(codec, frame_bytes_wished=frame_bytes_wished)
            self._remote = FrameWriter(
                producer, encoder, small_buffers_max=small_buffers_max
            )
        for index in range(subpartition_count):
            if self._remote is not None and index in remote:
                self.subpartitions.append(BytesSubpartition(index, self._remote))
            else:
                local = PipelinedSubpartition(
                    index, producer, buffer_size_bytes=buffer_size_bytes
                )
                self._local.append(local)
                self.subpartitions.append(local)
        self._end_of_data = False
        self._is_released = False
        # The producer is one of them; the last one to leave drops the partition.
        self._users = subpartition_count + 1
        self._acknowledged: set[int] = set()
        self._on_consumed: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<ResultPartition {self.partition_id}: {self.subpartitions!r}>"

    @property
    def is_released(self) -> bool:
        """Whether nothing is kept for consumers any more."""
        return self._is_released or not self._users

    @property
    def subpartition_count(self) -> int:
        """Number of consumers."""
        return len(self.subpartitions)

    @property
    def has_unflushed_data(self) -> bool:
        """Whether anything is queued that its consumer cannot take yet."""
        return any(each.has_unflushed_data for each in self.subpartitions)

    def statistics(self) -> list[ChannelStatistics]:
        """Return a snapshot per channel, in order.

        Of remote channels, bytes are those of the encoded records.
        """
        return [each.statistics() for each in self.subpartitions]

    def emit_run(self, run: Run, channel: int) -> bool:
        """Queue records for one consumer; an empty run is ignored.

        Records for a consumer that has released the partition are dropped, and not even
        encoded.

        Returns:
            Whether something is left in an unfinished buffer, which only a flush, or
            more records, let the consumer take.

        Raises:
            IllegalStateError: If the partition is closed.
            WrongTypeError: If a record cannot be serialized; nothing of its frame was
                emitted.
            OverdraftCeilingError: If more buffers would be out than the pool's
                ceiling allows; the pieces before that are queued.

        Cost:
            Per run, not per record. On one loop a run of at most ``length_max`` records
            and average size is not copied; columns that stay together are more than
            rows.
        """
        return self.subpartitions[channel].emit_run(run)

    def broadcast_run(self, run: Run) -> bool:
        """Queue records for every consumer: shared, and encoded once; as `emit_run`."""
        unfinished = False
        for each in self._local:
            unfinished = each.emit_run(run) or unfinished
        if self._remote is not None:
            self._remote.broadcast_run(run)
            unfinished = unfinished or self.has_unflushed_data
        return unfinished

    def emit_control(self, element: Control, channel: int) -> bool:
        """Queue a control element for one consumer, in order with the records.

        Returns:
            As `emit_run`.
        """
        return self.subpartitions[channel].emit_control(element)

    def broadcast_control(self, element: Control) -> bool:
        """Queue a control element for every consumer, encoded once; as `emit_run`."""
        unfinished = False
        for each in self._local:
            unfinished = each.emit_control(element) or unfinished
        if self._remote is not None:
            self._remote.broadcast_control(element)
            unfinished = unfinished or self.has_unflushed_data
        return unfinished

    def emit_record(self, framed: Framed, channel: int) -> None:
        """Append a record's frame to one remote channel; see `FrameWriter`."""
        found = self.subpartitions[channel]
        assert self._remote is not None, "only remote channels take frames"
        assert isinstance(found, BytesSubpartition), "only they take frames"
        self._remote.write(framed, found.own)

    def broadcast_record(self, framed: Framed) -> None:
        """Append a record's frame to all remote channels; see `FrameWriter`."""
        assert self._remote is not None, "only remote channels take frames"
        self._remote.write(framed, self._remote.shared)

    def broadcast_event(self, event: RuntimeEvent) -> None:
        """Queue an event for every consumer, in a buffer of its own.

        Raises:
            IllegalStateError: If the partition is closed and has remote channels.
            WrongTypeError: If it overtakes a record that cannot be kept; nothing was
                queued then.
        """
        # All are encoded before one is queued: a record that cannot be kept must not
        # leave the barrier in some of the channels.
        overtakes = event.is_priority
        overtaken = [each.in_flight() if overtakes else () for each in self._local]
        if self._remote is not None:
            channels = self._remote.channels
            self._remote.broadcast_event(
                event, [each.in_flight() if overtakes else () for each in channels]
            )
        for each, data in zip(self._local, overtaken, strict=True):
            each.add_event(event, overtaken=data)

    def keep_in_flight(self, writer: ChannelStateWriter, codec: ElementCodec) -> None:
        """Give what barriers overtake from now on to a writer, encoded."""
        for each in self.subpartitions:
            each.keep_in_flight(writer, codec)

    def time_out_barrier(self, checkpoint_id: int) -> None:
        """Let the barrier of a checkpoint overtake wherever it is still queued.

        Raises:
            WrongTypeError: If it would overtake a record that cannot be kept; it stays
                where it is then, and everywhere else.
        """
        # Encoded everywhere before the barrier moves anywhere.
        found = [
            (each, data)
            for each in self.subpartitions
            if (data := each.before_barrier(checkpoint_id)) is not None
        ]
        for each, data in found:
            each.time_out_barrier(checkpoint_id, data)

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """Let no channel state wait for the barrier of a checkpoint any more."""
        for each in self.subpartitions:
            each.abort_checkpoint(checkpoint_id, cause)

    async def writable(self) -> None:
        """Suspend until another buffer fits; returns at once if one does.

        Flushes before it suspends: a permit that an unfinished buffer holds would
        never come back.
        """
        while not self.availability.available:
            self.flush_all()
            await self.availability.waiter()

    def flush(self, channel: int) -> None:
        """Let one consumer take what is queued, the unfinished buffer included."""
        self.subpartitions[channel].flush()

    def flush_all(self) -> None:
        """Let every consumer take what is queued."""
        for subpartition in self.subpartitions:
            subpartition.flush()

    def notify_end_of_data(self, mode: StopMode) -> None:
        """Tell every consumer that no more records follow. Idempotent."""
        if not self._end_of_data:
            self._end_of_data = True
            self.broadcast_event(EndOfData(mode))

    def acknowledge_all_data_processed(self, channel: int) -> None:
        """Be notified that a consumer has processed all records; repeats are ignored."""
        self._acknowledged.add(channel)
        if len(self._acknowledged) == len(self.subpartitions):
            self.all_data_processed.set_available()

    def finish(self) -> None:
        """Tell every consumer that nothing at all follows, and close. Idempotent."""
        if self._remote is not None:
            self._remote.finish_all()
        for each in self.subpartitions:
            each.finish()
        self.close()

    async def settle(self) -> None:
        """Return at once: consumers take what is queued while they run."""
        return

    def create_view(
        self, subpartition_index: int, listener: DataListener
    ) -> SubpartitionView[PolledBuffer]:
        """Return the one view of a channel for a consumer on this loop."""
        found = self._channel(subpartition_index)
        if not isinstance(found, PipelinedSubpartition):
            self._refuse(subpartition_index, "stay on this loop")
        return self._view(found, listener)

    def create_bytes_view(
        self,
        subpartition_index: int,
        listener: DataListener,
        *,
        receiver_exclusive_buffers: int,
    ) -> SubpartitionView[PolledBytes]:
        """Return the one view of a channel for a remote consumer."""
        found = self._channel(subpartition_index)
        if not isinstance(found, BytesSubpartition):
            self._refuse(subpartition_index, "have remote consumers")
        view = self._view(found, listener)
        found.receiver_exclusive_buffers = receiver_exclusive_buffers
        return view

    def on_consumed(self, callback: Callable[[], None]) -> None:
        """Call back once: all have released it, or everything was released."""
        self._on_consumed = callback

    def drop_user(self) -> None:
        """Be notified that one consumer, or the producer, has released it.

        Raises:
            IllegalStateError: If that happens more often than there are users.
        """
        self._users -= 1
        if self._users < 0:
            raise IllegalStateError(
                f"partition {self.partition_id} was released more often than it was used"
            )
        if not self._users:
            self._leave()

    def close(self) -> None:
        """End the producer's part; queued buffers stay for the consumers. Idempotent.

        The pool lends nothing more; lent buffers return as they are recycled.
        """
        producer = self._producer
        if producer.is_closed:
            return
        producer.is_closed = True
        # Before the pool goes: a buffer that is written to holds a segment.
        if self._remote is not None:
            self._remote.finish_all()
        producer.pool.lazy_destroy()
        self.drop_user()

    def release(self, failure: BaseException | None = None) -> None:
        """Release everything that is queued, and end what reads it. Idempotent.

        Args:
            failure: Why, when the producer failed: consumers chain it to their error.
        """
        if not self.is_released:
            # First: releasing subpartitions recycles, which may wake a task that emits.
            self._is_released = True
            for subpartition in self.subpartitions:
                subpartition.release(failure)
            self.close()
        self._leave()

    def _leave(self) -> None:
        callback, self._on_consumed = self._on_consumed, None
        if callback is not None:
            callback()

    def _channel(self, index: int) -> PipelinedSubpartition | BytesSubpartition | None:
        known = 0 <= index < len(self.subpartitions)
        return self.subpartitions[index] if known else None

    def _view(
        self, subpartition: ResultSubpartition[Any, PolledT], listener: DataListener
    ) -> SubpartitionView[PolledT]:
        return SubpartitionView(
            subpartition,
            listener,
            on_acknowledged=partial(
                self.acknowledge_all_data_processed, subpartition.index
            ),
            on_released=self.drop_user,
        )

    def _refuse(self, channel: int, what: str) -> NoReturn:
        remote = [] if self._remote is None else self._remote.channels
        known = self._local if what == "stay on this loop" else remote
        raise InvalidArgumentError(
            "subpartition_index",
            f"{channel} is not among the channels {[each.index for each in known]} of "
            f"partition {self.partition_id} that {what}",
        )


def _check(count: int, buffer_size_bytes: int, remote: set[int]) -> None:
    if count < 1:
        raise InvalidArgumentError("subpartition_count", f"{count} is less than 1")
    if buffer_size_bytes < 1:
        raise InvalidArgumentError(
            "buffer_size_bytes", f"{buffer_size_bytes} is less than 1"
        )
    if not remote <= set(range(count)):
        raise InvalidArgumentError(
            "remote_channels",
            f"{sorted(remote)} are not channels of a partition of {count}",
        )


def _check_pool(pool: LocalBufferPool, count: int, remote_count: int) -> None:
    counted = pool.options.subpartitions
    if counted and counted != count:
        raise InvalidArgumentError(
            "pool",
            f"it counts {counted} subpartitions, the partition has {count}",
            f"Create it with subpartitions={count}.",
        )
    if remote_count and pool.options.required_segments <= remote_count:
        # Each unfinished buffer keeps a segment even when all in it was read; were
        # there no other one, nothing would ever be available again.
        raise InvalidArgumentError(
            "pool",
            f"{pool.options.required_segments} required segments do not suffice "
            f"for {remote_count} subpartitions",
            f"Create it with required_segments={remote_count + 1} or more.",
        )
