"""A task's output towards one edge of the job graph: one subpartition per consumer.

Theory of operation: a partition is its subpartitions, each of objects for a consumer on
this loop or of bytes for one elsewhere, and the pool that bounds them together. It is
there until its producer and all consumers have released it; the last one to leave drops
it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NoReturn

from aiomailbox.availability import Availability
from aiomailbox.errors import IllegalStateError, InvalidArgumentError
from aiomailbox.exchange.core.contract import (
    BUFFER_SIZE_BYTES,
    ChannelStateWriter,
    ChannelStatistics,
    DataListener,
    PolledBuffer,
    PolledBytes,
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
from aiomailbox.exchange.objects import PipelinedSubpartition
from aiomailbox.ids import PartitionId
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records import Control
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import EndOfData, RuntimeEvent, StopMode
from aiomailbox.records.run import Run

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
