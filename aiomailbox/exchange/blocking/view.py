"""Reads a subpartition back from its file: one of any number of readers.

Theory of operation: polling never waits for the disk. A thread reads ahead; what it
has read counts until the reader has recycled it, and the next reading begins when half
of what is allowed has come back. The reader is notified when there is something again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from aiomailbox.errors import IllegalStateError, PartitionStorageError
from aiomailbox.exchange.blocking.file import BlockingFile, StoredBuffer, thread_error
from aiomailbox.exchange.core.contract import (
    SEQUENCE_MODULUS,
    DataListener,
    PolledBytes,
)
from aiomailbox.memory.buffer import NetworkBuffer
from aiomailbox.memory.data_type import DataType
from aiomailbox.memory.segment import MemorySegment
from aiomailbox.threads import begin_in_thread

__all__ = ["BlockingView"]


class BlockingView:
    """A reader's end of one subpartition that was written to a file.

    Made by `BlockingResultPartition.create_view`.

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

    __slots__ = (
        "_file",
        "_held_bytes",
        "_is_blocked",
        "_is_reading",
        "_listener",
        "_loaded",
        "_offset",
        "_on_left",
        "_read_ahead_bytes",
        "_released",
        "_sequence_number",
        "backlog",
        "failure",
    )

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

    def poll(self) -> PolledBytes | None:
        """Take the next buffer; the caller recycles it.

        Returns:
            What was taken, or None: nothing is read yet, or an event blocks, or
            `is_released`.
        """
        if self._is_blocked or not self._loaded:
            return None
        data_type, content = self._loaded.popleft()
        # A copy: what was read in one go would be kept until the last buffer of it is
        # gone.
        segment = MemorySegment(len(content))
        segment.put(0, content)
        buffer = NetworkBuffer(
            segment, self._take_back, data_type, size_bytes=len(content)
        )
        self.backlog -= data_type.is_buffer
        self._is_blocked = data_type.is_blocking_upstream
        number = self._sequence_number
        self._sequence_number = (number + 1) % SEQUENCE_MODULUS
        is_ready = bool(self._loaded) and not self._is_blocked
        next_type = self._loaded[0].data_type if is_ready else DataType.NONE
        return PolledBytes(buffer.read_only_slice(), self.backlog, next_type, number)

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

    def set_buffer_bytes(self, size_bytes: int) -> None:
        """Do nothing: the buffers have the sizes in which they were written."""

    def release(self) -> None:
        """Release it: what was read and not taken is dropped. Idempotent."""
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
