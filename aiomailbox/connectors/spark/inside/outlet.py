"""From the loop in a Spark worker to the thread that Spark asks for batches."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Final

import pyarrow as pa

from aiomailbox.availability import Availability

__all__ = ["Outlet"]

# Enough for Spark to be busy while a slice is processed, little enough to hold.
_BATCHES_MAX: Final = 8


class Outlet:
    """Hands batches from an event loop to another thread, a bounded number ahead.

    Offering never waits; the producer checks ``room`` before its next input.

    Args:
        loop: The loop that offers.
        batches_max: How many may wait before there is no room.

    Attributes:
        room: Available while there is room; belongs to the loop.
        offered: How many batches were offered.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, batches_max: int = _BATCHES_MAX
    ) -> None:
        self.room: Availability = Availability(available=True)
        self.offered: int = 0
        self._loop = loop
        self._batches_max = batches_max
        self._batches: deque[pa.RecordBatch] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._abandoned = False
        self._error: BaseException | None = None

    @property
    def is_empty(self) -> bool:
        """Whether everything was taken."""
        return not self._batches

    def offer(self, batch: pa.RecordBatch) -> None:
        """Let the thread take a batch; on the loop. One without rows is dropped."""
        if self._abandoned or not batch.num_rows:
            return
        self.offered += 1
        with self._changed:
            self._batches.append(batch)
            if len(self._batches) >= self._batches_max:
                self.room.reset()
            self._changed.notify()

    def end(self, error: BaseException | None = None) -> None:
        """Say that nothing follows, or why; from any thread. The first call counts."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
            self._changed.notify()

    def take(self) -> pa.RecordBatch | None:
        """Return the next batch, waiting for it; None after the last one.

        Raises:
            BaseException: What `end` was given, after all batches before it.
        """
        with self._changed:
            while not self._batches and not self._ended:
                self._changed.wait()
            if not self._batches:
                if self._error is not None:
                    raise self._error
                return None
            batch = self._batches.popleft()
            if not self._ended and len(self._batches) == self._batches_max // 2:
                self._loop.call_soon_threadsafe(self._make_room)
        return batch

    def abandon(self) -> None:
        """Drop everything, also what still comes; from the thread that takes."""
        with self._changed:
            self._abandoned = True
            self._batches.clear()
            if not self._ended:
                self._loop.call_soon_threadsafe(self._make_room)

    def _make_room(self) -> None:
        if len(self._batches) < self._batches_max and not self.room.available:
            self.room.set_available()
