"""The triggers that come with the library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from enum import Enum
from operator import add
from typing import Any, ClassVar, Final, Self

from aiomailbox.durations import duration_text, pipeline_ms
from aiomailbox.errors import BadResultError
from aiomailbox.eventtime.timers import InternalTimerService
from aiomailbox.operators.core.user_code import check_sync_function, describe, shortened
from aiomailbox.records.events import MAX_TIMESTAMP, MIN_TIMESTAMP
from aiomailbox.signatures import check_count, check_type
from aiomailbox.state.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from aiomailbox.state.store import ReducingState, ValueState
from aiomailbox.state.table_store import KeyedStateStore
from aiomailbox.typevars import ValueT
from aiomailbox.windowing.contents import (
    UndoableReducing,
    UndoableTimers,
    UndoableValue,
    UndoLog,
)
from aiomailbox.windowing.time_window import Window

# The contract of triggers: they decide when a window's contents are emitted.


class TriggerResult(Enum):
    """The action on a window's contents: emit, purge, both, or neither."""

    CONTINUE = "continue"
    FIRE = "fire"
    PURGE = "purge"
    FIRE_AND_PURGE = "fire_and_purge"

    @property
    def is_fire(self) -> bool:
        """Whether the contents are emitted."""
        return self in {TriggerResult.FIRE, TriggerResult.FIRE_AND_PURGE}

    @property
    def is_purge(self) -> bool:
        """Whether the contents are purged."""
        return self in {TriggerResult.PURGE, TriggerResult.FIRE_AND_PURGE}


class TriggerContext:
    """The time, timers and state of a trigger, for the current key and window.

    Args:
        store: The operator's keyed state.
        timers: Its timers.
        log: Where changes of state are noted, so that they can be undone; or None.

    Attributes:
        key: The current key.
        window: The current window.
        merged: In ``on_merge``, the windows that the current one replaces.

    Concept:
        Flink, ``Trigger.TriggerContext`` and ``Trigger.OnMergeContext``.
    """

    __slots__ = ("_bare", "_log", "_store", "_timers", "key", "merged", "window")

    def __init__(
        self,
        store: KeyedStateStore,
        timers: InternalTimerService | UndoableTimers,
        log: UndoLog | None = None,
    ) -> None:
        self._store = store
        self._timers = timers
        self._log = log
        # By name descriptors, and the same without a default.
        self._bare: dict[str, tuple[ValueStateDescriptor, ValueStateDescriptor]] = {}
        self.key: Any = None
        self.window: Window
        self.merged: list[Any] = []

    @property
    def current_watermark(self) -> int:
        """The current watermark; `MIN_TIMESTAMP` before the first."""
        return self._timers.current_watermark

    def current_processing_time(self) -> int:
        """Return wall-clock time, milliseconds since the epoch."""
        return self._timers.current_processing_time()

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        """Call `Trigger.on_event_time` when the watermark reaches ``timestamp_ms``."""
        self._timers.register_event_time_timer(self.key, self.window, timestamp_ms)

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        """Delete that timer."""
        self._timers.delete_event_time_timer(self.key, self.window, timestamp_ms)

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        """Call `Trigger.on_processing_time` when wall-clock time has passed it."""
        self._timers.register_processing_time_timer(self.key, self.window, timestamp_ms)

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        """Delete that timer."""
        self._timers.delete_processing_time_timer(self.key, self.window, timestamp_ms)

    def get_value(self, descriptor: ValueStateDescriptor[ValueT]) -> ValueState[ValueT]:
        """Return a value that is kept for the key and window."""
        if self._log is None:
            return self._store.get_value(descriptor, self.window)
        known = self._bare.get(descriptor.name)
        if known is None or known[0] is not descriptor:
            known = descriptor, replace(descriptor, default=None)
            self._bare[descriptor.name] = known
        state = self._store.get_value(known[1], self.window)
        return UndoableValue(state, descriptor.default, self._log)

    def get_reducing(
        self, descriptor: ReducingStateDescriptor[ValueT]
    ) -> ReducingState[ValueT]:
        """Return a reduced value that is kept for the key and window."""
        state = self._store.get_reducing(descriptor, self.window)
        return state if self._log is None else UndoableReducing(state, self._log)

    def merge_state(self, descriptor: ReducingStateDescriptor) -> None:
        """In `Trigger.on_merge`, merge this state of the merged windows."""
        if self._log is not None:
            for window in (self.window, *self.merged):
                state = self._store.get_reducing(descriptor, window)
                UndoableReducing(state, self._log).note()
        self._store.merge_namespaces(descriptor, self.window, self.merged)


class Trigger(ABC):
    """Decides when the contents of windows are emitted and purged.

    One trigger serves all keys and windows, and keeps its state through the
    context. Its methods are not ``async def``.

    Concept:
        Flink, ``Trigger``.

    Example:
        >>> class EveryRecord(Trigger):
        ...     def on_element(self, value, timestamp, window, context):
        ...         return TriggerResult.FIRE
        >>> EveryRecord().can_merge
        False
    """

    @abstractmethod
    def on_element(
        self,
        value: Any,
        timestamp: int | None,
        window: Window,
        context: TriggerContext,
        /,
    ) -> TriggerResult:
        """Handle a record that was added to the window."""

    def on_event_time(
        self, timestamp: int, window: Window, context: TriggerContext, /
    ) -> TriggerResult:
        """Handle a timer that the watermark has reached."""
        return TriggerResult.CONTINUE

    def on_processing_time(
        self, timestamp: int, window: Window, context: TriggerContext, /
    ) -> TriggerResult:
        """Handle a timer that wall-clock time has passed."""
        return TriggerResult.CONTINUE

    def __str__(self) -> str:
        """Return its class and its settings, for `explain`."""
        return type(self).__name__

    @property
    def can_merge(self) -> bool:
        """Whether windows with this trigger can be merged (see `on_merge`)."""
        return type(self).on_merge is not Trigger.on_merge

    def on_merge(  # noqa: B027 -- only triggers that can merge have it
        self, window: Window, context: TriggerContext, /
    ) -> None:
        """Handle the merge of several windows into ``window``.

        Their timers and state are removed by `clear`; ``on_element`` follows.
        """

    def clear(  # noqa: B027 -- not all triggers keep something
        self, window: Window, context: TriggerContext, /
    ) -> None:
        """Delete the timers and clear the state of the window."""


def check_result(result: object, trigger: Trigger, method: str, about: object) -> None:
    """Reject the result of a trigger if it is not a `TriggerResult`.

    Args:
        result: What it returned.
        trigger: The trigger.
        method: The method that returned it.
        about: The record, or for timers the window.

    Raises:
        BadResultError: Naming the method, its line, and the record or window.
    """
    if type(result) is TriggerResult:
        return
    what = "window" if isinstance(about, Window) else "record"
    raise BadResultError(
        describe(getattr(trigger, method)),
        f"{shortened(result)} for the {what} {shortened(about)}",
        "Return a member of am.TriggerResult, e.g. TriggerResult.CONTINUE.",
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
        context.delete_processing_time_timer(window.max_timestamp)


class CountTrigger(Trigger):
    """Fires for every ``count``-th record of a window.

    The window never emits a rest below ``count`` at its end: a warning says so.

    Args:
        count: At least 1.

    Concept:
        Flink, ``CountTrigger``.
    """

    SEEN: Final[ReducingStateDescriptor[int]] = ReducingStateDescriptor(
        "trigger-count", add
    )
    """How many records have come to a window since it has fired; none for 0."""

    def __init__(self, count: int) -> None:
        self.count: int = check_count(count, "count")

    @classmethod
    def of(cls, count: int) -> CountTrigger:
        """Return a trigger that fires for every ``count``-th record."""
        return cls(count)

    def __str__(self) -> str:
        return f"{super().__str__()} of {self.count}"

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Count the record, and fire when the count is reached."""
        seen = context.get_reducing(self.SEEN)
        seen.add(1)
        if (seen.get() or 0) >= self.count:
            seen.clear()
            return _FIRE
        return _CONTINUE

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        """Add up the counts."""
        context.merge_state(self.SEEN)

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Clear the count."""
        context.get_reducing(self.SEEN).clear()


class _WrappingTrigger(Trigger):
    """The base of triggers that add something to what another one decides."""

    def __init__(self, inner: Trigger) -> None:
        check_type(inner, Trigger, "inner", "Give e.g. CountTrigger(10).", "a trigger")
        self.inner: Trigger = inner

    def on_event_time(
        self, timestamp: int, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Ask the inner trigger, and add to what it decides."""
        result = self.inner.on_event_time(timestamp, window, context)
        check_result(result, self.inner, "on_event_time", window)
        return self._after_timer(result, window, context)

    def on_processing_time(
        self, timestamp: int, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Ask the inner trigger, and add to what it decides."""
        result = self.inner.on_processing_time(timestamp, window, context)
        check_result(result, self.inner, "on_processing_time", window)
        return self._after_timer(result, window, context)

    @abstractmethod
    def _after_timer(
        self, result: TriggerResult, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Return what becomes of the inner trigger's decision about a timer."""


class PurgingTrigger(_WrappingTrigger):
    """Purges the contents of a window whenever the inner trigger fires.

    Args:
        inner: The trigger that decides when.

    Concept:
        Flink, ``PurgingTrigger``.
    """

    @classmethod
    def of(cls, inner: Trigger) -> PurgingTrigger:
        """Return a trigger that fires as ``inner`` does, and purges."""
        return cls(inner)

    def __str__(self) -> str:
        return f"{super().__str__()} of {self.inner}"

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

    def _after_timer(
        self, result: TriggerResult, window: Window, context: TriggerContext
    ) -> TriggerResult:
        return _purging(result)

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        """Do what the inner trigger does."""
        self.inner.on_merge(window, context)

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Do what the inner trigger does."""
        self.inner.clear(window, context)


class ProcessingTimeoutTrigger(_WrappingTrigger):
    """Fires as another trigger does, and when wall-clock time has passed a timeout.

    The timeout begins with the first record after a firing, so the last records of a
    window that does not fill up are not kept back forever. When it fires, the contents
    are purged if the inner trigger purges then.

    Args:
        inner: The trigger that decides otherwise.
        timeout_ms: Milliseconds, at least 1; `of` takes a timedelta.
        reset_timer_on_new_record: Whether each record begins the timeout anew.
        clear_on_timeout: Whether the inner trigger forgets its state at the timeout.

    Raises:
        InvalidArgumentError: If the timeout is shorter.
        WrongTypeError: If ``inner`` is no trigger.

    Concept:
        Flink, ``ProcessingTimeoutTrigger``.

    Example:
        >>> full = CountTrigger.of(100)
        >>> late = ProcessingTimeoutTrigger.of(full, timedelta(seconds=5))
        >>> late.timeout_ms, PurgingTrigger.of(late).can_merge
        (5000, False)
    """

    _DUE: Final = ValueStateDescriptor("trigger-timeout")

    def __init__(
        self,
        inner: Trigger,
        timeout_ms: int,
        *,
        reset_timer_on_new_record: bool = False,
        clear_on_timeout: bool = True,
    ) -> None:
        super().__init__(inner)
        self.timeout_ms: int = check_count(timeout_ms, "timeout")
        self.reset_timer_on_new_record = reset_timer_on_new_record
        self.clear_on_timeout = clear_on_timeout

    @classmethod
    def of(
        cls,
        inner: Trigger,
        timeout: timedelta,
        *,
        reset_timer_on_new_record: bool = False,
        clear_on_timeout: bool = True,
    ) -> Self:
        """Return a trigger that fires as ``inner`` does, or after ``timeout``."""
        return cls(
            inner,
            pipeline_ms(timeout, "timeout"),
            reset_timer_on_new_record=reset_timer_on_new_record,
            clear_on_timeout=clear_on_timeout,
        )

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, context: TriggerContext
    ) -> TriggerResult:
        """Do what the inner trigger does; if it does not fire, begin the timeout."""
        result = self.inner.on_element(value, timestamp, window, context)
        check_result(result, self.inner, "on_element", value)
        if result.is_fire:
            self.clear(window, context)
            return result
        state = context.get_value(self._DUE)
        due = state.value()
        if due is not None and self.reset_timer_on_new_record:
            context.delete_processing_time_timer(due)
            due = None
        if due is None:
            due = context.current_processing_time() + self.timeout_ms
            state.update(due)
            context.register_processing_time_timer(due)
        return result

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Delete the timer, and what the inner trigger keeps."""
        state = context.get_value(self._DUE)
        due = state.value()
        if due is not None:
            context.delete_processing_time_timer(due)
            state.clear()
        self.inner.clear(window, context)

    def _after_timer(
        self, result: TriggerResult, window: Window, context: TriggerContext
    ) -> TriggerResult:
        if self.clear_on_timeout:
            self.clear(window, context)
        return TriggerResult.FIRE_AND_PURGE if result.is_purge else _FIRE


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

    def __str__(self) -> str:
        return f"{super().__str__()} of {self.threshold} by {describe(self.delta)}"

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


def innermost(trigger: Trigger) -> Trigger:
    """Return the trigger that others wrap, which only add to what it decides."""
    while isinstance(trigger, _WrappingTrigger):
        trigger = trigger.inner
    return trigger


def cuts_off_rest(trigger: Trigger) -> bool:
    """Say whether a trigger fires for full counts only, and `CountTrigger.SEEN` has the rest."""
    while isinstance(trigger, _WrappingTrigger):
        if (
            isinstance(trigger, ProcessingTimeoutTrigger)
            and not trigger.clear_on_timeout
        ):
            return False
        trigger = trigger.inner
    return isinstance(trigger, CountTrigger)


def needs_live_clock(trigger: Trigger) -> bool:
    """Say whether a trigger of this library waits for wall-clock time."""
    while isinstance(trigger, PurgingTrigger):
        trigger = trigger.inner
    return isinstance(
        trigger,
        ProcessingTimeTrigger
        | ContinuousProcessingTimeTrigger
        | ProcessingTimeoutTrigger,
    )


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result is _FIRE else result


# Triggers that fire at regular times.


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
    def of(cls, interval: timedelta) -> Self:
        """Return a trigger that fires every ``interval``."""
        return cls(pipeline_ms(interval, "interval"))

    def __str__(self) -> str:
        return f"{super().__str__()} of {duration_text(self.interval_ms)}"

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
        >>> ContinuousProcessingTimeTrigger.of(timedelta(seconds=5)).interval_ms
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
