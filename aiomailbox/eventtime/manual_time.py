"""Processing time that is set by hand, for tests of operators."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable

from aiomailbox.errors import IllegalStateError
from aiomailbox.eventtime.processing_time import Pending, ProcessingTimeCallback


class ManualTimer:
    """A registration with a `ManualProcessingTimeService`."""

    __slots__ = ("callback", "cancelled", "done", "fixed_delay", "period_ms")

    def __init__(
        self, callback: ProcessingTimeCallback, period_ms: int, *, fixed_delay: bool
    ) -> None:
        self.callback: ProcessingTimeCallback = callback
        self.period_ms: int = period_ms
        self.fixed_delay: bool = fixed_delay
        self.done: bool = False
        self.cancelled: bool = False

    def cancel(self) -> bool:
        """Make sure that the callback does not start (again)."""
        if self.done:
            return False
        self.done = self.cancelled = True
        return True


class ManualProcessingTimeService:
    """A `ProcessingTimeService` whose time moves only in `set_current_time`.

    Concept:
        Flink, ``TestProcessingTimeService``.

    Example:
        >>> service = ManualProcessingTimeService()
        >>> _ = service.register_timer(10, lambda t: print("fired", t))
        >>> service.set_current_time(9)
        >>> service.set_current_time(12)
        fired 10
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._quiesced = False
        self._sequence = 0
        self._heap: list[tuple[int, int, ManualTimer]] = []

    def current_processing_time(self) -> int:
        """Return the time that was set last."""
        return self._now_ms

    def set_current_time(self, now_ms: int) -> None:
        """Move time and run what is due, in order.

        Raises:
            IllegalStateError: If a callback must be awaited: use `advance_to`.
        """
        pending = self._run_due(now_ms)
        if pending is not None:
            raise IllegalStateError(
                "a callback must be awaited. Use `await advance_to(...)` instead."
            )

    async def advance_to(self, now_ms: int) -> None:
        """Move time and run what is due, in order, awaiting what must be awaited."""
        while (pending := self._run_due(now_ms)) is not None:
            await pending

    def register_timer(
        self, timestamp_ms: int, callback: ProcessingTimeCallback
    ) -> ManualTimer:
        """Call ``callback(timestamp_ms)`` when time reaches that millisecond."""
        timer = ManualTimer(callback, 0, fixed_delay=False)
        self._push(timestamp_ms, timer)
        return timer

    def schedule_at_fixed_rate(
        self, callback: ProcessingTimeCallback, initial_delay_ms: int, period_ms: int
    ) -> ManualTimer:
        """Call ``callback`` at times that are ``period_ms`` apart."""
        timer = ManualTimer(callback, period_ms, fixed_delay=False)
        self._push(self._now_ms + initial_delay_ms, timer)
        return timer

    def schedule_with_fixed_delay(
        self, callback: ProcessingTimeCallback, initial_delay_ms: int, delay_ms: int
    ) -> ManualTimer:
        """Call ``callback`` ``delay_ms`` after each time it has ended."""
        timer = ManualTimer(callback, delay_ms, fixed_delay=True)
        self._push(self._now_ms + initial_delay_ms, timer)
        return timer

    def quiesce(self) -> Awaitable[None]:
        """Start no further callback."""
        self._quiesced = True
        for _, _, timer in self._heap:
            timer.cancel()
        return asyncio.sleep(0)

    def active_timestamps(self) -> list[int]:
        """Return the times of the timers that will still run, in order."""
        return sorted(time for time, _, timer in self._heap if not timer.done)

    def _push(self, timestamp_ms: int, timer: ManualTimer) -> None:
        if not self._quiesced:
            self._sequence += 1
            heapq.heappush(self._heap, (timestamp_ms, self._sequence, timer))

    def _run_due(self, now_ms: int) -> Pending:
        self._now_ms = now_ms
        while self._heap and self._heap[0][0] <= now_ms:
            timestamp_ms, _, timer = heapq.heappop(self._heap)
            if timer.done:
                continue
            if timer.period_ms:
                base = now_ms if timer.fixed_delay else timestamp_ms
                self._push(base + timer.period_ms, timer)
            else:
                timer.done = True
            pending = timer.callback(timestamp_ms)
            if pending is not None:
                return pending
        return None
