"""Rows that are on their way through an async operator, and the calls made for them."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any

from aiomailbox.operators.async_io.identity import Identity
from aiomailbox.operators.async_io.segment import Segment
from aiomailbox.operators.core.on_error import DeadLetter
from aiomailbox.records.run import Run

__all__ = ["Call", "Entry", "Worker"]


class Entry:
    """One row, from its arrival until its result has been emitted.

    Attributes:
        value: The record, or what of it the function is called with.
        timestamp: Its event time in milliseconds, as its run carried it, or None.
        done: Whether it has been decided what comes out.
        result: What the function returned; meaningless while not ``done``.
        dropped: Whether nothing comes out on the main output.
        letter: What goes to the side output of dead letters, or None.
        segment: The stretch between two watermarks that it belongs to, if order is
            kept by segments.
        key: Its key, where order is kept by key.
        cache_key: The key of its result in the cache, if it makes the call itself.
        identity: Which call it means, where records have ids.
        attempts: Attempts that have ended without an outcome.
        run: The run that has the whole record, where ``value`` is a part of it, or None.
        place: Where in that run; meaningless without one.
    """

    __slots__ = (
        "attempts",
        "cache_key",
        "done",
        "dropped",
        "identity",
        "key",
        "letter",
        "place",
        "result",
        "run",
        "segment",
        "timestamp",
        "value",
    )

    segment: Segment
    place: int

    def __init__(self, value: Any, timestamp: int | None, attempts: int = 0) -> None:
        self.value: Any = value
        self.timestamp: int | None = timestamp
        self.done: bool = False
        self.dropped: bool = False
        self.result: Any = None
        self.letter: DeadLetter | None = None
        self.key: Hashable = None
        self.cache_key: tuple[Hashable] | None = None
        self.identity: Identity | None = None
        self.attempts: int = attempts
        self.run: Run | None = None

    @property
    def record(self) -> Any:
        """The whole record."""
        if self.run is None:
            return self.value
        return self.run.slice(self.place, self.place + 1).values[0]


class Worker:
    """A coroutine that makes one call after the other.

    Attributes:
        task: The task it runs in.
        call: The call that it makes, or None.
        abandoned: Whether the call it makes has been given up by others: whatever
            comes of it is ignored.
    """

    __slots__ = ("abandoned", "call", "task")

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.call: Call | None = None
        self.abandoned: bool = False


class Call:
    """One call of the user's function: all its attempts, for one row or a batch.

    Attributes:
        entries: The rows that still need a result.
        attempts: Attempts begun.
        begun_s: When the last one began, by the job's monotonic clock.
        is_leasing: Whether it waits for its limit.
        worker: Makes the current attempt; None between attempts.
        timer: The current attempt's timeout, or the wait before the next one.
        deadline: The timer of all attempts together.
        deadline_s: The time at which it fires, by the job's monotonic clock.
        settled: Whether all rows have a result or have failed.
        span: Its span in a trace, None without one.
    """

    __slots__ = (
        "attempts",
        "begun_s",
        "deadline",
        "deadline_s",
        "entries",
        "is_leasing",
        "settled",
        "span",
        "timer",
        "worker",
    )

    def __init__(self, entries: list[Entry]) -> None:
        self.entries: list[Entry] = entries
        # Rows of a batch may have been in others before: none gets fewer than it may.
        self.attempts: int = entries[0].attempts
        if len(entries) > 1:
            self.attempts = min(entry.attempts for entry in entries)
        self.begun_s: float = 0.0
        self.is_leasing: bool = False
        self.worker: Worker | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.deadline: asyncio.TimerHandle | None = None
        self.deadline_s: float = 0.0
        self.settled: bool = False
        self.span: Any = None

    def cancel_timer(self) -> None:
        """Stop the timeout, or the wait before the next attempt."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def settle(self) -> None:
        """End the call: no timer of it fires any more."""
        self.settled = True
        self.cancel_timer()
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
