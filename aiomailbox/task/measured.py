"""Room in the outputs, with the time measured that operators wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiomailbox.availability import Availability
from aiomailbox.mailbox.default_action import PeriodTimer

__all__ = ["MeasuredAvailability"]


class MeasuredAvailability(Availability):
    """Another availability; waiting for it in the middle of work is measured.

    Flink's task blocks in a request for a buffer then, which is what it calls hard
    backpressure. While there is room nothing is measured, and no clock is read.

    Args:
        source: The availability.
        timer: Measures how long `wait` suspends, and how long a `waiter` is waited for.
    """

    __slots__ = ("_source", "_timer")

    def __init__(self, source: Availability, timer: PeriodTimer) -> None:
        self._source = source
        self._timer = timer
        # The base class's own; callbacks are kept by the source.
        self._callbacks = []

    @property
    def available(self) -> bool:  # type: ignore[override]
        """Whether the source is available now."""
        return self._source.available

    def on_available(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once, when the source is available."""
        self._source.on_available(callback)

    def discard(self, callback: Callable[[], None]) -> None:
        """Forget a pending callback."""
        self._source.discard(callback)

    def waiter(self) -> asyncio.Future[None]:
        """Return a fresh future of the source, and measure until it is done."""
        waiter = self._source.waiter()
        if not waiter.done():
            self._timer.mark_start()
            waiter.add_done_callback(self._on_waited)
        return waiter

    async def wait(self) -> None:
        """Suspend until available, and measure that; returns at once if it is."""
        source = self._source
        if source.available:
            return
        self._timer.mark_start()
        try:
            await source.wait()
        finally:
            self._timer.mark_end()

    def _on_waited(self, waiter: asyncio.Future[None]) -> None:
        self._timer.mark_end()
