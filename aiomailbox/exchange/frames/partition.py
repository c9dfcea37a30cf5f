"""A task's output towards one edge, as bytes: records framed into pooled segments.

Theory of operation: each subpartition has a builder of its own while records go to one
of them, and all share one while records go to all. Changing between the two finishes
what was begun, so that the order on each channel is kept. A record that does not fit
goes on in the next buffer. Emitting never waits: what a pool does not lend, it lends as
overdraft, and before the next record the task looks at `availability`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NoReturn

from aiomailbox.errors import IllegalStateError, InvalidArgumentError
from aiomailbox.exchange.core.buffer import BUFFER_SIZE_BYTES
from aiomailbox.exchange.core.contract import (
    NO_CHANNEL_STATE,
    ChannelStateWriter,
    ChannelStatistics,
    DataListener,
    PartitionUsers,
)
from aiomailbox.exchange.core.pipelined_output import (
    PartitionOutput,
    PipelinedOutput,
    check_count,
)
from aiomailbox.exchange.frames.encoder import (
    FRAME_BYTES_WISHED,
    FrameEncoder,
    event_consumer,
)
from aiomailbox.exchange.frames.subpartition import (
    BytesSubpartition,
    BytesSubpartitionView,
)
from aiomailbox.exchange.objects.partition import ResultPartition
from aiomailbox.exchange.objects.subpartition import SubpartitionView
from aiomailbox.ids import PartitionId
from aiomailbox.memory.builder import BufferBuilder
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records import Control
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import RuntimeEvent, StopMode
from aiomailbox.records.run import Run

# Broadcast buffers are held by all channels; the quota of the first one counts them.
_BROADCAST_INDEX = 0


class BytesResultPartition(PipelinedOutput[BytesSubpartition]):
    """The subpartitions of one output, and the pool that bounds them together.

    Args:
        partition_id: Whose output, and towards which edge.
        pool: Where segments come from, at least one more than there are
            subpartitions; the partition owns it and destroys it.
        subpartition_count: Number of consumers, at least 1.
        channel_state: Is given the data that barriers overtake.
        receiver_exclusive_buffers: Of each consumer; see `BytesSubpartition`.
        channels: Which of the output's channels these are, where others are in
            another part of it that shares the pool; shape ``(subpartition_count,)``.
        small_buffers_max: How many segments beyond the pool may be taken rather than
            make buffers larger than wished.
        users: Counts the users of the whole output, where this is a part of it.

    Attributes:
        subpartitions: Shape ``(subpartition_count,)``.
        availability: True while another buffer fits: the pool's own latch.
        bytes_written: Bytes of records and their lengths, once per record.

    Raises:
        InvalidArgumentError: If the pool is too small, or there is no subpartition.

    Concept:
        Flink, ``PipelinedResultPartition`` and ``BufferWritingResultPartition``.

    Example:
        >>> from aiomailbox.ids import PartitionId, TaskId, VertexId
        >>> from aiomailbox.memory import NetworkBufferPool
        >>> from aiomailbox.records.spanning import frame_record
        >>> pool = NetworkBufferPool(8, segment_size_bytes=8).create_local_pool(2)
        >>> partition_id = PartitionId(TaskId(VertexId(0), 0, 0), 0)
        >>> partition = BytesResultPartition(partition_id, pool, 1)
        >>> partition.emit_record(frame_record(b"stream"), 0)
        >>> partition.subpartitions[0].poll().buffer.readable().hex()
        '0000000673747265'
    """

    __slots__ = (
        "_broadcast_builder",
        "_builders",
        "_is_finished",
        "_small_buffers_max",
        "bytes_written",
    )

    def __init__(
        self,
        partition_id: PartitionId,
        pool: LocalBufferPool,
        subpartition_count: int,
        *,
        channel_state: ChannelStateWriter = NO_CHANNEL_STATE,
        receiver_exclusive_buffers: int = 2,
        channels: Sequence[int] | None = None,
        small_buffers_max: int = 0,
        users: PartitionUsers | None = None,
    ) -> None:
        check_count(subpartition_count)
        if pool.options.required_segments <= subpartition_count:
            # Each unfinished buffer keeps a segment even when all in it was read; were
            # there no other one, nothing would ever be available again.
            raise InvalidArgumentError(
                "pool",
                f"{pool.options.required_segments} required segments do not suffice "
                f"for {subpartition_count} subpartitions",
                f"Create it with required_segments={subpartition_count + 1} or more.",
            )
        super().__init__(
            partition_id,
            pool,
            [
                BytesSubpartition(
                    index,
                    channel_state,
                    receiver_exclusive_buffers=receiver_exclusive_buffers,
                )
                for index in channels or range(subpartition_count)
            ],
            channels=channels,
            users=users,
        )
        self.bytes_written: int = 0
        self._builders: list[BufferBuilder | None] = [None] * subpartition_count
        self._broadcast_builder: BufferBuilder | None = None
        self._is_finished = False
        self._small_buffers_max = small_buffers_max

    @property
    def is_broadcasting(self) -> bool:
        """Whether the buffer that all share is the one that is written to."""
        return self._broadcast_builder is not None

    def emit_record(self, framed: bytes | bytearray | memoryview, channel: int) -> None:
        """Append a record to one subpartition.

        Args:
            framed: Its length and its content; borrowed for the call.
            channel: Index of the subpartition.

        Raises:
            IllegalStateError: If the partition is finished or released.
            OverdraftCeilingError: If one record needs more than may be lent.
        """
        size_bytes = len(framed)
        self.bytes_written += size_bytes
        builder = self._builders[channel]
        # The hot path: less than what fits, so it is neither full nor continued.
        if builder is not None and size_bytes < builder.writable_bytes:
            builder.append_and_commit(framed)
            return
        rest = memoryview(framed)
        if builder is None:
            builder = self._open_unicast(channel)
            # Queued while it is empty, so that its reader can take a part of it when it
            # is flushed.
            self._queue_unicast(builder, channel, 0, len(rest))
        rest = rest[self._append(builder, rest) :]
        while rest:
            self._finish_unicast(channel)
            builder = self._open_unicast(channel)
            written = self._append(builder, rest)
            # The other way round than above: written first, so that it is known where
            # the first whole record begins.
            self._queue_unicast(builder, channel, written, written)
            rest = rest[written:]
        if builder.is_full:
            self._finish_unicast(channel)

    def broadcast_record(self, framed: bytes | bytearray | memoryview) -> None:
        """Append a record to all subpartitions, through one shared buffer.

        Args and errors are those of `emit_record`.
        """
        size_bytes = len(framed)
        self.bytes_written += size_bytes
        builder = self._broadcast_builder
        if builder is not None and size_bytes < builder.writable_bytes:
            builder.append_and_commit(framed)
            return
        rest = memoryview(framed)
        if builder is None:
            builder = self._open_broadcast()
            self._queue_broadcast(builder, 0, len(rest))
        rest = rest[self._append(builder, rest) :]
        while rest:
            self._finish_broadcast()
            builder = self._open_broadcast()
            written = self._append(builder, rest)
            self._queue_broadcast(builder, written, written)
            rest = rest[written:]
        if builder.is_full:
            self._finish_broadcast()

    def broadcast_event(
        self, event: RuntimeEvent, *, has_priority: bool | None = None
    ) -> None:
        """Send an event to all subpartitions, behind what was emitted.

        Args:
            event: Rides in one buffer of its own, which all share.
            has_priority: Whether it overtakes; None for what the event says.

        Raises:
            IllegalStateError: If the partition is finished or released.
        """
        self._check_producing()
        self._stop_writing()
        overtakes = event.is_priority if has_priority is None else has_priority
        consumer = event_consumer(event, has_priority=overtakes)
        try:
            for subpartition in self.subpartitions:
                # A copy for each channel: they read at their own pace, and the last one
                # gives the memory back.
                subpartition.add(consumer.copy())
        finally:
            consumer.close()

    def keep_in_flight(self, writer: ChannelStateWriter) -> None:
        """Give what barriers overtake from now on to a writer."""
        for subpartition in self.subpartitions:
            subpartition.channel_state = writer

    def time_out_barrier(self, checkpoint_id: int) -> None:
        """Let the barrier of a checkpoint overtake wherever it is still queued."""
        for subpartition in self.subpartitions:
            subpartition.time_out_barrier(checkpoint_id)

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """Let no channel state wait for the barrier of a checkpoint any more."""
        for subpartition in self.subpartitions:
            subpartition.abort_checkpoint(checkpoint_id, cause)

    def finish(self) -> None:
        """Tell every consumer that nothing at all follows, and close. Idempotent."""
        if self._is_finished or self.is_released:
            return
        self._stop_writing()
        self._is_finished = True
        for subpartition in self.subpartitions:
            subpartition.finish()
        self.close()

    def create_view(
        self, subpartition_index: int, listener: DataListener
    ) -> BytesSubpartitionView:
        """Return the one view of a subpartition; the listener is notified from now on.

        Raises:
            InvalidArgumentError: If there is no such subpartition.
            IllegalStateError: If it has a view already, or was released.
        """
        return BytesSubpartitionView(
            self._subpartition(subpartition_index),
            listener,
            on_acknowledged=lambda: self.acknowledge_all_data_processed(
                subpartition_index
            ),
            on_released=self.drop_user,
        )

    def _stop_writing(self) -> None:
        self._finish_broadcast()
        self._finish_all_unicast()

    def _append(self, builder: BufferBuilder, record: memoryview) -> int:
        missing = len(record) - builder.writable_bytes
        if missing >= 0 and self._must_save_segments():
            # Rather ignore the wished size than need a segment that is not there; one
            # more byte, so that the buffer is not full at once.
            builder.trim(builder.capacity_bytes + missing + 1)
        return builder.append_and_commit(record)

    def _must_save_segments(self) -> bool:
        pool, most = self._pool, self._small_buffers_max
        return not pool.available and (not most or pool.outstanding - pool.size >= most)

    def _open_unicast(self, channel: int) -> BufferBuilder:
        self._check_producing()
        self._finish_broadcast()
        builder = self._builders[channel] = self._new_builder(channel)
        return builder

    def _open_broadcast(self) -> BufferBuilder:
        self._check_producing()
        self._finish_all_unicast()
        builder = self._broadcast_builder = self._new_builder(_BROADCAST_INDEX)
        return builder

    def _new_builder(self, channel: int) -> BufferBuilder:
        pool = self._pool
        quota = self._channels[channel] if pool.options.subpartitions else None
        segment = pool.request_elastic(quota)
        return BufferBuilder(segment, pool.recycler(quota))

    def _queue_unicast(
        self, builder: BufferBuilder, channel: int, partial: int, needed: int
    ) -> None:
        consumer = builder.create_consumer_from_beginning()
        wished = self.subpartitions[channel].add(consumer, partial)
        if wished is not None:
            # Debloating never makes it smaller than what has to go in.
            builder.trim(max(needed, wished))

    def _queue_broadcast(
        self, builder: BufferBuilder, partial: int, needed: int
    ) -> None:
        consumer = builder.create_consumer_from_beginning()
        try:
            answers = [
                subpartition.add(consumer.copy(), partial)
                for subpartition in self.subpartitions
            ]
        finally:
            consumer.close()
        wished = [size_bytes for size_bytes in answers if size_bytes is not None]
        if wished:
            builder.trim(max(needed, min(wished)))

    def _finish_unicast(self, channel: int) -> None:
        builder, self._builders[channel] = self._builders[channel], None
        if builder is not None:
            builder.finish()
            builder.close()

    def _finish_all_unicast(self) -> None:
        for channel in range(len(self._builders)):
            self._finish_unicast(channel)

    def _finish_broadcast(self) -> None:
        builder, self._broadcast_builder = self._broadcast_builder, None
        if builder is not None:
            builder.finish()
            builder.close()

    def _check_producing(self) -> None:
        if self._is_finished or self.is_released:
            state = "released" if self.is_released else "finished"
            raise IllegalStateError(
                f"partition {self.partition_id} is {state}: nothing can be emitted"
            )


# A task's output with consumers on this loop and remote ones.
#
# Theory of operation: a partition of objects serves the consumers on this loop, one of
# bytes all others, and both take from one pool, whose latch says for both whether
# another buffer fits; both count the users of the whole. What goes to remote consumers
# is encoded, a run at a time; the rest is handed over as it is. A channel's number is
# its place in the whole output.


# A run is emitted as a whole: in small buffers it keeps the next one waiting longer.
_SMALL_BUFFERS_MAX = 64


class MixedResultPartition(PartitionOutput):
    """The channels of one output, some of them to other loops.

    Args:
        partition_id: Whose output, and towards which edge.
        pool: Where permits and segments come from, at least one more than there are
            channels; the partition owns it and destroys it.
        subpartition_count: Number of consumers, at least 1.
        remote_channels: Which of them have remote consumers, at least one.
        codec: How their elements are encoded.
        buffer_size_bytes: Estimated size at which a buffer of objects is sealed.
        frame_bytes_wished: How large an encoded run should be.

    Attributes:
        availability: True while another buffer fits: the pool's own latch.

    Raises:
        InvalidArgumentError: If a channel is not there, none is remote, or the pool
            is too small.

    Concept:
        Flink, ``PipelinedResultPartition``, which always serializes.

    Example:
        >>> from aiomailbox.ids import PartitionId, TaskId, VertexId
        >>> from aiomailbox.memory import NetworkBufferPool
        >>> from aiomailbox.records import LONG_SERIALIZER, ListRun
        >>> partition = MixedResultPartition(
        ...     PartitionId(TaskId(VertexId(0), 0, 0), 0),
        ...     NetworkBufferPool(8).create_local_pool(3),
        ...     2,
        ...     remote_channels=[1],
        ...     codec=ElementCodec(LONG_SERIALIZER),
        ... )
        >>> partition.emit_run(ListRun([7]), 0), partition.emit_run(ListRun([8]), 1)
        (True, True)
        >>> [channel.queued_bytes for channel in partition.statistics()]
        [128, 18]
    """

    __slots__ = (
        "_encoder",
        "_frame_bytes_max",
        "_local",
        "_local_index",
        "_records_emitted",
        "_remote",
        "_remote_index",
    )

    def __init__(
        self,
        partition_id: PartitionId,
        pool: LocalBufferPool,
        subpartition_count: int,
        *,
        remote_channels: Collection[int],
        codec: ElementCodec,
        buffer_size_bytes: int = BUFFER_SIZE_BYTES,
        frame_bytes_wished: int = FRAME_BYTES_WISHED,
    ) -> None:
        remote = sorted(set(remote_channels))
        if not remote or not 0 <= remote[0] <= remote[-1] < subpartition_count:
            raise InvalidArgumentError(
                "remote_channels",
                f"{remote} are not channels of a partition of {subpartition_count}",
                "Without any, create a ResultPartition.",
            )
        local = [each for each in range(subpartition_count) if each not in set(remote)]
        # Both parts close the same partition, each once.
        users = PartitionUsers(
            partition_id, subpartition_count, producers=2 if local else 1
        )
        super().__init__(partition_id, pool, users)
        self._frame_bytes_max = frame_bytes_wished
        self._encoder = FrameEncoder(codec, frame_bytes_wished=frame_bytes_wished)
        self._local_index = {channel: index for index, channel in enumerate(local)}
        self._remote_index = {channel: index for index, channel in enumerate(remote)}
        self._records_emitted = [0] * len(remote)
        self._remote = BytesResultPartition(
            partition_id,
            pool,
            len(remote),
            channels=remote,
            small_buffers_max=_SMALL_BUFFERS_MAX,
            users=users,
        )
        self._local: ResultPartition | None = None
        if local:
            self._local = ResultPartition(
                partition_id,
                pool,
                len(local),
                buffer_size_bytes=buffer_size_bytes,
                channels=local,
                users=users,
            )

    def __repr__(self) -> str:
        return (
            f"<MixedResultPartition {self.partition_id}: {self._local!r}, "
            f"{self._remote!r}>"
        )

    @property
    def subpartition_count(self) -> int:
        """Number of consumers."""
        return len(self._local_index) + len(self._remote_index)

    @property
    def remote_channels(self) -> list[int]:
        """Which channels have remote consumers."""
        return list(self._remote_index)

    @property
    def queued_buffers(self) -> int:
        """Buffers queued for all consumers, events included."""
        return sum(each.queued_buffers for each in self.statistics())

    @property
    def has_unflushed_data(self) -> bool:
        """Whether anything is queued that its consumer cannot take yet."""
        return any(part.has_unflushed_data for part in self._parts())

    def statistics(self) -> list[ChannelStatistics]:
        """Return a snapshot per channel, in order.

        Of remote channels, records count once they were emitted, and
        bytes are those of the encoded records.
        """
        local = [] if self._local is None else self._local.statistics()
        by_channel = dict(zip(self._local_index, local, strict=True))
        for channel, index in self._remote_index.items():
            subpartition = self._remote.subpartitions[index]
            by_channel[channel] = ChannelStatistics(
                queued_buffers=subpartition.queued_buffers,
                queued_bytes=subpartition.queued_bytes,
                buffers_total=subpartition.buffers_total,
                records_total=self._records_emitted[index],
                bytes_total=subpartition.bytes_total,
            )
        return [by_channel[channel] for channel in range(self.subpartition_count)]

    def emit_run(self, run: Run, channel: int) -> bool:
        """Queue records for one consumer; an empty run is ignored.

        What goes to a consumer that has released it is dropped, and not even encoded.

        Returns:
            Whether something is queued that only a flush, or more records, let the
            consumer take.

        Raises:
            WrongTypeError: If a record cannot be serialized; nothing of its frame was
                emitted.
            OverdraftCeilingError: If the pool's ceiling is reached.
        """
        index = self._remote_index.get(channel)
        if index is None:
            local, index = self._local_part(channel)
            return local.emit_run(run, index)
        # Also not encoded: a consumer that has gone would cost as much as one that
        # reads.
        subpartition = self._remote.subpartitions[index]
        if subpartition.is_released:
            return False
        # A buffer is never smaller than what it holds whole.
        wished = min(self._frame_bytes_max, subpartition.buffer_bytes)
        self._encoder.frame_bytes_wished = wished
        for framed, count in self._encoder.frames(run):
            self._remote.emit_record(framed, index)
            self._records_emitted[index] += count
        return subpartition.has_unflushed_data

    def broadcast_run(self, run: Run) -> bool:
        """Queue records for every consumer, encoded once; returns as `emit_run`."""
        unfinished = self._local is not None and self._local.broadcast_run(run)
        # One buffer for all, so the smallest wish counts.
        least = min(each.buffer_bytes for each in self._remote.subpartitions)
        self._encoder.frame_bytes_wished = min(self._frame_bytes_max, least)
        for framed, count in self._encoder.frames(run):
            self._remote.broadcast_record(framed)
            for index in range(len(self._records_emitted)):
                self._records_emitted[index] += count
        return unfinished or self.has_unflushed_data

    def emit_control(self, element: Control, channel: int) -> bool:
        """Queue a control element for one consumer, in order with the records.

        Returns:
            As `emit_run`.
        """
        index = self._remote_index.get(channel)
        if index is None:
            local, index = self._local_part(channel)
            return local.emit_control(element, index)
        if self._remote.subpartitions[index].is_released:
            return False
        self._remote.emit_record(self._encoder.frame(element), index)
        return self._remote.subpartitions[index].has_unflushed_data

    def broadcast_control(self, element: Control) -> bool:
        """Queue a control element for every consumer, encoded once.

        It goes where the records went: to the shared buffer if they are broadcast,
        else to each channel's own, so that none is finished early.
        """
        unfinished = self._local is not None and self._local.broadcast_control(element)
        framed = self._encoder.frame(element)
        if self._remote.is_broadcasting:
            self._remote.broadcast_record(framed)
        else:
            for index, subpartition in enumerate(self._remote.subpartitions):
                if not subpartition.is_released:
                    self._remote.emit_record(framed, index)
        return unfinished or self.has_unflushed_data

    def broadcast_event(self, event: RuntimeEvent) -> None:
        """Queue an event for every consumer, in a buffer of its own."""
        # Objects first: they refuse a barrier that would overtake what cannot be kept,
        # and then no bytes are queued either.
        for part in self._parts():
            part.broadcast_event(event)

    def flush(self, channel: int) -> None:
        """Let one consumer take what is queued, the unfinished buffer included."""
        index = self._remote_index.get(channel)
        if index is not None:
            self._remote.flush(index)
        else:
            local, index = self._local_part(channel)
            local.flush(index)

    def flush_all(self) -> None:
        """Let every consumer take what is queued."""
        for part in self._parts():
            part.flush_all()

    def keep_in_flight(self, writer: ChannelStateWriter, codec: ElementCodec) -> None:
        """Give what barriers overtake from now on to a writer, as bytes."""
        if self._local is not None:
            self._local.keep_in_flight(writer, codec)
        self._remote.keep_in_flight(writer)

    def time_out_barrier(self, checkpoint_id: int) -> None:
        """Let the barrier of a checkpoint overtake wherever it is still queued.

        Raises:
            WrongTypeError: If it would overtake a record that cannot be kept; it stays
                where it is then, and everywhere else.
        """
        for part in self._parts():
            part.time_out_barrier(checkpoint_id)

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """Let no channel state wait for the barrier of a checkpoint any more."""
        for part in self._parts():
            part.abort_checkpoint(checkpoint_id, cause)

    def notify_end_of_data(self, mode: StopMode) -> None:
        """Tell every consumer that no more records follow. Idempotent."""
        for part in self._parts():
            part.notify_end_of_data(mode)

    def acknowledge_all_data_processed(self, channel: int) -> None:
        """Be notified that a consumer has processed all records; repeats are ignored."""
        index = self._remote_index.get(channel)
        if index is not None:
            self._remote.acknowledge_all_data_processed(index)
        else:
            local, index = self._local_part(channel)
            local.acknowledge_all_data_processed(index)

    def finish(self) -> None:
        """Tell every consumer that nothing at all follows, and close. Idempotent."""
        for part in self._parts():
            part.finish()

    def create_view(
        self, subpartition_index: int, listener: DataListener
    ) -> SubpartitionView:
        """Return the one view of a channel for a consumer on this loop.

        Raises:
            InvalidArgumentError: If there is no such channel, or its consumer is remote.
            IllegalStateError: If it has a view already, or was released.
        """
        local, index = self._local_part(subpartition_index)
        return local.create_view(index, listener)

    def create_bytes_view(
        self,
        subpartition_index: int,
        listener: DataListener,
        *,
        receiver_exclusive_buffers: int,
    ) -> BytesSubpartitionView:
        """Return the one view of a channel for a remote consumer.

        Args:
            subpartition_index: Which channel.
            listener: Notified from now on; not about what is queued.
            receiver_exclusive_buffers: How many the reader has of its own.

        Raises:
            InvalidArgumentError: If there is no such channel, or it stays on this loop.
            IllegalStateError: If it has a view already, or was released.
        """
        index = self._remote_index.get(subpartition_index)
        if index is None:
            self._refuse(
                subpartition_index, self.remote_channels, "have remote consumers"
            )
        view = self._remote.create_view(index, listener)
        subpartition = self._remote.subpartitions[index]
        subpartition.receiver_exclusive_buffers = receiver_exclusive_buffers
        return view

    def close(self) -> None:
        """End the producer's part; what is queued stays for the consumers. Idempotent.

        The pool lends nothing more; what is out returns as buffers are recycled.
        """
        for part in self._parts():
            part.close()

    def release(self, failure: BaseException | None = None) -> None:
        """Recycle everything that is queued, and end what reads it. Idempotent.

        Args:
            failure: Why, when the producer failed: consumers chain it to their error.
        """
        self._is_released = True
        for part in self._parts():
            part.release_part(failure)
        self._users.leave()

    def _parts(self) -> list[ResultPartition | BytesResultPartition]:
        return [self._remote] if self._local is None else [self._local, self._remote]

    def _local_part(self, channel: int) -> tuple[ResultPartition, int]:
        index = self._local_index.get(channel)
        if index is None or self._local is None:
            self._refuse(channel, list(self._local_index), "stay on this loop")
        return self._local, index

    def _refuse(self, channel: int, known: list[int], what: str) -> NoReturn:
        raise InvalidArgumentError(
            "subpartition_index",
            f"{channel} is not among the channels {known} of partition "
            f"{self.partition_id} that {what}",
        )
