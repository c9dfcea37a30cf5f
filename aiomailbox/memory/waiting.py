"""Those who wait for one segment of a local pool, served in the order they came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from aiomailbox.errors import PoolDestroyedError
from aiomailbox.memory.segment import MemorySegment

__all__ = ["BufferListener", "SegmentWaiter"]


class BufferListener(Protocol):
    """Someone who wants the next idle segment of a local pool, once.

    Concept:
        Flink, ``BufferListener``.
    """

    def on_buffer_available(self, segment: MemorySegment) -> bool:
        """Take the segment, or return False to leave it to the next in line."""
        ...

    def on_pool_destroyed(self) -> None:
        """Learn that no segment will come."""
        ...


class SegmentWaiter:
    """A task that awaits a segment; a listener with a future of its own.

    Args:
        future: Completed with the segment; belongs to this waiter alone.
        on_granted: Called when a segment is taken, before the task runs again.
        owner: The pool's owner, for the error message.
    """

    __slots__ = ("_on_granted", "_owner", "future")

    def __init__(
        self,
        future: asyncio.Future[MemorySegment],
        on_granted: Callable[[], None],
        owner: str,
    ) -> None:
        self.future = future
        self._on_granted = on_granted
        self._owner = owner

    def on_buffer_available(self, segment: MemorySegment) -> bool:
        """Take the segment unless the task was cancelled meanwhile."""
        if self.future.done():
            return False
        self._on_granted()
        self.future.set_result(segment)
        return True

    def on_pool_destroyed(self) -> None:
        """Fail the waiting task."""
        if not self.future.done():
            self.future.set_exception(
                PoolDestroyedError(f"the buffer pool of {self._owner!r} was destroyed")
            )
