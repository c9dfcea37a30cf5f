"""What has to be done to take back what one record has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiomailbox.state.snapshot import copy_content


class UndoLog:
    """Calls that undo the changes of a record, to be made backwards if it fails.

    Each change first adds its undo to the log. When nothing can fail
    any more, the log is cleared.

    Example:
        >>> log, counts = UndoLog(), {"a": 1}
        >>> log.note(counts.__setitem__, "a", counts["a"])
        >>> counts["a"] = 2
        >>> log.undo()
        >>> counts
        {'a': 1}
    """

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def note(self, undo: Callable[..., Any], *args: Any) -> None:
        """Undo with ``undo(*args)`` what is done next."""
        self._calls.append((undo, args))

    def undo(self) -> None:
        """Make all that was noted undone, the latest first."""
        while self._calls:
            undo, args = self._calls.pop()
            undo(*args)

    def clear(self) -> None:
        """Let what was done stand."""
        self._calls.clear()


class UndoableTimers:
    """Registers and deletes timers such that it can be undone.

    Args:
        timers: An `InternalTimerService`.
        log: Where it is noted.
    """

    __slots__ = ("_log", "_timers")

    def __init__(self, timers: Any, log: UndoLog) -> None:
        self._timers = timers
        self._log = log

    @property
    def current_watermark(self) -> int:
        """The watermark."""
        watermark: int = self._timers.current_watermark
        return watermark

    def current_processing_time(self) -> int:
        """Return wall-clock time."""
        now: int = self._timers.current_processing_time()
        return now

    def register_event_time_timer(self, *timer: Any) -> None:
        """Register a timer; key, namespace, timestamp."""
        timers = self._timers
        if timers.register_event_time_timer(*timer):
            self._log.note(timers.delete_event_time_timer, *timer)

    def delete_event_time_timer(self, *timer: Any) -> None:
        """Delete a timer."""
        timers = self._timers
        if timers.delete_event_time_timer(*timer):
            self._log.note(timers.register_event_time_timer, *timer)

    def register_processing_time_timer(self, *timer: Any) -> None:
        """Register a timer."""
        timers = self._timers
        if timers.register_processing_time_timer(*timer):
            self._log.note(timers.delete_processing_time_timer, *timer)

    def delete_processing_time_timer(self, *timer: Any) -> None:
        """Delete a timer."""
        timers = self._timers
        if timers.delete_processing_time_timer(*timer):
            self._log.note(timers.register_processing_time_timer, *timer)


class UndoableCell:
    """The state of a trigger for one window, a value or a reduced value.

    Args:
        state: A `ValueState` or a `ReducingState`.
        read: Its method that returns the content.
        write: Its method that sets a content where there is none.
        log: Where changes are noted.
    """

    __slots__ = ("_log", "_read", "_state", "_write")

    def __init__(
        self,
        state: Any,
        read: Callable[[], Any],
        write: Callable[[Any], None],
        log: UndoLog,
    ) -> None:
        self._state = state
        self._read = read
        self._write = write
        self._log = log

    def clear(self) -> None:
        """Forget the content."""
        self.note()
        self._state.clear()

    def note(self) -> None:
        """Note what is there."""
        self._log.note(self._put_back, copy_content(self._read()))

    def _given(self) -> Any:
        """Return what is there, and note it if it may be changed in place."""
        content = self._read()
        kept = copy_content(content)
        if kept is not content:
            self._log.note(self._put_back, kept)
        return content

    # A copy, for what is there may be changed in place next.
    def _put_back(self, content: Any) -> None:
        self._state.clear()
        if content is not None:
            self._write(content)


class UndoableValue(UndoableCell):
    """A `ValueState` of which changes can be undone.

    Args:
        state: The state without a default, which tells nothing from a value.
        default: What there is instead of nothing; each reader gets a copy.
        log: Where changes are noted.
    """

    __slots__ = ("_default",)

    def __init__(self, state: Any, default: Any, log: UndoLog) -> None:
        super().__init__(state, state.value, state.update, log)
        self._default = default

    def value(self) -> Any:
        """Return the value, or the descriptor's default."""
        value = self._given()
        return copy_content(self._default) if value is None else value

    def update(self, value: Any) -> None:
        """Replace the value; None clears it."""
        self.note()
        self._state.update(value)


class UndoableReducing(UndoableCell):
    """A `ReducingState` of which changes can be undone."""

    __slots__ = ()

    def __init__(self, state: Any, log: UndoLog) -> None:
        super().__init__(state, state.get, state.add, log)

    def get(self) -> Any:
        """Return the value, or None when nothing was added."""
        return self._given()

    def add(self, value: Any) -> None:
        """Fold ``value`` in."""
        self.note()
        self._state.add(value)
