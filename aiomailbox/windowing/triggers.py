"""The triggers that come with the library."""

from __future__ import annotations

from collections.abc import Callable
from operator import add
from typing import Any, Final

from aiomailbox.errors import WrongTypeError
from aiomailbox.operators.core.callables import check_sync_function
from aiomailbox.policies.arguments import check_count
from aiomailbox.records.elements import MAX_TIMESTAMP
from aiomailbox.state.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from aiomailbox.windowing.time_window import Window
from aiomailbox.windowing.trigger import (
    Trigger,
    TriggerContext,
    TriggerResult,
    check_result,
)

_CONTINUE: Final = TriggerResult.CONTINUE
_FIRE: Final = TriggerResult.FIRE


class EventTimeTrigger(Trigger):
    """Fires when the watermark passes the window's end, and for each late record.

    Concept:
        Flink, ``EventTimeTrigger``.
    """

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Fire if the window has ended, otherwise register a timer for its end."""
        end = window.max_timestamp
        if end <= context.current_watermark:
            return _FIRE
        context.register_event_time_timer(end)
        return _CONTINUE

    def on_event_time(
        self, timestamp: int, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Fire at the window's end."""
        return _FIRE if timestamp == window.max_timestamp else _CONTINUE

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        """Register a timer for the end of the merged window."""
        if window.max_timestamp > context.current_watermark:
            context.register_event_time_timer(window.max_timestamp)

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Delete the timer."""
        context.delete_event_time_timer(window.max_timestamp)


class ProcessingTimeTrigger(Trigger):
    """Fires when wall-clock time passes the window's end.

    Concept:
        Flink, ``ProcessingTimeTrigger``.
    """

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Register a timer for the window's end."""
        context.register_processing_time_timer(window.max_timestamp)
        return _CONTINUE

    def on_processing_time(
        self, timestamp: int, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Fire."""
        return _FIRE

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        """Register a timer for the end of the merged window."""
        if window.max_timestamp > context.current_processing_time():
            context.register_processing_time_timer(window.max_timestamp)

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Delete the timer."""
        context.delete_processing_time_timer(window.max_timestamp)


class CountTrigger(Trigger):
    """Fires for every ``count``-th record of a window.

    What is left below ``count`` when the window ends is never emitted.

    Args:
        count: At least 1.

    Concept:
        Flink, ``CountTrigger``.
    """

    _SEEN: Final = ReducingStateDescriptor("trigger-count", add)

    def __init__(self, count: int) -> None:
        self.count: int = check_count(count, "count")

    @classmethod
    def of(cls, count: int) -> CountTrigger:
        """Return a trigger that fires for every ``count``-th record."""
        return cls(count)

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Count the record, and fire when the count is reached."""
        seen = context.get_reducing(self._SEEN)
        seen.add(1)
        if (seen.get() or 0) >= self.count:
            seen.clear()
            return _FIRE
        return _CONTINUE

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        """Add up the counts."""
        context.merge_state(self._SEEN)

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Clear the count."""
        context.get_reducing(self._SEEN).clear()


class PurgingTrigger(Trigger):
    """Purges the contents of a window whenever the inner trigger fires.

    Args:
        inner: The trigger that decides when.

    Concept:
        Flink, ``PurgingTrigger``.
    """

    def __init__(self, inner: Trigger) -> None:
        if not isinstance(inner, Trigger):
            raise WrongTypeError(
                "inner", f"{inner!r} is not a trigger", "Give e.g. CountTrigger(10)."
            )
        self.inner = inner

    @classmethod
    def of(cls, inner: Trigger) -> PurgingTrigger:
        """Return a trigger that fires as ``inner`` does, and purges."""
        return cls(inner)

    @property
    def can_merge(self) -> bool:
        """Whether the inner trigger can merge."""
        return self.inner.can_merge

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Do what the inner trigger does, and purge with it."""
        result = self.inner.on_element(value, timestamp, window, context)
        check_result(result, self.inner, "on_element", value)
        return _purging(result)

    def on_event_time(
        self, timestamp: int, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Do what the inner trigger does, and purge with it."""
        result = self.inner.on_event_time(timestamp, window, context)
        check_result(result, self.inner, "on_event_time", window)
        return _purging(result)

    def on_processing_time(
        self, timestamp: int, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Do what the inner trigger does, and purge with it."""
        result = self.inner.on_processing_time(timestamp, window, context)
        check_result(result, self.inner, "on_processing_time", window)
        return _purging(result)

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        """Do what the inner trigger does."""
        self.inner.on_merge(window, context)

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Do what the inner trigger does."""
        self.inner.clear(window, context)


class NeverTrigger(Trigger):
    """Never fires: the default of global windows.

    Concept:
        Flink, ``GlobalWindows.NeverTrigger``.
    """

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Do nothing."""
        return _CONTINUE

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        """Do nothing."""


class EndOfStreamTrigger(Trigger):
    """Fires once, when event time ends.

    Concept:
        Flink, ``GlobalWindows.EndOfStreamTrigger``.
    """

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Register a timer for the end of event time."""
        context.register_event_time_timer(MAX_TIMESTAMP)
        return _CONTINUE

    def on_event_time(
        self, timestamp: int, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Fire at the end of event time."""
        return _FIRE if timestamp == MAX_TIMESTAMP else _CONTINUE

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        """Register a timer for the end of event time."""
        context.register_event_time_timer(MAX_TIMESTAMP)

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Delete the timer."""
        context.delete_event_time_timer(MAX_TIMESTAMP)


class DeltaTrigger(Trigger):
    """Fires when a record differs by more than a threshold from the last that fired.

    Args:
        threshold: The trigger fires above this distance.
        delta: ``(last, record) -> distance``.

    Concept:
        Flink, ``DeltaTrigger``.
    """

    _LAST: Final = ValueStateDescriptor("trigger-last")

    def __init__(self, threshold: float, delta: Callable[[Any, Any], Any]) -> None:
        self.threshold = threshold
        self.delta: Callable[..., Any] = check_sync_function(delta, "delta", arity=2)

    @classmethod
    def of(cls, threshold: float, delta: Callable[[Any, Any], Any]) -> DeltaTrigger:
        """Return a trigger that fires at distances above ``threshold``."""
        return cls(threshold, delta)

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Fire if the record is far from the last one."""
        last = context.get_value(self._LAST)
        previous = last.value()
        if previous is None:
            last.update(value)
            return _CONTINUE
        if self.delta(previous, value) > self.threshold:
            last.update(value)
            return _FIRE
        return _CONTINUE

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Clear the last record."""
        context.get_value(self._LAST).clear()


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result is _FIRE else result
