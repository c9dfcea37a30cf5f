"""Puts rows together into batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiomailbox.operators.async_io.entry import Entry
from aiomailbox.policies.batch import Batch

__all__ = ["Gatherer"]


class Gatherer:
    """Hands over rows in lists: when there are enough, or the first waited enough.

    Args:
        batch: How many, and how long.
        submit: Takes the lists.
    """

    __slots__ = ("_rows", "_size", "_submit", "_timer", "_within_s")

    def __init__(self, batch: Batch, submit: Callable[[list[Entry]], None]) -> None:
        self._size = batch.size
        self._within_s = batch.within_s
        self._submit = submit
        self._rows: list[Entry] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, entry: Entry) -> None:
        """Take a row."""
        self._rows.append(entry)
        if len(self._rows) >= self._size:
            self.flush()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._within_s, self.flush)

    def flush(self) -> None:
        """Hand over what is there."""
        rows, self._rows = self._rows, []
        self.close()
        if rows:
            self._submit(rows)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
