"""Small fakes of what a job provides to its operators."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from aiomailbox.availability import Availability
from aiomailbox.records.run import Run


class RecordingLog:
    """A logger that keeps its entries.

    Example:
        >>> log = RecordingLog()
        >>> log.bind(operator="map").warning("skipped", count=2)
        >>> log.entries
        [('warning', 'skipped', {'count': 2})]
    """

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, dict[str, Any]]] = []

    def bind(self, **_: Any) -> RecordingLog:
        """Return the same log."""
        return self

    def debug(self, event: str, **fields: Any) -> None:
        """Keep an entry."""
        self.entries.append(("debug", event, fields))

    def info(self, event: str, **fields: Any) -> None:
        """Keep an entry."""
        self.entries.append(("info", event, fields))

    def warning(self, event: str, **fields: Any) -> None:
        """Keep an entry."""
        self.entries.append(("warning", event, fields))

    def error(self, event: str, **fields: Any) -> None:
        """Keep an entry."""
        self.entries.append(("error", event, fields))

    def exception(self, event: str, **fields: Any) -> None:
        """Keep an entry."""
        self.entries.append(("exception", event, fields))


class FreeLimiter:
    """A `Limiter` that counts units and never waits.

    Attributes:
        leased: The sum of the weights.
        pauses_s: The pauses asked for.
    """

    def __init__(self) -> None:
        self.leased: float = 0.0
        self.pauses_s: list[float] = []

    @property
    def free(self) -> float:
        """Infinitely many units."""
        return math.inf

    async def lease(self, weight: float = 1.0) -> None:
        """Count ``weight``."""
        self.leased += weight

    def pause(self, delay_s: float) -> None:
        """Note the pause."""
        self.pauses_s.append(delay_s)


class MemoryHandover:
    """A `Handover` with room for ``runs_max`` runs; a test takes them out.

    Attributes:
        runs: What was offered and taken, in order.
    """

    def __init__(self, runs_max: int = 1) -> None:
        self.runs: list[Run] = []
        self._runs_max = runs_max
        self.room: Availability = Availability(available=True)

    def offer(self, run: Run) -> bool:
        """Take the run if there is room."""
        if len(self.runs) >= self._runs_max:
            return False
        self.runs.append(run)
        if len(self.runs) >= self._runs_max:
            self.room.reset()
        return True

    def writable(self) -> asyncio.Future[None]:
        """Return a fresh future that completes when there is room."""
        return self.room.waiter()

    def take(self) -> Run:
        """Take out the oldest run, which makes room."""
        run = self.runs.pop(0)
        self.room.set_available()
        return run
