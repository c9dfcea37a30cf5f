"""The trigger that fires at regular wall-clock times."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from aiomailbox.durations import duration_ms
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.state import ReducingStateDescriptor
from aiomailbox.windowing.time_window import Window
from aiomailbox.windowing.trigger import Trigger, TriggerContext, TriggerResult


class ContinuousProcessingTimeTrigger(Trigger):
    """Fires at regular wall-clock times, and at the window's end.

    Firings are at multiples of the interval; the first record of a window decides from
    when on.

    Args:
        interval_ms: Milliseconds between firings, at least 1.

    Raises:
        InvalidArgumentError: If the interval is shorter.

    Concept:
        Flink, ``ContinuousProcessingTimeTrigger``.

    Example:
        >>> ContinuousProcessingTimeTrigger.of(5).interval_ms
        5000
    """

    _NEXT: Final = ReducingStateDescriptor("trigger-next-wall-clock-fire", min)

    def __init__(self, interval_ms: int) -> None:
        if interval_ms < 1:
            raise InvalidArgumentError(
                "interval", f"{interval_ms} ms are less than 1 ms", "Use a longer one."
            )
        self.interval_ms = interval_ms

    @classmethod
    def of(cls, interval: timedelta | float) -> ContinuousProcessingTimeTrigger:
        """Return a trigger that fires every ``interval``."""
        return cls(duration_ms(interval, "interval"))

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """See that a firing is planned."""
        if context.get_reducing(self._NEXT).get() is None:
            now = context.current_processing_time()
            self._plan(now - now % self.interval_ms, window, context)
        return TriggerResult.CONTINUE

    def on_processing_time(
        self, timestamp: int, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Fire at the planned time, and plan the next until the window's end."""
        following = context.get_reducing(self._NEXT)
        if following.get() != timestamp:
            return TriggerResult.CONTINUE
        following.clear()
        if timestamp < window.max_timestamp:
            self._plan(timestamp, window, context)
        return TriggerResult.FIRE

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        """Keep the earliest of the planned firings."""
        context.merge_state(self._NEXT)
        planned = context.get_reducing(self._NEXT).get()
        if planned is not None:
            context.register_processing_time_timer(planned)

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Forget the planned firing."""
        following = context.get_reducing(self._NEXT)
        planned = following.get()
        if planned is not None:
            context.delete_processing_time_timer(planned)
            following.clear()

    def _plan(self, after: int, window: Window, context: TriggerContext) -> None:
        planned = min(after + self.interval_ms, window.max_timestamp)
        context.get_reducing(self._NEXT).add(planned)
        context.register_processing_time_timer(planned)
