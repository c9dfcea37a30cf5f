"""The only reader of a clock: everything else is given one."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol, cast


class Clock(Protocol):
    """Where times come from.

    ``now_ms`` is wall-clock time for people and processing-time windows;
    ``monotonic`` is for durations and is the time base of the event loop that the
    job runs on, so that ``loop.call_at(clock.monotonic() + delay)`` is right.
    """

    def now_ms(self) -> int:
        """Return wall-clock time, integer milliseconds since the epoch."""

    def monotonic(self) -> float:
        """Return a time that never goes back, in seconds from any origin."""


class SystemClock:
    """The machine's clock.

    Example:
        >>> SystemClock().now_ms() > 1_600_000_000_000
        True
    """

    __slots__ = ()

    def now_ms(self) -> int:
        """Return wall-clock time, integer milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    # As it is: each slice of each task reads it, and a frame around it costs more than it.
    monotonic = staticmethod(time.monotonic)


def clock_of(loop: asyncio.AbstractEventLoop) -> Clock:
    """Return the clock that fits a loop: the loop's own, else the machine's.

    A virtual-time loop (`aiomailbox.testing.VirtualTimeLoop`) carries a ``clock``
    attribute whose times move with the loop's.
    """
    return cast("Clock", getattr(loop, "clock", None) or SystemClock())
