"""A task's output that others read when the task has finished, as a partition of objects."""

from __future__ import annotations

import os
from collections.abc import Callable

from aiomailbox.availability import Availability
from aiomailbox.exchange.blocking.partition import BlockingResultPartition
from aiomailbox.exchange.blocking.view import BlockingView
from aiomailbox.exchange.core.contract import (
    ChannelStatistics,
    DataListener,
    PolledBuffer,
)
from aiomailbox.exchange.frames.element_reader import ElementReader
from aiomailbox.exchange.frames.encoder import FrameEncoder
from aiomailbox.ids import PartitionId
from aiomailbox.memory.data_type import DataType
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records import Control
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import RuntimeEvent, StopMode
from aiomailbox.records.run import Run

__all__ = ["BlockingOutput"]


class BlockingOutput:
    """Encodes what is emitted and keeps it in files; see `OutputPartition`.

    Readers on this loop get it decoded, those on other loops as bytes; any number of
    them, one after the other or at a time. It has no barriers.

    Args:
        partition_id: Whose output, and towards which edge.
        pool: Where segments come from; the partition owns it.
        subpartition_count: Number of consumers, at least 1.
        codec: For the elements.
        directory: On which disk; None for the system's place for temporary files.

    Attributes:
        partition_id: As given.
        availability: True while another buffer fits: the disk is not behind.

    Concept:
        Flink, ``ResultPartitionType.BLOCKING``.
    """

    __slots__ = (
        "_codec",
        "_directory",
        "_encoder",
        "_partition",
        "_records_emitted",
        "availability",
        "partition_id",
    )

    def __init__(
        self,
        partition_id: PartitionId,
        pool: LocalBufferPool,
        subpartition_count: int,
        *,
        codec: ElementCodec,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        self.partition_id: PartitionId = partition_id
        self.availability: Availability = pool.availability
        self._codec = codec
        self._directory = directory
        self._encoder = FrameEncoder(codec)
        self._partition = BlockingResultPartition(
            partition_id, pool, subpartition_count, directory=directory
        )
        self._records_emitted = [0] * subpartition_count

    def __repr__(self) -> str:
        return f"<BlockingOutput {self._partition!r}>"

    @property
    def is_released(self) -> bool:
        """Whether nothing is kept for consumers any more."""
        return self._partition.is_released

    @property
    def all_data_processed(self) -> Availability:
        """True: nothing is acknowledged to a producer that has ended."""
        return self._partition.all_data_processed

    @property
    def subpartition_count(self) -> int:
        """Number of consumers."""
        return self._partition.subpartition_count

    @property
    def queued_buffers(self) -> int:
        """None: what waits for the disk is in the pool's count."""
        return 0

    @property
    def has_unflushed_data(self) -> bool:
        """Whether anything is queued that its consumer cannot take yet: no reader waits."""
        return False

    def statistics(self) -> list[ChannelStatistics]:
        """Return a snapshot per channel, in order: the records that were emitted."""
        return [ChannelStatistics(records_total=one) for one in self._records_emitted]

    def emit_run(self, run: Run, channel: int) -> bool:
        """Write records for one consumer; an empty run is ignored.

        Returns:
            False: no reader waits for a flush.

        Raises:
            WrongTypeError: If a record cannot be serialized.
            PartitionStorageError: If the disk did not take what was emitted before.
            OverdraftCeilingError: If the pool's ceiling is reached.
        """
        for framed, count in self._encoder.frames(run):
            self._partition.emit_record(framed, channel)
            self._records_emitted[channel] += count
        return False

    def broadcast_run(self, run: Run) -> bool:
        """Write records for every consumer, encoded once; as `emit_run`."""
        for framed, count in self._encoder.frames(run):
            self._partition.broadcast_record(framed)
            for channel in range(len(self._records_emitted)):
                self._records_emitted[channel] += count
        return False

    def emit_control(self, element: Control, channel: int) -> bool:
        """Write a control element for one consumer, in order with the records."""
        self._partition.emit_record(self._encoder.frame(element), channel)
        return False

    def broadcast_control(self, element: Control) -> bool:
        """Write a control element for every consumer, each in its order."""
        framed = self._encoder.frame(element)
        for channel in range(self.subpartition_count):
            self._partition.emit_record(framed, channel)
        return False

    def broadcast_event(self, event: RuntimeEvent) -> None:
        """Write an event for every consumer; refuses barriers."""
        self._partition.broadcast_event(event)

    async def writable(self) -> None:
        """Suspend until another buffer fits."""
        while not self.availability.available:
            self.flush_all()
            await self.availability.waiter()

    def flush(self, channel: int) -> None:
        """Write what there is for one consumer."""
        self._partition.flush(channel)

    def flush_all(self) -> None:
        """Write what there is for all consumers."""
        self._partition.flush_all()

    def notify_end_of_data(self, mode: StopMode) -> None:
        """Tell every consumer that no more records follow. Idempotent."""
        self._partition.notify_end_of_data(mode)

    def acknowledge_all_data_processed(self, channel: int) -> None:
        """Do nothing: the producer ended long ago."""

    def finish(self) -> None:
        """Write the end. Idempotent."""
        self._partition.finish()

    async def settle(self) -> None:
        """Write the end, and suspend until all of it can be read.

        Raises:
            PartitionStorageError: If the disk did not take it.
        """
        self._partition.finish()
        await self._partition.wait_finished()

    def create_view(
        self, subpartition_index: int, listener: DataListener
    ) -> BlockingObjectView:
        """Return a reader for a consumer on this loop.

        Raises:
            InvalidArgumentError: If there is no such channel.
            PartitionNotFoundError: If it is not finished, or released.
        """
        reader = ElementReader(self._codec, str(self.partition_id), self._directory)
        view = self._partition.create_view(subpartition_index, listener)
        return BlockingObjectView(view, reader, listener)

    def create_bytes_view(
        self,
        subpartition_index: int,
        listener: DataListener,
        *,
        receiver_exclusive_buffers: int,
    ) -> BlockingView:
        """Return a reader for a remote consumer; raises as `create_view`."""
        return self._partition.create_view(subpartition_index, listener)

    def on_consumed(self, callback: Callable[[], None]) -> None:
        """Call back once: when it is released. Consuming it does not."""
        self._partition.on_consumed(callback)

    def close(self) -> None:
        """End the producer's part: what is not finished then is released."""
        self._partition.close()

    def release(self, failure: BaseException | None = None) -> None:
        """Refuse further readers; give the space back. Idempotent."""
        self._partition.release(failure)


class BlockingObjectView:
    """A reader's end on the producer's loop: what is read is decoded here.

    Args:
        view: Reads the file.
        reader: Decodes.
        listener: Told when something can be taken.
    """

    __slots__ = ("_listener", "_reader", "_view")

    has_priority = False

    def __init__(
        self, view: BlockingView, reader: ElementReader, listener: DataListener
    ) -> None:
        self._view = view
        self._reader = reader
        self._listener = listener

    @property
    def is_released(self) -> bool:
        """Whether either side has released it."""
        return self._view.is_released

    @property
    def failure(self) -> BaseException | None:
        """Why nothing more comes."""
        return self._view.failure

    @property
    def backlog(self) -> int:
        """Data buffers that are still to be taken."""
        return self._view.backlog

    def is_available(self, *, has_credit: bool = True) -> bool:
        """Say whether something can be taken."""
        return self._view.is_available(has_credit=has_credit)

    def poll(self) -> PolledBuffer | None:
        """Take the elements that end in the next buffer, or the next event.

        Raises:
            CorruptStreamError: If the file does not hold what was written.
            PartitionStorageError: If it cannot be read.
        """
        while (polled := self._view.poll()) is not None:
            try:
                taken = self._reader.read(polled.buffer)
            finally:
                polled.buffer.recycle()
            if taken is not None:
                more = polled.next_data_type is not DataType.NONE
                return PolledBuffer(
                    taken, polled.backlog, more, False, polled.sequence_number
                )
        if self._view.failure is not None and self._view.is_released:
            raise self._view.failure
        return None

    def resume_consumption(self) -> None:
        """Lift the block of an event; raises IllegalStateError if nothing blocks."""
        self._view.resume_consumption()

    def tell_again(self) -> None:
        """Tell the listener if something can be taken now."""
        if self._view.is_available():
            self._listener.on_data_available()

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot for metrics; bytes are those of the encoded records."""
        reader = self._reader
        return ChannelStatistics(
            queued_buffers=self._view.backlog,
            buffers_total=reader.buffers_total,
            records_total=reader.records_total,
            bytes_total=reader.bytes_total,
        )

    def release(self) -> None:
        """Release it. Idempotent."""
        self._view.release()
        self._reader.clear()
