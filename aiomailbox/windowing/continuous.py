"""Triggers that fire at regular times."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar, Self

from aiomailbox.durations import duration_ms
from aiomailbox.policies.arguments import check_count
from aiomailbox.records.elements import MIN_TIMESTAMP
from aiomailbox.state.descriptors import ReducingStateDescriptor
from aiomailbox.windowing.time_window import Window
from aiomailbox.windowing.trigger import Trigger, TriggerContext, TriggerResult


class _ContinuousTrigger(Trigger):
    """Keeps one planned firing per window, and plans the next one when it is due.

    Args:
        interval_ms: Milliseconds between firings, at least 1.

    Raises:
        InvalidArgumentError: If the interval is shorter.
        WrongTypeError: If it is not an int.
    """

    _next: ClassVar[ReducingStateDescriptor]

    def __init__(self, interval_ms: int) -> None:
        self.interval_ms: int = check_count(interval_ms, "interval")

    @classmethod
    def of(cls, interval: timedelta | float) -> Self:
        """Return a trigger that fires every ``interval``."""
        return cls(duration_ms(interval, "interval"))

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        """Keep the earliest of the planned firings."""
        context.merge_state(self._next)
        planned = context.get_reducing(self._next).get()
        if planned is not None:
            self._register(planned, context)

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Delete the planned firing."""
        following = context.get_reducing(self._next)
        planned = following.get()
        if planned is not None:
            self._delete(planned, context)
            following.clear()

    def _register(self, timestamp: int, context: TriggerContext) -> None:
        raise TypeError(f"{type(self).__name__} does not define _register")

    def _delete(self, timestamp: int, context: TriggerContext) -> None:
        raise TypeError(f"{type(self).__name__} does not define _delete")

    def _has_plan(self, context: TriggerContext) -> bool:
        return context.get_reducing(self._next).get() is not None

    def _plan(self, after: int, window: Window, context: TriggerContext) -> None:
        # Not after the end: there the window fires anyway.
        planned = min(after + self.interval_ms, window.max_timestamp)
        context.get_reducing(self._next).add(planned)
        self._register(planned, context)

    def _has_come(self, timestamp: int, context: TriggerContext) -> bool:
        """Return whether this is the planned firing, and clear it if so."""
        following = context.get_reducing(self._next)
        if following.get() != timestamp:
            return False
        following.clear()
        return True


class ContinuousEventTimeTrigger(_ContinuousTrigger):
    """Fires at regular event times, and at the window's end.

    The first record of a window decides from when on; records with earlier event times
    that arrive later do not bring it forward.

    Args:
        interval_ms: Milliseconds between firings, at least 1.

    Concept:
        Flink, ``ContinuousEventTimeTrigger``.
    """

    _next = ReducingStateDescriptor("trigger-next-fire", min)

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Fire if the window has ended; otherwise ensure that a firing is planned."""
        if window.max_timestamp <= context.current_watermark:
            return TriggerResult.FIRE
        context.register_event_time_timer(window.max_timestamp)
        if not self._has_plan(context):
            now = MIN_TIMESTAMP if timestamp is None else timestamp
            # Before the epoch Flink rounds up here, as Java's remainder does.
            past = now % self.interval_ms if now >= 0 else -(-now % self.interval_ms)
            self._plan(now - past, window, context)
        return TriggerResult.CONTINUE

    def on_event_time(
        self, timestamp: int, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Fire at the end and at the planned time, and plan the next."""
        if timestamp == window.max_timestamp:
            return TriggerResult.FIRE
        if not self._has_come(timestamp, context):
            return TriggerResult.CONTINUE
        self._plan(timestamp, window, context)
        return TriggerResult.FIRE

    def _register(self, timestamp: int, context: TriggerContext) -> None:
        context.register_event_time_timer(timestamp)

    def _delete(self, timestamp: int, context: TriggerContext) -> None:
        context.delete_event_time_timer(timestamp)


class ContinuousProcessingTimeTrigger(_ContinuousTrigger):
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

    _next = ReducingStateDescriptor("trigger-next-wall-clock-fire", min)

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Ensure that a firing is planned."""
        if not self._has_plan(context):
            now = context.current_processing_time()
            self._plan(now - now % self.interval_ms, window, context)
        return TriggerResult.CONTINUE

    def on_processing_time(
        self, timestamp: int, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Fire at the planned time, and plan the next until the window's end."""
        if not self._has_come(timestamp, context):
            return TriggerResult.CONTINUE
        if timestamp < window.max_timestamp:
            self._plan(timestamp, window, context)
        return TriggerResult.FIRE

    def _register(self, timestamp: int, context: TriggerContext) -> None:
        context.register_processing_time_timer(timestamp)

    def _delete(self, timestamp: int, context: TriggerContext) -> None:
        context.delete_processing_time_timer(timestamp)
