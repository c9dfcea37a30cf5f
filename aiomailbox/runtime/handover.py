"""Where a task leaves results for the caller that pulls them; bounded in runs."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from aiomailbox.availability import Availability
from aiomailbox.records.run import Run

HANDOVER_RUNS_MAX: Final = 4


class PullHandover:
    """A bounded queue of runs between tasks and one consumer on the same loop.

    A producer that found no room waits for `writable` before its next run: with
    n producers at most ``runs_max + n`` runs are held. The consumer's pace is thereby
    the job's.

    Example:
        >>> from aiomailbox.records import ListRun
        >>> handover = PullHandover(runs_max=1)
        >>> handover.offer(ListRun([1]))
        False
        >>> handover.try_take().values
        [1]
    """

    def __init__(self, runs_max: int = HANDOVER_RUNS_MAX) -> None:
        self._runs_max = runs_max
        self._runs: deque[Run] = deque()
        self.room: Availability = Availability(available=True)
        self._filled = Availability()
        self._ended = False
        self._abandoned = False

    def offer(self, run: Run) -> bool:
        """Take the run; False says that there is no room for another one yet."""
        if self._abandoned:
            return True
        # Taken in any case: the emitter could not keep it.
        self._runs.append(run)
        if len(self._runs) >= self._runs_max:
            self.room.reset()
        self._filled.set_available()
        return self.room.available

    def writable(self) -> asyncio.Future[None]:
        """Return a fresh future that completes when there is room again."""
        return self.room.waiter()

    def try_take(self) -> Run | None:
        """Return the oldest run, or None when there is none now."""
        if not self._runs:
            return None
        run = self._runs.popleft()
        if not self._runs and not self._ended:
            self._filled.reset()
        if len(self._runs) < self._runs_max and not self.room.available:
            self.room.set_available()
        return run

    async def take(self) -> Run | None:
        """Return the oldest run, waiting for it; None after the end."""
        while True:
            run = self.try_take()
            if run is not None or self._ended:
                return run
            await self._filled.wait()

    def end(self) -> None:
        """Say that no more runs come."""
        self._ended = True
        self._filled.set_available()

    def abandon(self) -> None:
        """Drop everything, also what still comes: it is no longer pulled."""
        self._abandoned = True
        self._runs.clear()
        self.room.set_available()


class CountingHandover(PullHandover):
    """Counts the records of all runs, and keeps none: there is always room.

    Attributes:
        records: How many there were.

    Example:
        >>> from aiomailbox.records import ListRun
        >>> handover = CountingHandover()
        >>> handover.offer(ListRun([1, 2])), handover.offer(ListRun([3]))
        (True, True)
        >>> handover.records
        3
    """

    def __init__(self) -> None:
        super().__init__()
        self.records: int = 0

    def offer(self, run: Run) -> bool:
        """Count the records."""
        self.records += len(run)
        return True
