"""The wall-clock services for operators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, Protocol

from aiomailbox.errors import UsageError

Pending = Awaitable[None] | None

# Gets the time it was registered for, in milliseconds, not the time it runs at.
ProcessingTimeCallback = Callable[[int], Pending]


class TimerHandle(Protocol):
    """One registration of a callback."""

    @property
    def done(self) -> bool:
        """Whether the callback will not start again: it ran, or was cancelled."""

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled before it ran, or before it ran again."""

    def cancel(self) -> bool:
        """Make sure that the callback does not start (again).

        Returns:
            Whether this call changed anything.
        """


class ProcessingTimeService(Protocol):
    """Wall-clock time and callbacks at points of it.

    Callbacks run in the operator's task, between its other work. After `quiesce`
    registrations are accepted and never run.

    Concept:
        Flink, ``ProcessingTimeService``.
    """

    def current_processing_time(self) -> int:
        """Return wall-clock time, integer milliseconds since the epoch."""

    def register_timer(
        self, timestamp_ms: int, callback: ProcessingTimeCallback
    ) -> TimerHandle:
        """Call ``callback(timestamp_ms)`` once that millisecond has passed."""

    def schedule_at_fixed_rate(
        self, callback: ProcessingTimeCallback, initial_delay_ms: int, period_ms: int
    ) -> TimerHandle:
        """Call ``callback`` at times that are ``period_ms`` apart, however long it runs.

        Its argument is the nominal time: exactly one period more than the last one.
        """

    def schedule_with_fixed_delay(
        self, callback: ProcessingTimeCallback, initial_delay_ms: int, delay_ms: int
    ) -> TimerHandle:
        """Call ``callback`` ``delay_ms`` after each time it has ended."""

    def quiesce(self) -> Awaitable[None]:
        """Start no further callback; awaiting waits for the one that is running."""


class NoTimers:
    """A service that tells the time and refuses timers, where none could be kept.

    Args:
        service: Tells the time.
        reason: Why, and what to do instead.
    """

    def __init__(self, service: ProcessingTimeService, reason: str) -> None:
        self._service = service
        self._reason = reason

    def current_processing_time(self) -> int:
        """Return wall-clock time, integer milliseconds since the epoch."""
        return self._service.current_processing_time()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse a timer.

        Raises:
            UsageError: Always.
        """
        raise UsageError(self._reason)

    register_timer = schedule_at_fixed_rate = schedule_with_fixed_delay = _refuse

    def quiesce(self) -> Awaitable[None]:
        """Start no further callback; awaiting waits for the one that is running."""
        return self._service.quiesce()
