"""A clock that advances only when a test advances it."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from aiomailbox.errors import InvalidArgumentError

__all__ = ["DEFAULT_START", "ManualClock"]

DEFAULT_START = datetime(2013, 1, 1, tzinfo=UTC)

# Far below a millisecond, far above the rounding of sums of seconds: a timer for a
# whole millisecond finds exactly that millisecond on the clock when it fires.
_ROUNDING_MS = 1e-6


class ManualClock:
    """A `Clock` whose two times stand still until `advance` or `advance_to` is called.

    ``monotonic`` starts at 0.0 seconds, ``now_ms`` at ``start``; both move together.

    Args:
        start: The wall-clock time at the start, an aware datetime.

    Raises:
        InvalidArgumentError: If ``start`` has no time zone.

    Example:
        >>> clock = ManualClock()
        >>> clock.advance(1.5)
        >>> clock.monotonic(), clock.now_ms()
        (1.5, 1356998401500)
    """

    __slots__ = ("_monotonic", "_start_ms")

    def __init__(self, start: datetime = DEFAULT_START) -> None:
        if start.tzinfo is None:
            raise InvalidArgumentError(
                "start", "it is a naive datetime", "Give one with a time zone, as UTC."
            )
        self._start_ms = round(start.timestamp() * 1000)
        self._monotonic = 0.0

    def now_ms(self) -> int:
        """Return wall-clock time, integer milliseconds since the epoch."""
        elapsed_ms = self._monotonic * 1000
        return self._start_ms + math.floor(elapsed_ms + _ROUNDING_MS)

    def monotonic(self) -> float:
        """Return the seconds advanced since the clock was made."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both times forward.

        Args:
            seconds: How far, at least 0.

        Raises:
            InvalidArgumentError: If ``seconds`` is negative.
        """
        if not seconds >= 0:
            raise InvalidArgumentError(
                "seconds", f"{seconds!r} would turn time back", "Give 0 or more."
            )
        self._monotonic += seconds

    def advance_to(self, now_ms: int) -> None:
        """Move both times forward to a wall-clock time.

        Args:
            now_ms: Milliseconds since the epoch, not before ``now_ms()``.

        Raises:
            InvalidArgumentError: If ``now_ms`` has passed already.
        """
        if now_ms < self.now_ms():
            raise InvalidArgumentError(
                "now_ms", f"{now_ms} is before {self.now_ms()}", "Time only advances."
            )
        elapsed = (now_ms - self._start_ms) / 1000
        self._monotonic = max(self._monotonic, elapsed)
