"""Warnings that may come for every record, said at most once a second."""

from __future__ import annotations

from typing import Any, Final

from aiomailbox.clock import Clock
from aiomailbox.errors import safe_repr

__all__ = ["RepeatedWarnings"]

_INTERVAL_S: Final = 1.0


class RepeatedWarnings:
    """Logs what happens again and again: at once, then the sum of each second.

    Args:
        log: A structlog logger.
        clock: Says when a second is over.

    Example:
        >>> from aiomailbox.testing import ManualClock, RecordingLog
        >>> log = RecordingLog()
        >>> warnings = RepeatedWarnings(log, ManualClock())
        >>> for number in range(1000):
        ...     warnings.add("records skipped", 1, ValueError(number))
        >>> warnings.flush()
        >>> [(fields["count"], fields["total"]) for _, _, fields in log.entries]
        [(1, 1), (999, 1000)]
    """

    __slots__ = ("_clock", "_events", "_log")

    def __init__(self, log: Any, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        # By what happens: texts of the program, so they are few.
        self._events: dict[str, _Event] = {}

    def add(self, event: str, count: int, error: BaseException) -> None:
        """Say that something happened, or that it will be said later.

        Args:
            event: What happens; one of few texts.
            count: How often it happened.
            error: Why, the first time of these.
        """
        found = self._events.get(event)
        if found is None:
            found = self._events[event] = _Event()
        if not found.count:
            # As text: an exception keeps all that was on its stack.
            found.first_error = safe_repr(error)
        found.count += count
        now = self._clock.monotonic()
        if now >= found.silent_until:
            found.silent_until = now + _INTERVAL_S
            self._say(event, found)

    def flush(self) -> None:
        """Say what was not yet said; at the end of the task."""
        for event, found in self._events.items():
            if found.count:
                self._say(event, found)

    def _say(self, event: str, found: _Event) -> None:
        found.total += found.count
        self._log.warning(
            event, count=found.count, total=found.total, first_error=found.first_error
        )
        found.count = 0


class _Event:
    __slots__ = ("count", "first_error", "silent_until", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.first_error = ""
        self.silent_until = float("-inf")
