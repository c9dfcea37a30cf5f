"""Writes buffers to files in a thread, in order, while the loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from aiomailbox.exchange.blocking.file import BlockingFile, thread_error
from aiomailbox.memory.buffer import ReadOnlySlice
from aiomailbox.threads import begin_in_thread

__all__ = ["BlockingWriter"]


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

    __slots__ = (
        "_files",
        "_is_busy",
        "_is_stopped",
        "_on_failed",
        "_on_idle",
        "_queue",
        "waiting_bytes",
    )

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
