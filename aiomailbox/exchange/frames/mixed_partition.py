"""A task's output with consumers on this loop and remote ones.

Theory of operation: a partition of objects serves the consumers on this loop, one of
bytes all others, and both take from one pool, whose latch says for both whether another
buffer fits; both count the users of the whole. What goes to remote consumers is
encoded, a run at a time; the rest is handed over as it is. A channel's number is its
place in the whole output.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.exchange.core.buffer import BUFFER_SIZE_BYTES
from aiomailbox.exchange.core.channel_state import ChannelStateWriter
from aiomailbox.exchange.core.contract import ChannelStatistics, DataListener
from aiomailbox.exchange.core.partition_users import PartitionUsers
from aiomailbox.exchange.core.pipelined_output import Output
from aiomailbox.exchange.frames.encoder import FRAME_BYTES_WISHED, FrameEncoder
from aiomailbox.exchange.frames.partition import BytesResultPartition
from aiomailbox.exchange.frames.view import BytesSubpartitionView
from aiomailbox.exchange.objects.partition import ResultPartition
from aiomailbox.exchange.objects.subpartition import SubpartitionView
from aiomailbox.ids import PartitionId
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records import Control
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import RuntimeEvent, StopMode
from aiomailbox.records.run import Run

__all__ = ["MixedResultPartition"]

# A run is emitted as a whole: in small buffers it keeps the next one waiting longer.
_SMALL_BUFFERS_MAX = 64


class MixedResultPartition(Output):
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
