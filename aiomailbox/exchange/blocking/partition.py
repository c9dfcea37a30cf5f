"""A task's output that is read when it is complete, from files, as often as one likes.

Theory of operation: what is emitted is framed into pooled segments as in a pipelined
partition, whose only reader writes each buffer to its subpartition's file as soon as
the next one has begun, or it is flushed or finished. A segment goes back to the pool
when its bytes are written, so the pool bounds what waits for the disk, and its
availability holds the producer back while the disk is behind.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from aiomailbox.availability import Availability
from aiomailbox.errors import (
    IllegalStateError,
    InvalidArgumentError,
    PartitionNotFoundError,
    PartitionStorageError,
)
from aiomailbox.exchange.blocking.file import BlockingFile, thread_error
from aiomailbox.exchange.blocking.view import BlockingView
from aiomailbox.exchange.blocking.writer import BlockingWriter
from aiomailbox.exchange.core.contract import DataListener
from aiomailbox.exchange.frames.partition import BytesResultPartition
from aiomailbox.exchange.frames.subpartition import BytesSubpartition
from aiomailbox.ids import PartitionId
from aiomailbox.memory.data_type import DataType
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records.events import CheckpointBarrier, RuntimeEvent, StopMode

__all__ = ["DEFAULT_READ_AHEAD_BYTES", "BlockingResultPartition"]

# Eight segments: what a remote reader's floating buffers can take at once.
DEFAULT_READ_AHEAD_BYTES: Final = 8 * 32 * 1024


class BlockingResultPartition:
    r"""Output that is written to files, and read after its producer has finished.

    It holds no checkpoint barriers: there is nothing to align with a producer that has
    ended. Files have no name: no other process can open them, and they are gone when
    the partition is released or the process ends.

    Args:
        partition_id: Whose output, and towards which edge.
        pool: Where segments come from, at least one more than there are
            subpartitions; the partition owns it and destroys it. All that waits for
            the disk is in these segments.
        subpartition_count: Number of consumers, at least 1.
        directory: On which disk; None for the system's place for temporary files.
        read_ahead_bytes: What each reader may hold in memory.

    Attributes:
        availability: True while another buffer fits: the pool's own latch. False while
            the disk is behind.
        finished: Turns true when all is on disk and can be read, or writing failed.
        all_data_processed: True from the beginning: nothing is acknowledged to a
            producer that has ended.
        failure: Why writing failed.

    Raises:
        InvalidArgumentError: If the pool is too small, or there is no subpartition.

    Concept:
        Flink, ``BoundedBlockingResultPartition`` (``ResultPartitionType.BLOCKING``).

    Example:
        >>> import asyncio
        >>> from aiomailbox.ids import PartitionId, TaskId, VertexId
        >>> from aiomailbox.memory import NetworkBufferPool
        >>> from aiomailbox.records.framing import frame_record
        >>> class Told:
        ...     def __init__(self):
        ...         self.ready = asyncio.Event()
        ...
        ...     def on_data_available(self):
        ...         self.ready.set()
        ...
        ...     def on_priority_event(self, sequence_number): ...
        >>> async def twice():
        ...     pool = NetworkBufferPool(8).create_local_pool(2)
        ...     partition_id = PartitionId(TaskId(VertexId(0), 0, 0), 0)
        ...     partition = BlockingResultPartition(partition_id, pool, 1)
        ...     partition.emit_record(frame_record(b"stream"), 0)
        ...     partition.finish()
        ...     await partition.wait_finished()
        ...     for _ in range(2):
        ...         told = Told()
        ...         view = partition.create_view(0, told)
        ...         await told.ready.wait()
        ...         print(bytes(view.poll().buffer.readable()))
        ...         view.release()
        ...     partition.release()
        >>> asyncio.run(twice())
        b'\x00\x00\x00\x06stream'
        b'\x00\x00\x00\x06stream'
    """

    __slots__ = (
        "_data_counts",
        "_files",
        "_is_deleted",
        "_is_finished",
        "_on_consumed",
        "_read_ahead_bytes",
        "_readers",
        "_staging",
        "_writer",
        "all_data_processed",
        "availability",
        "failure",
        "finished",
        "is_released",
        "partition_id",
    )

    def __init__(
        self,
        partition_id: PartitionId,
        pool: LocalBufferPool,
        subpartition_count: int,
        *,
        directory: str | os.PathLike[str] | None = None,
        read_ahead_bytes: int = DEFAULT_READ_AHEAD_BYTES,
    ) -> None:
        if read_ahead_bytes < 1:
            raise InvalidArgumentError(
                "read_ahead_bytes", f"{read_ahead_bytes} is less than 1"
            )
        self._staging = BytesResultPartition(partition_id, pool, subpartition_count)
        self._files = [BlockingFile(directory) for _ in range(subpartition_count)]
        self._data_counts = [0] * subpartition_count
        self._writer = BlockingWriter(self._files, self._on_write_failed)
        for subpartition in self._staging.subpartitions:
            # Its own reader: what is complete goes to the disk, as it would to a
            # consumer.
            subpartition.attach(_Drain(subpartition, self._write))
        self._read_ahead_bytes = read_ahead_bytes
        self._readers = 0
        self._is_finished = False
        self._is_deleted = False
        self._on_consumed: Callable[[], None] | None = None
        self.partition_id: PartitionId = partition_id
        self.availability: Availability = pool.availability
        self.finished: Availability = Availability()
        self.all_data_processed: Availability = Availability(available=True)
        self.failure: BaseException | None = None
        self.is_released: bool = False

    def __repr__(self) -> str:
        state = "released" if self.is_released else "writing"
        if self.finished.available and not self.is_released:
            state = "finished"
        return f"<BlockingResultPartition {self.partition_id}: {state}>"

    @property
    def subpartition_count(self) -> int:
        """Number of consumers."""
        return len(self._files)

    @property
    def bytes_written(self) -> int:
        """Bytes of records and their lengths, once per record."""
        return self._staging.bytes_written

    @property
    def reader_count(self) -> int:
        """Readers that have not released it, or still read."""
        return self._readers

    def emit_record(self, framed: bytes | bytearray | memoryview, channel: int) -> None:
        """Append a record to one subpartition; belongs to a running loop.

        Args:
            framed: Its length and its content; borrowed for the call.
            channel: Index of the subpartition.

        Raises:
            IllegalStateError: If the partition is finished or released.
            OverdraftCeilingError: If one record needs more than may be lent.
            PartitionStorageError: If the disk did not take what was emitted before.
        """
        if self.failure is not None:
            raise self.failure
        self._staging.emit_record(framed, channel)

    def broadcast_record(self, framed: bytes | bytearray | memoryview) -> None:
        """Append a record to all subpartitions; each writes it to its own file.

        Args:
            framed: Its length and its content; borrowed for the call.

        Raises:
            IllegalStateError: If the partition is finished or released.
            OverdraftCeilingError: If one record needs more than may be lent.
            PartitionStorageError: If the disk did not take what was emitted before.
        """
        if self.failure is not None:
            raise self.failure
        self._staging.broadcast_record(framed)

    def broadcast_event(self, event: RuntimeEvent) -> None:
        """Append an event to all subpartitions; nothing overtakes in a file.

        Args:
            event: Rides in one buffer of its own.

        Raises:
            InvalidArgumentError: If it is a checkpoint barrier.
            IllegalStateError: If the partition is finished or released.
            PartitionStorageError: If the disk did not take what was emitted before.
        """
        if isinstance(event, CheckpointBarrier):
            raise InvalidArgumentError(
                "event",
                f"{event!r} cannot be kept: a blocking partition has no barriers",
                "Take no checkpoints of a stage whose output is read when it is over.",
            )
        if self.failure is not None:
            raise self.failure
        self._staging.broadcast_event(event, has_priority=False)

    def flush(self, channel: int) -> None:
        """Write what was emitted to one subpartition without waiting for more."""
        self._staging.flush(channel)

    def flush_all(self) -> None:
        """Write everything that was emitted without waiting for more."""
        self._staging.flush_all()

    def notify_end_of_data(self, mode: StopMode) -> None:
        """Tell every consumer that no more records follow. Idempotent."""
        if self.failure is not None:
            raise self.failure
        self._staging.notify_end_of_data(mode)

    def finish(self) -> None:
        """Write the end of the partition; `finished` says when it is on disk.

        Idempotent.
        """
        if self._is_finished or self.is_released:
            return
        self._is_finished = True
        self._staging.finish()
        self._writer.when_idle(self.finished.set_available)

    async def wait_finished(self) -> None:
        """Suspend until the partition can be read.

        Raises:
            IllegalStateError: If it was released before.
            PartitionStorageError: If the disk did not take it.
        """
        await self.finished.wait()
        if self.failure is not None:
            raise self.failure
        if self.is_released:
            raise IllegalStateError(f"{self!r} cannot be read any more")

    def create_view(
        self, subpartition_index: int, listener: DataListener
    ) -> BlockingView:
        """Return a reader, one of any number, at the beginning of a subpartition.

        Args:
            subpartition_index: From 0.
            listener: Notified when something can be taken, also the first time.

        Raises:
            InvalidArgumentError: If there is no such subpartition.
            PartitionNotFoundError: If the partition is not finished, or released.
        """
        if not 0 <= subpartition_index < len(self._files):
            raise InvalidArgumentError(
                "subpartition_index",
                f"{subpartition_index} is not within 0 .. {len(self._files) - 1}",
            )
        if self.failure is not None or self.is_released:
            raise PartitionNotFoundError(
                f"partition {self.partition_id} was released"
            ) from self.failure
        if not (self._is_finished and self.finished.available):
            raise PartitionNotFoundError(
                f"partition {self.partition_id} is still being written: a blocking "
                "partition is read when its producer has finished"
            )
        self._readers += 1
        return BlockingView(
            self._files[subpartition_index],
            self._data_counts[subpartition_index],
            listener,
            self._read_ahead_bytes,
            self._on_reader_left,
        )

    def on_consumed(self, callback: Callable[[], None]) -> None:
        """Call back once: when it is released. Consuming it does not."""
        self._on_consumed = callback

    def close(self) -> None:
        """End the producer's part: what is not finished then is released."""
        if not self._is_finished:
            self.release()

    def release(self, failure: BaseException | None = None) -> None:
        """Refuse further readers; delete the data when the last reader has released it.

        Args:
            failure: Why, when the producer failed. Idempotent.
        """
        if self.is_released:
            return
        self.is_released = True
        self.failure = self.failure or failure
        self._staging.release(self.failure)
        self._writer.stop()
        self.finished.set_available()
        # The thread may still read from buffers, and must not find their file closed.
        self._writer.when_idle(self._delete_if_unused)
        callback, self._on_consumed = self._on_consumed, None
        if callback is not None:
            callback()

    def _write(self, subpartition: BytesSubpartition) -> None:
        """Take all that is complete, or flushed, to the disk's queue."""
        while (polled := subpartition.poll()) is not None:
            data_type = polled.buffer.data_type
            self._data_counts[subpartition.index] += data_type.is_buffer
            self._writer.put(subpartition.index, polled.buffer)
            if data_type.is_blocking_upstream:
                # Only the reader waits, when it comes to this event.
                subpartition.resume_consumption()
                if subpartition.is_available():
                    continue
            if polled.next_data_type is DataType.NONE:
                # An unfinished buffer would be given too, in bits.
                return

    def _on_write_failed(self, error: BaseException) -> None:
        if isinstance(error, OSError):
            problem = PartitionStorageError(
                f"partition {self.partition_id} cannot be written: {error}. Free some "
                "space, or give another directory."
            )
            problem.__cause__ = error
            self.failure = problem
        else:
            self.failure = error
        self.release()

    def _on_reader_left(self) -> None:
        self._readers -= 1
        self._delete_if_unused()

    def _delete_if_unused(self) -> None:
        if self.is_released and not self._readers and not self._is_deleted:
            self._is_deleted = True
            try:
                # Giving back many pages takes a while; the loop does not wait for it.
                loop = asyncio.get_running_loop()
                closed = loop.run_in_executor(None, self._close_files)
                closed.add_done_callback(self._on_closed)
            except RuntimeError:
                # No loop runs, or it is shutting down and takes no more calls.
                self._close_files()

    def _on_closed(self, future: asyncio.Future[None]) -> None:
        if thread_error(future) is not None:
            self._close_files()

    def _close_files(self) -> None:
        for file in self._files:
            file.close()


class _Drain:
    """Reads a subpartition of the staging partition whenever something is complete."""

    __slots__ = ("_subpartition", "_take")

    def __init__(
        self, subpartition: BytesSubpartition, take: Callable[[BytesSubpartition], None]
    ) -> None:
        self._subpartition = subpartition
        self._take = take

    def on_data_available(self) -> None:
        self._take(self._subpartition)

    def on_priority_event(self, sequence_number: int) -> None:
        self._take(self._subpartition)
