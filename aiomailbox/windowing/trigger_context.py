"""The context that the window operator gives to its trigger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aiomailbox.eventtime.timers import InternalTimerService
from aiomailbox.state.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from aiomailbox.state.store import KeyedStateStore, ReducingState, ValueState
from aiomailbox.windowing.time_window import Window
from aiomailbox.windowing.undo_log import (
    UndoableReducing,
    UndoableTimers,
    UndoableValue,
    UndoLog,
)


class OperatorTriggerContext:
    """A `TriggerContext` for the key and window that the operator works for.

    Args:
        store: The operator's keyed state.
        timers: Its timers.
        log: Where changes of state are noted, so that they can be undone; or None.

    Attributes:
        key: The current key.
        window: The current window.
        merged: In ``on_merge``, the windows that the current one replaces.
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
        """The watermark."""
        return self._timers.current_watermark

    def current_processing_time(self) -> int:
        """Return wall-clock time."""
        return self._timers.current_processing_time()

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        """Register a timer of the window."""
        self._timers.register_event_time_timer(self.key, self.window, timestamp_ms)

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        """Forget a timer of the window."""
        self._timers.delete_event_time_timer(self.key, self.window, timestamp_ms)

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        """Register a timer of the window."""
        self._timers.register_processing_time_timer(self.key, self.window, timestamp_ms)

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        """Forget a timer of the window."""
        self._timers.delete_processing_time_timer(self.key, self.window, timestamp_ms)

    def get_value(self, descriptor: ValueStateDescriptor) -> ValueState:
        """Return a value of the window."""
        if self._log is None:
            return self._store.get_value(descriptor, self.window)
        known = self._bare.get(descriptor.name)
        if known is None or known[0] is not descriptor:
            known = descriptor, replace(descriptor, default=None)
            self._bare[descriptor.name] = known
        state = self._store.get_value(known[1], self.window)
        return UndoableValue(state, descriptor.default, self._log)

    def get_reducing(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """Return a reduced value of the window."""
        state = self._store.get_reducing(descriptor, self.window)
        return state if self._log is None else UndoableReducing(state, self._log)

    def merge_state(self, descriptor: ReducingStateDescriptor) -> None:
        """Move the state of the merged windows to the window."""
        if self._log is not None:
            for window in (self.window, *self.merged):
                state = self._store.get_reducing(descriptor, window)
                UndoableReducing(state, self._log).note()
        self._store.merge_namespaces(descriptor, self.window, self.merged)
