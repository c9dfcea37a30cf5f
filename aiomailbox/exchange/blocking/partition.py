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
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from aiomailbox.availability import Availability
from aiomailbox.errors import (
    IllegalStateError,
    InvalidArgumentError,
    PartitionNotFoundError,
    PartitionStorageError,
)
from aiomailbox.exchange.blocking.file import BlockingFile, StoredBuffer, thread_error
from aiomailbox.exchange.core.contract import (
    SEQUENCE_MODULUS,
    ChannelStatistics,
    DataListener,
    PolledBuffer,
    PolledBytes,
)
from aiomailbox.exchange.frames import (
    BytesSubpartition,
    ElementReader,
    Framed,
)
from aiomailbox.exchange.partition import ResultPartition
from aiomailbox.ids import PartitionId
from aiomailbox.memory.buffer import (
    DataType,
    MemorySegment,
    NetworkBuffer,
    ReadOnlySlice,
)
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records import Control
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import CheckpointBarrier, RuntimeEvent, StopMode
from aiomailbox.records.run import Run
from aiomailbox.supervision import begin_in_thread

# Reads a subpartition back from its file: one of any number of readers.
#
# Theory of operation: polling never waits for the disk. A thread reads ahead; what it
# has read counts until the reader has recycled it, and the next reading begins when
# half of what is allowed has come back. The reader is notified when there is something
# again.


# What a view reads, and how; see `_FileView`.
_Source = tuple[BlockingFile, int, DataListener, int, Callable[[], None]]


class _FileView:
    """A reader's end of one subpartition that was written to a file.

    Args:
        file: Written to its end.
        data_count: How many data buffers are in it.
        listener: Told when something can be taken, also the first time.
        read_ahead_bytes: How much may be read and not yet recycled; one buffer is
            read in any case.
        on_left: Called once, when nothing of this view reads the file any more.

    Attributes:
        failure: Why nothing more comes after what can still be taken: the file was
            damaged or cannot be read.
        backlog: Data buffers that are still to be taken, read already or not.

    Concept:
        Flink, ``BoundedBlockingSubpartitionReader``.
    """

    def __init__(
        self,
        file: BlockingFile,
        data_count: int,
        listener: DataListener,
        read_ahead_bytes: int,
        on_left: Callable[[], None],
    ) -> None:
        self._file = file
        self._listener = listener
        self._read_ahead_bytes = read_ahead_bytes
        self._on_left = on_left
        self._loaded: deque[StoredBuffer] = deque()
        self._held_bytes = 0
        self._offset = 0
        self._sequence_number = 0
        self._is_blocked = False
        self._is_reading = False
        self._released = False
        self.backlog: int = data_count
        self.failure: BaseException | None = None
        self._read_on()

    @property
    def is_released(self) -> bool:
        """Whether the reader has released it, or reading failed and all else was taken."""
        return self._released or (self.failure is not None and not self._loaded)

    def is_available(self, *, has_credit: bool = True) -> bool:
        """Say whether something can be taken; without credit only an event can."""
        if self._is_blocked:
            return False
        if self.failure is not None:
            return True
        return bool(self._loaded) and (has_credit or self._loaded[0].data_type.is_event)

    def _next(self) -> PolledBytes | None:
        """Take the next buffer; the caller recycles it.

        Returns:
            The buffer that was taken, or None: nothing is read yet, or an event blocks,
            or `is_released`.
        """
        if self._is_blocked or not self._loaded:
            return None
        data_type, content = self._loaded.popleft()
        # A copy: what was read in one go would be kept until the last buffer of it is
        # gone.
        segment = MemorySegment(len(content))
        segment.view[:] = content
        buffer = NetworkBuffer(
            segment, self._take_back, data_type, size_bytes=len(content)
        )
        self.backlog -= data_type.is_buffer
        self._is_blocked = data_type.is_blocking_upstream
        number = self._sequence_number
        self._sequence_number = (number + 1) % SEQUENCE_MODULUS
        is_ready = bool(self._loaded) and not self._is_blocked
        next_type = self._loaded[0].data_type if is_ready else DataType.NONE
        return PolledBytes(
            buffer.read_only_slice(0, len(content)), self.backlog, next_type, number
        )

    def resume_consumption(self) -> None:
        """Lift the block of an event.

        Raises:
            IllegalStateError: If nothing blocks.
        """
        if not self._is_blocked:
            raise IllegalStateError(
                "the view is not blocked; resume once per event that blocks upstream"
            )
        self._is_blocked = False
        if self.is_available():
            self._listener.on_data_available()

    def acknowledge_all_data_processed(self) -> None:
        """Do nothing: the producer ended long ago."""

    def release(self) -> None:
        """Release it, and drop buffers that were read and not taken. Idempotent."""
        if self._released:
            return
        self._released = True
        self._loaded.clear()
        # The thread reads from the file: it is released when that is over.
        if not self._is_reading:
            self._on_left()

    def _take_back(self, segment: MemorySegment) -> None:
        self._held_bytes -= segment.size_bytes
        segment.free()
        self._read_on()

    def _read_on(self) -> None:
        if (
            self._is_reading
            or self._released
            or self.failure is not None
            or self._offset >= self._file.size_bytes
            # Half of it has to come back first, so that reads are large.
            or 2 * self._held_bytes > self._read_ahead_bytes
        ):
            return
        self._is_reading = True
        allowed = self._read_ahead_bytes - self._held_bytes
        reading = begin_in_thread(self._file.read, self._offset, allowed)
        reading.add_done_callback(self._on_read)

    def _on_read(self, future: asyncio.Future[tuple[list[StoredBuffer], int]]) -> None:
        self._is_reading = False
        if self._released:
            self._on_left()
            return
        had_nothing = not self._loaded
        error = thread_error(future)
        if error is None:
            buffers, self._offset = future.result()
            self._loaded.extend(buffers)
            self._held_bytes += sum(len(buffer.content) for buffer in buffers)
            self._read_on()
        elif isinstance(error, OSError):
            self.failure = PartitionStorageError(
                f"a blocking partition cannot be read: {error}"
            )
            self.failure.__cause__ = error
        else:
            self.failure = error
        if had_nothing and not self._is_blocked:
            self._listener.on_data_available()


class BlockingView(_FileView):
    """The end that a connection reads; see `BlockingResultPartition`."""

    def poll(self) -> PolledBytes | None:
        """Take the next buffer, or None; the caller recycles it."""
        return self._next()

    def set_buffer_bytes(self, size_bytes: int) -> None:
        """Do nothing: the buffers have the sizes in which they were written."""


class BlockingObjectView(_FileView):
    """A reader's end on the producer's loop: what is read is decoded here."""

    has_priority = False

    def __init__(self, reader: ElementReader, source: _Source) -> None:
        self._reader = reader
        super().__init__(*source)

    def poll(self) -> PolledBuffer | None:
        """Take the elements that end in the next buffer, or the next event.

        Raises:
            CorruptStreamError: If the file does not hold what was written.
            PartitionStorageError: If it cannot be read.
        """
        while (polled := self._next()) is not None:
            try:
                taken = self._reader.read(polled.buffer)
            finally:
                polled.buffer.recycle()
            if taken is not None:
                more = polled.next_data_type is not DataType.NONE
                return PolledBuffer(taken, more, False, polled.sequence_number)
        if self.failure is not None and self.is_released:
            raise self.failure
        return None

    def tell_again(self) -> None:
        """Tell the listener if something can be taken now."""
        if self.is_available():
            self._listener.on_data_available()

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot for metrics; bytes are those of the encoded records."""
        reader = self._reader
        return ChannelStatistics(
            queued_buffers=self.backlog,
            buffers_total=reader.buffers_total,
            records_total=reader.records_total,
            bytes_total=reader.bytes_total,
        )

    def release(self) -> None:
        """Release it. Idempotent."""
        super().release()
        self._reader.clear()


# Writes buffers to files in a thread, in order, while the loop goes on.


class _Write(NamedTuple):
    subpartition: int
    buffer: ReadOnlySlice


class BlockingWriter:
    """The one thread call at a time that writes the files of a partition.

    A buffer keeps its segment until it is written. What waits here is bounded by the
    pool that the segments are from, whose availability also holds back the emitter.

    Args:
        files: Shape ``(subpartitions,)``.
        on_failed: Called once with the error when something cannot be written;
            nothing more is written then.

    Attributes:
        waiting_bytes: Bytes that are not yet written.
    """

    def __init__(
        self, files: Sequence[BlockingFile], on_failed: Callable[[BaseException], None]
    ) -> None:
        self._files = files
        self._on_failed = on_failed
        self._queue: list[_Write] = []
        self._is_busy = False
        self._is_stopped = False
        self._on_idle: list[Callable[[], None]] = []
        self.waiting_bytes: int = 0

    def put(self, index: int, buffer: ReadOnlySlice) -> None:
        """Write a buffer at the end of a file, and recycle it then."""
        if self._is_stopped:
            buffer.recycle()
            return
        self._queue.append(_Write(index, buffer))
        self.waiting_bytes += buffer.size_bytes
        if not self._is_busy:
            self._start()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call back once, as soon as everything is written, or writing has stopped."""
        if self._is_busy:
            self._on_idle.append(callback)
        else:
            callback()

    def stop(self) -> None:
        """Write nothing more; recycle what waits. Idempotent."""
        self._is_stopped = True
        waiting, self._queue = self._queue, []
        self._recycle(waiting)

    def _start(self) -> None:
        batch, self._queue = self._queue, []
        # Views are made here: reference counts belong to the loop.
        views = [write.buffer.readable() for write in batch]
        self._is_busy = True
        done = begin_in_thread(self._write, batch, views)
        done.add_done_callback(lambda future: self._written(batch, future))

    def _write(self, batch: list[_Write], views: list[memoryview]) -> None:
        for write, view in zip(batch, views, strict=True):
            self._files[write.subpartition].append(write.buffer.data_type, view)
        # Flushed per batch and not per buffer: a reader comes when all is finished.
        for index in {write.subpartition for write in batch}:
            self._files[index].flush()

    def _written(self, batch: list[_Write], future: asyncio.Future[None]) -> None:
        self._is_busy = False
        self._recycle(batch)
        if (error := thread_error(future)) is not None:
            self.stop()
            self._on_failed(error)
        if self._queue and not self._is_busy:
            self._start()
        if not self._is_busy:
            callbacks, self._on_idle = self._on_idle, []
            for callback in callbacks:
                callback()

    def _recycle(self, writes: list[_Write]) -> None:
        for write in writes:
            self.waiting_bytes -= write.buffer.size_bytes
            write.buffer.recycle()


# Eight segments: what a remote reader's floating buffers can take at once.
DEFAULT_READ_AHEAD_BYTES: Final = 8 * 32 * 1024


class BlockingResultPartition:
    r"""Output that is written to files, and read after its producer has finished.

    The partition encodes emitted records. Readers on this loop get it decoded, those on
    other loops as bytes; any number of them, one after the other or at a time. It holds
    no checkpoint barriers: there is nothing to align with a producer that has ended.
    Files have no name: no other process can open them, and they are gone when the
    partition is released or the process ends.

    Args:
        partition_id: Whose output, and towards which edge.
        pool: Where segments come from, at least one more than there are
            subpartitions; the partition owns it and destroys it. All that waits for
            the disk is in these segments.
        subpartition_count: Number of consumers, at least 1.
        codec: For the elements.
        directory: On which disk; None for the system's place for temporary files.
        read_ahead_bytes: The bytes that each reader may hold in memory.

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
        >>> from aiomailbox.records import LONG_SERIALIZER, ListRun
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
        ...     codec = ElementCodec(LONG_SERIALIZER)
        ...     partition = BlockingResultPartition(partition_id, pool, 1, codec=codec)
        ...     partition.emit_run(ListRun([7, 8]), 0)
        ...     await partition.settle()
        ...     for _ in range(2):
        ...         told = Told()
        ...         view = partition.create_view(0, told)
        ...         await told.ready.wait()
        ...         print(view.poll().buffer.elements)
        ...         view.release()
        ...     partition.release()
        >>> asyncio.run(twice())
        [ListRun([7, 8], None)]
        [ListRun([7, 8], None)]
    """

    def __init__(
        self,
        partition_id: PartitionId,
        pool: LocalBufferPool,
        subpartition_count: int,
        *,
        codec: ElementCodec,
        directory: str | os.PathLike[str] | None = None,
        read_ahead_bytes: int = DEFAULT_READ_AHEAD_BYTES,
    ) -> None:
        if read_ahead_bytes < 1:
            raise InvalidArgumentError(
                "read_ahead_bytes", f"{read_ahead_bytes} is less than 1"
            )
        self._codec = codec
        self._directory = directory
        self._staging = ResultPartition(
            partition_id,
            pool,
            subpartition_count,
            remote_channels=range(subpartition_count),
            codec=codec,
            small_buffers_max=0,
        )
        self._files = [BlockingFile(directory) for _ in range(subpartition_count)]
        self._data_counts = [0] * subpartition_count
        self._writer = BlockingWriter(self._files, self._on_write_failed)
        for subpartition in self._staging.subpartitions:
            assert isinstance(subpartition, BytesSubpartition), "all are remote"
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
    def reader_count(self) -> int:
        """Readers that have not released it, or still read."""
        return self._readers

    def statistics(self) -> list[ChannelStatistics]:
        """Return a snapshot per channel, in order: the records that were emitted."""
        return [
            ChannelStatistics(records_total=each.records_total)
            for each in self._staging.subpartitions
        ]

    def emit_run(self, run: Run, channel: int) -> bool:
        """Write records for one consumer; an empty run is ignored.

        Returns:
            False: no reader waits for a flush.

        Raises:
            IllegalStateError: If the partition is closed.
            WrongTypeError: If a record cannot be serialized.
            PartitionStorageError: If the disk did not take what was emitted before.
            OverdraftCeilingError: If the pool's ceiling is reached.
        """
        self._check_writing()
        self._staging.emit_run(run, channel)
        return False

    def broadcast_run(self, run: Run) -> bool:
        """Write records for every consumer, encoded once; as `emit_run`."""
        self._check_writing()
        self._staging.broadcast_run(run)
        return False

    def emit_control(self, element: Control, channel: int) -> bool:
        """Write a control element for one consumer, in order with the records."""
        self._check_writing()
        self._staging.emit_control(element, channel)
        return False

    def broadcast_control(self, element: Control) -> bool:
        """Write a control element for every consumer, each in its order."""
        self._check_writing()
        self._staging.broadcast_control(element)
        return False

    def emit_record(self, framed: Framed, channel: int) -> None:
        """Write a record's frame for one consumer; raises as `emit_run`."""
        self._check_writing()
        self._staging.emit_record(framed, channel)

    def broadcast_record(self, framed: Framed) -> None:
        """Write a record's frame for every consumer; raises as `emit_run`."""
        self._check_writing()
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
        self._check_writing()
        self._staging.broadcast_event(event)

    def flush(self, channel: int) -> None:
        """Write what was emitted to one subpartition without waiting for more."""
        self._staging.flush(channel)

    def flush_all(self) -> None:
        """Write everything that was emitted without waiting for more."""
        self._staging.flush_all()

    def notify_end_of_data(self, mode: StopMode) -> None:
        """Tell every consumer that no more records follow. Idempotent."""
        self._check_writing()
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

    async def settle(self) -> None:
        """Write the end, and suspend until all of it can be read.

        Raises:
            IllegalStateError: If it was released before.
            PartitionStorageError: If the disk did not take it.
        """
        self.finish()
        await self.finished.wait()
        if self.failure is not None:
            raise self.failure
        if self.is_released:
            raise IllegalStateError(f"{self!r} cannot be read any more")

    def create_view(
        self, subpartition_index: int, listener: DataListener
    ) -> BlockingObjectView:
        """Return a reader on this loop; raises as `create_bytes_view`."""
        source = self._begin_reading(subpartition_index, listener)
        reader = ElementReader(self._codec, str(self.partition_id), self._directory)
        return BlockingObjectView(reader, source)

    def create_bytes_view(
        self,
        subpartition_index: int,
        listener: DataListener,
        *,
        receiver_exclusive_buffers: int,
    ) -> BlockingView:
        """Return a reader, one of any number, at the beginning of a subpartition.

        Args:
            subpartition_index: From 0.
            listener: Notified when something can be taken, also the first time.
            receiver_exclusive_buffers: All the same.

        Raises:
            InvalidArgumentError: If there is no such subpartition.
            PartitionNotFoundError: If the partition is not finished, or released.
        """
        return BlockingView(*self._begin_reading(subpartition_index, listener))

    def on_consumed(self, callback: Callable[[], None]) -> None:
        """Call back once: when it is released. Consuming it does not."""
        self._on_consumed = callback

    def close(self) -> None:
        """End the producer's part: release the partition if it is not finished."""
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

    def _check_writing(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.is_released:
            raise IllegalStateError(
                f"partition {self.partition_id} is released; nothing can be emitted"
            )

    def _begin_reading(
        self, subpartition_index: int, listener: DataListener
    ) -> _Source:
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
        return (
            self._files[subpartition_index],
            self._data_counts[subpartition_index],
            listener,
            self._read_ahead_bytes,
            self._on_reader_left,
        )

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

    def __init__(
        self, subpartition: BytesSubpartition, take: Callable[[BytesSubpartition], None]
    ) -> None:
        self._subpartition = subpartition
        self._take = take

    def on_data_available(self) -> None:
        self._take(self._subpartition)

    def on_priority_event(self, sequence_number: int) -> None:
        self._take(self._subpartition)
