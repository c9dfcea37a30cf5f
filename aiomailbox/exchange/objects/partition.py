"""A task's output towards one edge of the job graph: one subpartition per consumer.

Theory of operation: each subpartition has at most one unfinished buffer, its last.
Short runs and control elements go into it until it is full; long runs are split into
buffers of their own. Filling a buffer up seals it, and sealing tells the consumer. One
control element may still follow the records of a full buffer, until the consumer takes
it. An event seals first and rides in a buffer of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from aiomailbox.errors import IllegalStateError, InvalidArgumentError
from aiomailbox.exchange.core.buffer import BUFFER_SIZE_BYTES, ObjectBuffer
from aiomailbox.exchange.core.contract import (
    NO_CHANNEL_STATE,
    ChannelStateWriter,
    ChannelStatistics,
    DataListener,
    PartitionUsers,
    encode_in_flight,
)
from aiomailbox.exchange.core.pipelined_output import PipelinedOutput, check_count
from aiomailbox.exchange.objects.subpartition import (
    PipelinedSubpartition,
    SubpartitionView,
)
from aiomailbox.ids import PartitionId
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records import Control, Element
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import CheckpointBarrier, EndOfPartition, RuntimeEvent
from aiomailbox.records.run import RUN_LENGTH_MAX, Run


class ResultPartition(PipelinedOutput[PipelinedSubpartition]):
    """The subpartitions of one output, and the pool that bounds them together.

    Everything is synchronous. Emitting always succeeds up to the pool's ceiling;
    between two buffers of input the task looks at `availability`.

    Args:
        partition_id: Whose output, and towards which edge.
        pool: Where buffers get their permits; the partition owns it and destroys it.
        subpartition_count: Number of consumers, at least 1.
        buffer_size_bytes: Estimated size at which a buffer is sealed.
        channels: Which of the output's channels these are, where others are in
            another part of it that shares the pool; shape ``(subpartition_count,)``.
        users: Counts the users of the whole output, where this is a part of it.

    Attributes:
        subpartitions: Shape ``(subpartition_count,)``.
        availability: True while another buffer fits: the pool's own latch.

    Concept:
        Flink, ``PipelinedResultPartition``.

    Example:
        >>> from aiomailbox.ids import PartitionId, TaskId, VertexId
        >>> from aiomailbox.memory import NetworkBufferPool
        >>> from aiomailbox.records import ListRun
        >>> pool = NetworkBufferPool(8).create_local_pool(2, subpartitions=1)
        >>> partition_id = PartitionId(TaskId(VertexId(0), 0, 0), 0)
        >>> partition = ResultPartition(partition_id, pool, 1)
        >>> partition.emit_run(ListRun([1, 2, 3]), 0)  # left in an unfinished buffer
        True
        >>> partition.subpartitions[0].queued_records
        3
    """

    __slots__ = ("_buffer_size_bytes", "_builders", "_channel_state", "_codec")

    def __init__(
        self,
        partition_id: PartitionId,
        pool: LocalBufferPool,
        subpartition_count: int,
        *,
        buffer_size_bytes: int = BUFFER_SIZE_BYTES,
        channels: Sequence[int] | None = None,
        users: PartitionUsers | None = None,
    ) -> None:
        check_count(subpartition_count)
        if buffer_size_bytes < 1:
            raise InvalidArgumentError(
                "buffer_size_bytes", f"{buffer_size_bytes} is less than 1"
            )
        indices = range(subpartition_count) if channels is None else channels
        counted = pool.options.subpartitions
        fits = counted == subpartition_count or (
            channels is not None and counted > max(channels)
        )
        if counted and not fits:
            raise InvalidArgumentError(
                "pool",
                f"it counts {counted} subpartitions, the partition "
                f"has {subpartition_count}",
                f"Create it with subpartitions={subpartition_count}.",
            )
        super().__init__(
            partition_id,
            pool,
            [PipelinedSubpartition(index) for index in indices],
            channels=channels,
            users=users,
        )
        self._buffer_size_bytes = buffer_size_bytes
        self._builders: list[ObjectBuffer | None] = [None] * subpartition_count
        self._codec: ElementCodec | None = None
        self._channel_state: ChannelStateWriter = NO_CHANNEL_STATE

    def statistics(self) -> list[ChannelStatistics]:
        """Return a snapshot per subpartition, in order."""
        return [each.statistics() for each in self.subpartitions]

    def emit_run(self, run: Run, channel: int) -> bool:
        """Queue records for one consumer; an empty run is ignored.

        What goes to a consumer that has released it is dropped.

        Returns:
            Whether something is left in an unfinished buffer, which only a flush, or
            more records, let the consumer take.

        Raises:
            OverdraftCeilingError: If more buffers would be out than the pool's
                ceiling allows; the pieces before that are queued.

        Cost:
            Per run, not per record. A run of at most ``length_max`` records and
            average size is not copied; columns that stay together are more than rows.
        """
        count = len(run)
        if not count:
            return False
        size_bytes = run.size_bytes()
        most = run.length_max
        # By rows a buffer holds as many bytes as records of average size would; columns
        # may be longer, and so are their bytes.
        most_bytes = self._buffer_size_bytes * most // RUN_LENGTH_MAX
        if count <= most and size_bytes <= most_bytes:
            return self._append_run(run, count, size_bytes, channel)
        unfinished = False
        for piece in _cut(run, count, size_bytes, most, most_bytes):
            unfinished = self._append_run(
                piece, len(piece), piece.size_bytes(), channel
            )
        return unfinished

    def broadcast_run(self, run: Run) -> bool:
        """Queue records for every consumer; the run is shared. Returns as `emit_run`."""
        unfinished = False
        for channel in range(len(self.subpartitions)):
            unfinished = self.emit_run(run, channel) or unfinished
        return unfinished

    def emit_control(self, element: Control, channel: int) -> bool:
        """Queue a control element for one consumer, in order with the records.

        Returns:
            As `emit_run`.
        """
        buffer = self._unfinished(channel)
        if buffer is not None:
            buffer.append_control(element)
            if buffer.size_bytes >= self._buffer_size_bytes:
                self._seal(channel)
        elif self.subpartitions[channel].append_control(element):
            return False
        else:
            buffer = self._open(channel)
            if buffer is None:
                return False
            buffer.append_control(element)
            self._queue(buffer, channel)
        return not buffer.is_sealed

    def broadcast_control(self, element: Control) -> bool:
        """Queue a control element for every consumer; returns as `emit_run`."""
        unfinished = False
        for channel in range(len(self.subpartitions)):
            unfinished = self.emit_control(element, channel) or unfinished
        return unfinished

    def keep_in_flight(self, writer: ChannelStateWriter, codec: ElementCodec) -> None:
        """Give what barriers overtake from now on to a writer, encoded."""
        self._channel_state, self._codec = writer, codec

    def broadcast_event(self, event: RuntimeEvent) -> None:
        """Queue an event for every consumer, in a buffer of its own.

        Raises:
            WrongTypeError: If it overtakes a record that cannot be kept; nothing was
                queued then.
        """
        barrier = event if isinstance(event, CheckpointBarrier) else None
        overtaken: list[bytes] = []
        # All are encoded before one is queued: a record that cannot be kept must not
        # leave the barrier in some of the channels.
        if barrier is not None and barrier.is_priority:
            overtaken = [
                self._encoded(each.in_flight_elements()) for each in self.subpartitions
            ]
        for channel, subpartition in enumerate(self.subpartitions):
            # What was written before the event is before it in the channel.
            self._seal(channel)
            if not subpartition.add(ObjectBuffer.for_event(event)) or barrier is None:
                continue
            number, checkpoint_id = self._channels[channel], barrier.checkpoint_id
            if overtaken and overtaken[channel]:
                self._channel_state.add_output_data(
                    checkpoint_id, number, [overtaken[channel]]
                )
            elif barrier.is_timeoutable and self._codec is not None:
                self._channel_state.expect_output_data(checkpoint_id, number)
                subpartition.expect_barrier(
                    checkpoint_id, partial(self._on_barrier_left, checkpoint_id, number)
                )

    def time_out_barrier(self, checkpoint_id: int) -> None:
        """Let the barrier of a checkpoint overtake wherever it is still queued.

        Raises:
            WrongTypeError: If it would overtake a record that cannot be kept; it stays
                where it is then, and everywhere else.
        """
        # Encoded everywhere before the barrier moves anywhere.
        overtaken = [
            (channel, subpartition, self._encoded(elements))
            for channel, subpartition in zip(
                self._channels, self.subpartitions, strict=True
            )
            if (elements := subpartition.before_barrier(checkpoint_id)) is not None
        ]
        for channel, subpartition, data in overtaken:
            subpartition.time_out_barrier(checkpoint_id)
            self._channel_state.complete_output_data(
                checkpoint_id, channel, [data] if data else []
            )

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """Let no channel state wait for the barrier of a checkpoint any more."""
        for subpartition in self.subpartitions:
            subpartition.abort_checkpoint(checkpoint_id, cause)

    def finish(self) -> None:
        """Tell every consumer that nothing at all follows, and close. Idempotent."""
        for channel, subpartition in enumerate(self.subpartitions):
            self._builders[channel] = None
            subpartition.finish(EndOfPartition())
        self.close()

    def create_view(
        self, subpartition_index: int, listener: DataListener
    ) -> SubpartitionView:
        """Return the one view of a subpartition.

        Raises:
            InvalidArgumentError: If there is no such subpartition.
            IllegalStateError: If it has a view already, or was released.
        """
        return SubpartitionView(
            self._subpartition(subpartition_index), listener, self.drop_user
        )

    def _stop_writing(self) -> None:
        """Do nothing: a consumer may take unfinished buffers as they are."""

    def _encoded(self, elements: list[Element]) -> bytes:
        codec = self._codec
        return b"" if codec is None else encode_in_flight(codec, elements)

    def _on_barrier_left(
        self, checkpoint_id: int, channel: int, error: BaseException | None
    ) -> None:
        writer = self._channel_state
        if error is None:
            writer.complete_output_data(checkpoint_id, channel, [])
        else:
            writer.fail_output_data(checkpoint_id, channel, error)

    def _append_run(self, run: Run, count: int, size_bytes: int, channel: int) -> bool:
        buffer = self._unfinished(channel)
        if buffer is not None:
            # Neither count nor bytes may exceed: the one bounds a slice of work, the
            # other the memory. The first run would be alone in a buffer of its own, too.
            if not buffer.record_count or (
                buffer.record_count + count <= RUN_LENGTH_MAX
                and buffer.size_bytes + size_bytes <= self._buffer_size_bytes
            ):
                buffer.append_run(run, count, size_bytes)
                if self._is_full(buffer):
                    self._seal(channel)
                return not buffer.is_sealed
            # Sealed early rather than filled up: whole runs move without copies.
            self._seal(channel)
        buffer = self._open(channel)
        if buffer is None:
            return False
        buffer.append_run(run, count, size_bytes)
        self._queue(buffer, channel)
        return not buffer.is_sealed

    def _unfinished(self, channel: int) -> ObjectBuffer | None:
        """Return the buffer that can be appended to; a consumer may have sealed it."""
        buffer = self._builders[channel]
        if buffer is not None and buffer.is_sealed:
            self._builders[channel] = buffer = None
        return buffer

    def _open(self, channel: int) -> ObjectBuffer | None:
        """Return a new buffer, or None if the channel's consumer has gone."""
        if self.is_released or self._is_closed:
            raise IllegalStateError(
                f"partition {self.partition_id} is closed; nothing can be emitted"
            )
        # It would never be taken: dropping costs nothing and holds no permit.
        if self.subpartitions[channel].is_released:
            return None
        # A pool without subpartitions of its own counts no channels.
        charged = self._channels[channel] if self._pool.options.subpartitions else None
        return ObjectBuffer(self._pool, self._pool.request_elastic(charged), charged)

    def _queue(self, buffer: ObjectBuffer, channel: int) -> None:
        """Queue a new buffer that holds its first element, so one notice is enough."""
        if self._is_full(buffer):
            buffer.is_sealed = True
        else:
            self._builders[channel] = buffer
        self.subpartitions[channel].add(buffer)

    def _is_full(self, buffer: ObjectBuffer) -> bool:
        return (
            buffer.record_count >= RUN_LENGTH_MAX
            or buffer.size_bytes >= self._buffer_size_bytes
        )

    def _seal(self, channel: int) -> None:
        if self._builders[channel] is not None:
            self._builders[channel] = None
            self.subpartitions[channel].seal_last()


def _cut(
    run: Run, count: int, size_bytes: int, most: int, most_bytes: int
) -> Iterator[Run]:
    """Split a run into pieces that fit a buffer by count and, on average, by size."""
    by_size = most_bytes * count // size_bytes if size_bytes else count
    # A single record is sent, however large.
    length = max(1, min(most, by_size))
    for start in range(0, count, length):
        yield run.slice(start, min(start + length, count))
