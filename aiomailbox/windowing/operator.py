"""The window operator for all assigners, triggers and evictors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiomailbox.errors import IllegalStateError, TimestampError
from aiomailbox.eventtime import Timer
from aiomailbox.operators import (
    USER_ERRORS,
    Collector,
    FunctionLife,
    KeyReader,
    Pending,
    RecordFailures,
    StatefulOperator,
    then,
)
from aiomailbox.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Run
from aiomailbox.state import ValueStateDescriptor
from aiomailbox.windowing.contents import WindowContents
from aiomailbox.windowing.emitter import WindowEmitter
from aiomailbox.windowing.functions import ProcessWindowContext
from aiomailbox.windowing.merging import MergingWindowSet, mapping_of
from aiomailbox.windowing.time_window import TimeWindow, Window
from aiomailbox.windowing.trigger import TriggerResult, check_result
from aiomailbox.windowing.trigger_context import OperatorTriggerContext
from aiomailbox.windowing.window_spec import WindowSpec, key_function


class WindowOperator(StatefulOperator):
    """Groups the records of each key by windows.

    Made by `window_operator`.

    Args:
        spec: Key, windows, trigger, evictor, lateness and errors.
        contents: What windows hold.
        emitter: What they emit.
        function: The window function, to be opened and closed; or None.

    Concept:
        Flink, ``WindowOperator`` and ``EvictingWindowOperator``.
    """

    def __init__(
        self,
        spec: WindowSpec,
        contents: WindowContents,
        emitter: WindowEmitter,
        function: Any,
    ) -> None:
        super().__init__()
        self._spec = spec
        self._contents = contents
        self._emitter = emitter
        self._function = function
        self._trigger = spec.actual_trigger
        self._is_event_time: bool = spec.assigner.is_event_time
        self._is_merging: bool = spec.assigner.is_merging
        self._is_open = False

    def open(self) -> Pending:
        """Bind state and timers, and open the window function."""
        context, store = self.context, self.context.keyed_state
        self._keys = KeyReader(key_function(self._spec.key), self)
        self._assigner = self._spec.assigner.for_subtask(context.random)
        self._contents.bind(store)
        self._merging_table = store.table(ValueStateDescriptor("merging-windows"))
        self._collector = Collector(self.output)
        self._timers = self.timer_service("window-timers", self)
        self._ask = OperatorTriggerContext(store, self._timers)
        self._failures = RecordFailures(
            self._spec.on_error, self._emitter.user_function, context, self.output
        )
        self._process_context = ProcessWindowContext(
            context, self._collector, merging=self._is_merging
        )
        self._process_context.current_watermark = self.watermark_ms
        self._emitter.bind(self._collector, self._process_context, self._failures.guard)
        self._dropped = context.metrics.counter("late_records_dropped")
        self._is_open = True
        if self._function is None:
            return None
        self._life = FunctionLife(self._function)
        return self._failures.guard(self._life.open, context, self._process_context)

    def process_run(self, run: Run) -> Pending:
        """Add each record to its windows."""
        if not len(run):
            return None
        keys = self._keys.read(run.values)
        pending, index = self._advance(run, keys, 0)
        if pending is None:
            return self.emit_collected()
        return self._process_rest(pending, run, keys, index)

    def emit_collected(self) -> Pending:
        """Pass on what windows and side outputs got."""
        pending = self._failures.report() if self._failures.waiting else None
        return then(pending, self._collector.emit)

    def process_watermark(self, timestamp_ms: int) -> Pending:
        """Fire what is due, then pass the watermark on."""
        self._process_context.current_watermark = timestamp_ms
        return super().process_watermark(timestamp_ms)

    def on_event_time(self, timer: Timer) -> Pending:
        """Ask the trigger, and clear the window if this is its end."""
        return self._on_timer(timer, self._trigger.on_event_time, self._is_event_time)

    def on_processing_time(self, timer: Timer) -> Pending:
        """Ask the trigger, and clear the window if this is its end."""
        pending = self._on_timer(
            timer, self._trigger.on_processing_time, not self._is_event_time
        )
        return then(pending, self.emit_collected)

    def fill_state(self) -> None:
        """Let the window function put what it holds into its state."""
        if self._function is not None and self._is_open:
            self._failures.guard(self._life.snapshot)

    def close(self) -> Pending:
        """Disarm the timers and close the window function."""
        pending = super().close()
        if self._function is None or not self._is_open:
            return pending
        self._is_open = False
        self._collector.discard()
        return then(pending, self._failures.guard, self._life.close)

    def _advance(self, run: Run, keys: list[Any], start: int) -> tuple[Pending, int]:
        """Process records until one must be awaited; return that and its index."""
        values, stamps = run.values, run.timestamps
        for index in range(start, len(values)):
            stamp = None if stamps is None else stamps[index]
            if stamp == MIN_TIMESTAMP:
                stamp = None
            try:
                pending = self._process(keys[index], values[index], stamp)
            except (TimestampError, IllegalStateError) as error:
                error.add_note(f"in operator {self.context.operator_name!r}")
                raise
            except USER_ERRORS as error:
                self._failures.take(values[index], stamp, error)
                continue
            if pending is not None:
                return pending, index
        return None, len(values)

    async def _process_rest(
        self, pending: Pending, run: Run, keys: list[Any], index: int
    ) -> None:
        while pending is not None:
            await pending
            pending, index = self._advance(run, keys, index + 1)
        emitted = self.emit_collected()
        if emitted is not None:
            await emitted

    def _process(self, key: Any, value: Any, stamp: int | None) -> Pending:
        self._enter(key)
        assigner = self._assigner
        now = self._timers.current_processing_time() if assigner.needs_now else 0
        windows = assigner.assign(value, stamp, now)
        return self._add_to(key, windows, value, stamp, skipped=True)

    def _add_to(
        self,
        key: Any,
        windows: list[Any],
        value: Any,
        stamp: int | None,
        *,
        skipped: bool,
    ) -> Pending:
        add = self._add_merging if self._is_merging else self._add_plain
        for index, window in enumerate(windows):
            taken, pending = add(key, window, value, stamp)
            if pending is not None:
                rest = windows[index + 1 :]
                return then(pending, self._add_others, key, rest, value, stamp)
            skipped = skipped and not taken
        if skipped:
            self._skip(value, stamp)
        return None

    def _add_others(
        self, key: Any, windows: list[Any], value: Any, stamp: int | None
    ) -> Pending:
        self._enter(key)
        return self._add_to(key, windows, value, stamp, skipped=False)

    def _add_plain(
        self, key: Any, window: Window, value: Any, stamp: int | None
    ) -> tuple[bool, Pending]:
        if self._is_over(window):
            return False, None
        return True, self._add(key, window, window, value, stamp)

    def _add_merging(
        self, key: Any, window: TimeWindow, value: Any, stamp: int | None
    ) -> tuple[bool, Pending]:
        windows = MergingWindowSet(self._assigner, mapping_of(self._merging_table, key))
        actual = windows.add(window, self._on_merge)
        if self._is_over(actual):
            windows.retire(actual)
            self._keep(key, windows)
            return False, None
        self._keep(key, windows)
        return True, self._add(key, actual, windows.mapping[actual], value, stamp)

    def _add(
        self, key: Any, window: Any, state_window: Any, value: Any, stamp: int | None
    ) -> Pending:
        self._contents.add(key, state_window, value, stamp)
        self._ask.window = window
        result = self._trigger.on_element(value, stamp, window, self._ask)
        if result is TriggerResult.CONTINUE:
            self._register_cleanup(key, window)
            return None
        check_result(result, self._trigger, "on_element", value)
        pending = self._fire(key, window, state_window) if result.is_fire else None
        return then(pending, self._after_element, key, window, state_window, result)

    def _after_element(
        self, key: Any, window: Any, state_window: Any, result: TriggerResult
    ) -> Pending:
        if result.is_purge:
            self._contents.clear(key, state_window)
        self._register_cleanup(key, window)
        return None

    def _skip(self, value: Any, stamp: int | None) -> None:
        """Drop a record that no window took; it may have come too late."""
        if not self._is_event_time or stamp is None:
            return
        if stamp + self._spec.allowed_lateness_ms > self._timers.current_watermark:
            return
        if self._spec.late_tag is None:
            self._dropped.add(1)
            return
        self._collector.timestamp = stamp
        self._collector.collect_side(self._spec.late_tag, value)

    def _on_merge(
        self,
        result: TimeWindow,
        merged: list[TimeWindow],
        state_window: TimeWindow,
        merged_states: list[TimeWindow],
    ) -> None:
        self._check_not_shrunk(result)
        ask = self._ask
        ask.window, ask.merged = result, merged
        self._trigger.on_merge(result, ask)
        for window in merged:
            ask.window = window
            self._trigger.clear(window, ask)
            self._delete_cleanup(ask.key, window)
        self._contents.merge(state_window, merged_states)

    def _check_not_shrunk(self, result: TimeWindow) -> None:
        timers = self._timers
        if self._is_event_time:
            now = timers.current_watermark
            over = self._cleanup_time(result) <= now
        else:
            now = timers.current_processing_time()
            over = result.max_timestamp <= now
        if over:
            raise IllegalStateError(
                f"merging windows gave {result}, which was over at {now}: windows that "
                "are merged must not become shorter. Look at the assigner's merge."
            )

    def _on_timer(
        self,
        timer: Timer,
        ask: Callable[[int, Any, Any], TriggerResult],
        may_clean_up: bool,
    ) -> Pending:
        timestamp, key, window = timer
        self._enter(key)
        state_window = window
        if self._is_merging:
            state_window = mapping_of(self._merging_table, key).get(window)
            if state_window is None:
                return None
        self._ask.window = window
        try:
            result = ask(timestamp, window, self._ask)
            check_result(result, self._trigger, ask.__name__, window)
        except USER_ERRORS as error:
            raise self.user_error(error) from error
        pending = self._fire(key, window, state_window) if result.is_fire else None
        ends = may_clean_up and timestamp == self._cleanup_time(window)
        return then(pending, self._after_timer, key, window, state_window, result, ends)

    def _after_timer(
        self,
        key: Any,
        window: Any,
        state_window: Any,
        result: TriggerResult,
        ends: bool,
    ) -> Pending:
        if result.is_purge:
            self._contents.clear(key, state_window)
        return self._clear(key, window, state_window) if ends else None

    def _clear(self, key: Any, window: Any, state_window: Any) -> Pending:
        """Forget everything about a window."""
        self._enter(key)
        self._contents.clear(key, state_window)
        self._ask.window = window
        self._trigger.clear(window, self._ask)
        if self._is_merging:
            mapping = mapping_of(self._merging_table, key)
            windows = MergingWindowSet(self._assigner, mapping)
            windows.retire(window)
            self._keep(key, windows)
        return self._emitter.clear(window)

    def _fire(self, key: Any, window: Any, state_window: Any) -> Pending:
        content = self._contents.get(key, state_window)
        if content is None:
            return None
        evictor = self._spec.evictor
        if evictor is None:
            return self._emitter.emit(key, window, content)
        kept = evictor.evict_before(content, window)
        values = [record.value for record in kept]
        pending = self._emitter.emit(key, window, values)
        return then(pending, self._evict_after, key, window, state_window, kept)

    def _evict_after(
        self, key: Any, window: Any, state_window: Any, records: list[Any]
    ) -> Pending:
        assert self._spec.evictor is not None, "called only with an evictor"
        kept = self._spec.evictor.evict_after(records, window)
        if kept:
            self._contents.put(key, state_window, kept)
        else:
            self._contents.clear(key, state_window)
        return None

    def _enter(self, key: Any) -> None:
        self.context.keyed_state.set_current_key(key)
        self._ask.key = key

    def _keep(self, key: Any, windows: MergingWindowSet) -> None:
        if windows:
            self._merging_table.put(key, windows.mapping)
        else:
            self._merging_table.remove(key)

    def _is_over(self, window: Window) -> bool:
        return (
            self._is_event_time
            and self._cleanup_time(window) <= self._timers.current_watermark
        )

    def _cleanup_time(self, window: Window) -> int:
        if not self._is_event_time:
            return window.max_timestamp
        return min(window.max_timestamp + self._spec.allowed_lateness_ms, MAX_TIMESTAMP)

    def _register_cleanup(self, key: Any, window: Window) -> None:
        time = self._cleanup_time(window)
        if time == MAX_TIMESTAMP:
            return
        if self._is_event_time:
            self._timers.register_event_time_timer(key, window, time)
        else:
            self._timers.register_processing_time_timer(key, window, time)

    def _delete_cleanup(self, key: Any, window: Window) -> None:
        time = self._cleanup_time(window)
        if self._is_event_time:
            self._timers.delete_event_time_timer(key, window, time)
        else:
            self._timers.delete_processing_time_timer(key, window, time)
