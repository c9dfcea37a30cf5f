"""A task's output towards one edge, as bytes: records framed into pooled segments.

Theory of operation: each subpartition has a builder of its own while records go to one
of them, and all share one while records go to all. Changing between the two finishes
what was begun, so that the order on each channel is kept. A record that does not fit
goes on in the next buffer. Emitting never waits: what a pool does not lend, it lends as
overdraft, and before the next record the task looks at `availability`.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiomailbox.errors import IllegalStateError, InvalidArgumentError
from aiomailbox.exchange.core.channel_state import NO_CHANNEL_STATE, ChannelStateWriter
from aiomailbox.exchange.core.contract import DataListener
from aiomailbox.exchange.core.partition_users import PartitionUsers
from aiomailbox.exchange.core.pipelined_output import PipelinedOutput, check_count
from aiomailbox.exchange.frames.event_buffer import event_consumer
from aiomailbox.exchange.frames.subpartition import BytesSubpartition
from aiomailbox.exchange.frames.view import BytesSubpartitionView
from aiomailbox.ids import PartitionId
from aiomailbox.memory.builder import BufferBuilder
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records.events import RuntimeEvent

__all__ = ["BytesResultPartition"]

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
        >>> from aiomailbox.records.framing import frame_record
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
