"""Waiters for one segment of a local pool, served in the order they came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from aiomailbox.availability import Availability
from aiomailbox.errors import BufferTimeoutError, PoolDestroyedError
from aiomailbox.memory.segment import MemorySegment

__all__ = ["BufferListener", "GatherQueue", "SegmentWaiter"]


class BufferListener(Protocol):
    """A waiter for the next idle segment of a local pool, notified once.

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
        # Cancelled and not removed yet: the next in line gets it in the same turn.
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


class GatherQueue:
    """Tasks that gather several segments while others give them back.

    Each gathers synchronously at the moment of availability, oldest first, so that
    no later request overtakes it in between.

    Args:
        availability: Turns true when there may be something to gather.
    """

    __slots__ = ("_availability", "_futures")

    def __init__(self, availability: Availability) -> None:
        self._availability = availability
        # A dict as a set that remembers the order of waiting.
        self._futures: dict[asyncio.Future[None], None] = {}

    async def wait(
        self, gather: Callable[[], bool], timeout_s: float, problem: str
    ) -> None:
        """Call ``gather`` whenever available, until it returns True.

        Args:
            gather: Takes what there is and says whether that is enough.
            timeout_s: How long to wait, in seconds.
            problem: What to say if that was too short.

        Raises:
            BufferTimeoutError: If the time is over.
            PoolDestroyedError: If `fail` is called with it.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def resume() -> None:
            # The wait may have ended in the same turn in which something became free.
            if done.done():
                return
            if gather():
                done.set_result(None)
            else:
                self._availability.on_available(resume)

        self._futures[done] = None
        self._availability.on_available(resume)
        try:
            async with asyncio.timeout(timeout_s):
                await done
        except TimeoutError as error:
            raise BufferTimeoutError(
                f"timeout: {problem} in {timeout_s} s. Give the network buffer pool "
                "more segments, or raise request_timeout_s."
            ) from error
        finally:
            # Or each wait that timed out would leave its callback at the pool.
            self._availability.discard(resume)
            del self._futures[done]

    def fail(self, error: PoolDestroyedError) -> None:
        """Fail all waiters."""
        for future in self._futures:
            if not future.done():
                future.set_exception(error)
