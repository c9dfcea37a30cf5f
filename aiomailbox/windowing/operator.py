"""The window operator for all assigners, triggers and evictors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiomailbox.errors import IllegalStateError, TimestampError, add_note
from aiomailbox.eventtime.timers import InternalTimerService, Timer
from aiomailbox.operators.aggregates.functions import is_async_aggregate, warn_of_text
from aiomailbox.operators.aggregates.undoing import undoable
from aiomailbox.operators.core.collector import Collector, Mark
from aiomailbox.operators.core.context import LateRecords
from aiomailbox.operators.core.failures import (
    USER_ERRORS,
    Fallible,
    RecordFailures,
    is_closing,
)
from aiomailbox.operators.core.mutations import MutationCheck
from aiomailbox.operators.core.operator import (
    Pending,
    awaited,
    go_through,
    then,
)
from aiomailbox.operators.core.resources import FunctionHolder, FunctionLife
from aiomailbox.operators.core.user_code import (
    ErrorAction,
    OnError,
    checkpoint_listener,
    collected,
    describe,
    shortened,
)
from aiomailbox.operators.core.watched import collector_for
from aiomailbox.operators.keyed.operators import KeyReader, StatefulOperator
from aiomailbox.records.events import MAX_TIMESTAMP, MIN_TIMESTAMP, StreamRecord
from aiomailbox.records.run import Run
from aiomailbox.state.descriptors import ValueStateDescriptor
from aiomailbox.state.operator_state import OperatorStateSnapshot
from aiomailbox.state.snapshot import copy_content
from aiomailbox.windowing.co_group import JoinFunction
from aiomailbox.windowing.contents import (
    UndoableTimers,
    UndoLog,
    WindowContents,
    check_windows_restored,
)
from aiomailbox.windowing.functions import ApplyFunction, ProcessWindowContext
from aiomailbox.windowing.incremental import watch_reduce, window_result
from aiomailbox.windowing.merging import MergingWindowSet, mapping_of
from aiomailbox.windowing.spec import WindowSpec, key_function
from aiomailbox.windowing.time_window import (
    TimeWindow,
    Window,
    kept_offsets,
    with_offset,
)
from aiomailbox.windowing.triggers import (
    CountTrigger,
    TriggerContext,
    TriggerResult,
    check_result,
    cuts_off_rest,
    needs_live_clock,
)

# From what a window holds to what it emits.


# Records that cannot be added, each with what adding it raised.
Failing = list[tuple[StreamRecord, BaseException]]


class WindowEmitter:
    """Puts the result of a window that fires into the collector.

    Args:
        aggregate: How records become one result; None if the function gets them all.
        function: The window function, None to emit the aggregate's result.
        folds: Whether the window holds records, to be aggregated only now.
        keyed: Whether results of several aggregates name their key.
        include_key: Whether others are ``(key, result)``.

    Attributes:
        aggregate: As given.
        folds: As given.
        is_async: Whether the aggregate has ``async def`` methods.
    """

    def __init__(
        self,
        aggregate: Any,
        function: Any,
        *,
        folds: bool,
        keyed: bool,
        include_key: bool = False,
    ) -> None:
        self.aggregate = aggregate
        self._function = function
        self._include_key = include_key
        self.folds: bool = folds and aggregate is not None
        self.is_async: bool = aggregate is not None and is_async_aggregate(aggregate)
        self._result = (
            None
            if aggregate is None
            else window_result(aggregate, keyed=keyed, include_key=include_key)
        )
        self._check: MutationCheck | None = None
        self._collector: Collector
        self._context: ProcessWindowContext

    @property
    def user_function(self) -> Callable[..., Any]:
        """The user's function, to be named when it raises."""
        aggregate = self.aggregate
        if aggregate is None:
            return getattr(self._function, "function", self._function.process)
        reduce = getattr(aggregate, "reduce_function", None)
        return reduce or aggregate.add

    def bind(
        self,
        collector: Collector,
        context: ProcessWindowContext,
        check: MutationCheck | None = None,
    ) -> None:
        """Use these."""
        self._check = check
        self._collector = collector
        self._context = context

    def emit(self, key: Any, window: Window, content: Any) -> Pending:
        """Collect the result of what a window holds."""
        self._collector.timestamp = window.max_timestamp
        self._collector.passed = 0
        self._context.window = window
        if self.is_async:
            return self._emit_awaited(key, window, content)
        aggregate = self.aggregate
        if aggregate is None:
            # A copy: the function may keep it, or sort it.
            return self._call(key, list(content))
        if self.folds:
            accumulator = aggregate.create_accumulator()
            for value in content:
                accumulator = aggregate.add(value, accumulator)
            content = accumulator
        if content is None:
            return None
        if self._function is None:
            assert self._result is not None, "an aggregate has a result"
            self._collector.collect(self._result.of_one(key, window, content))
            return None
        return self._call(key, [aggregate.get_result(content)])

    def clear(self, window: Window) -> Pending:
        """Tell the window function that a window is over."""
        if self._function is None:
            return None
        self._collector.timestamp = window.max_timestamp
        self._context.window = window
        return self._function.clear(self._context)

    async def failing(self, records: list[StreamRecord]) -> Failing:
        """Return the records that the aggregate cannot add."""
        aggregate, failing = undoable(self.aggregate), Failing()
        # On accumulators of its own: this only finds out which records fail.
        accumulator = await awaited(aggregate.create_accumulator())
        for record in records:
            try:
                accumulator = await awaited(aggregate.add(record.value, accumulator))
            except USER_ERRORS as error:
                if is_closing(error):
                    raise
                failing.append((record, error))
        return failing

    async def _emit_awaited(self, key: Any, window: Window, content: Any) -> None:
        aggregate = self.aggregate
        accumulator = content
        if self.folds:
            accumulator = await awaited(aggregate.create_accumulator())
            for value in content:
                accumulator = await awaited(aggregate.add(value, accumulator))
        if accumulator is None:
            return
        result = await awaited(aggregate.get_result(accumulator))
        if self._function is None:
            self._collector.collect((key, result) if self._include_key else result)
            return
        pending = self._call(key, [result])
        if pending is not None:
            await pending

    def _call(self, key: Any, elements: list[Any]) -> Pending:
        arguments = key, self._context, elements, self._collector
        pending: Pending
        if self._check is None:
            pending = self._function.process(*arguments)
        else:
            # The list is the function's own, its elements are not.
            records = elements.copy()
            pending = self._check.calling(records, self._function.process, *arguments)
        if pending is None:
            return None
        return self._context.own(collected(self._function.process, pending))


# Applies ``on_error`` to windows whose function raised.


@dataclass(frozen=True, slots=True)
class FailedWindow:
    """A window whose firing failed: the record of a window's `DeadLetter`.

    Attributes:
        key: The window's key; 0 of windows without keys.
        window: The window.
        elements: The records that it held; after reduce or aggregate a list of one, the
            accumulator.
    """

    key: Any
    window: Window
    elements: list[Any]


class WindowFailures(RecordFailures):
    """The records and firings of one window operator that failed.

    Attributes:
        may_fail: Whether the job goes on after a failure.
    """

    def __init__(self, operator: Fallible, function: Callable[..., Any]) -> None:
        super().__init__(operator, function)
        self.may_fail: bool = self.on_error.action is not ErrorAction.FAIL

    def take_window(
        self, key: Any, window: Window, elements: list[Any], error: BaseException
    ) -> None:
        """Do with a window whose firing failed what ``on_error`` says.

        Args:
            key: Its key.
            window: The window.
            elements: What it held; copied if it is passed on.
            error: What its function raised.

        Raises:
            UserFunctionError: From ``error``, if nothing may fail.
        """
        if not self.forgives(error):
            self.fail(error, f"the window: {window} of the key {shortened(key)}")
        letter = self.on_error.action is ErrorAction.DEAD_LETTER
        record = FailedWindow(key, window, copy_content(elements)) if letter else window
        self.take(record, window.max_timestamp, error)


# A window, the window whose state it has, and the merges ``(state window, others)``.
_Merged = tuple[Any, Any, list[tuple[Any, list[Any]]]]


# A window that is to fire, the window whose state it has, and what the trigger said.
_Due = tuple[Any, Any, TriggerResult]


class WindowOperator(FunctionHolder, StatefulOperator):
    """Groups the records of each key by windows.

    Made by `window_operator`.

    Theory of operation: a record is first added to all its windows, which may merge,
    and their triggers are asked; if any of it fails, all of it is undone. Only then the
    windows fire that are to: that is finished in any case, also if a window's function
    fails, so that a window is purged and cleaned up as if it had not.

    Args:
        spec: Key, windows, trigger, evictor, lateness and errors.
        contents: What windows hold.
        emitter: What they emit.
        function: The window function, to be opened and closed; or None.

    Concept:
        Flink, ``WindowOperator`` and ``EvictingWindowOperator``.
    """

    _failures: WindowFailures

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
        self._life = FunctionLife(function)
        self._assigner = spec.assigner
        self.on_error: OnError = spec.on_error
        self.listener = checkpoint_listener(function)
        self._trigger = spec.actual_trigger
        self._cuts_off_rest = cuts_off_rest(self._trigger)
        self._is_event_time: bool = spec.assigner.is_event_time
        if not self._is_event_time:
            self.live_clock_need = f"windows of processing time ({spec.assigner!r})"
        elif needs_live_clock(self._trigger):
            name = type(self._trigger).__name__
            self.live_clock_need = f"a trigger that waits for wall-clock time ({name})"
        self._is_merging: bool = spec.assigner.is_merging
        self._due: list[_Due] = []
        self._offsets: list[int] = []

    def rows_reason(self) -> str:
        """Return the window function, or what the windows have that needs rows."""
        function = self._function
        if isinstance(function, ApplyFunction):
            return describe(function.function)
        return (
            self._spec.peculiarity if function is None else describe(function.process)
        )

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return also where the windows begin, if they differ from subtask to subtask."""
        return with_offset(super().snapshot_own(), self._assigner.kept_offset())

    def expect_accumulators(self) -> None:
        self._contents.expect(self.context.keyed_state)

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Let windows begin where they did."""
        super().restore_own(own)
        self._offsets = kept_offsets(own)

    def open(self) -> Pending:
        """Bind state and timers, and open the window function."""
        context, store = self.context, self.context.keyed_state
        self._keys = KeyReader(key_function(self._spec.key), self)
        self._assigner = self._spec.assigner.for_subtask(context.random, self._offsets)
        self._merging_table = store.table(ValueStateDescriptor("merging-windows"))
        self._collector = collector_for(self.context, self.output)
        self._failures = WindowFailures(self, self._emitter.user_function)
        timers = self.timer_service("window-timers", self, self._collector)
        self._timers = timers
        self._log = UndoLog() if self._failures.may_fail else None
        self._own_timers: InternalTimerService | UndoableTimers = (
            timers if self._log is None else UndoableTimers(timers, self._log)
        )
        self._contents.bind(store, self._log)
        self._ask = TriggerContext(store, self._own_timers, self._log)
        self._process_context = ProcessWindowContext(
            context, self._collector, merging=self._is_merging
        )
        self._process_context.current_watermark = self.watermark_ms
        self._emitter.bind(self._collector, self._process_context, context.mutations)
        watch_reduce(self._emitter.aggregate, context.mutations, context.log)
        warn_of_text(self._emitter.aggregate, context.log)
        if isinstance(self._function, JoinFunction):
            self._function.failures = self._failures
        self._dropped = LateRecords(context.metrics, context.repeated)
        return self._failures.guard(self._life.open, context, self._process_context)

    def check_restored(self) -> None:
        """Refuse windows that were kept in another way."""
        check_windows_restored(self.context)

    def may_leave_rest(self, index: int) -> bool:
        """Whether it may leave the rest of a run: its functions may give awaitables."""
        return True

    def key_of_input(self, index: int) -> Callable[[Any], Any] | None:
        return key_function(self._spec.key)

    def process_run(self, run: Run) -> Pending:
        """Add each record to its windows."""
        if not len(run):
            return None
        self.begin_run(run)
        keys = self._keys.read(run.values)
        advance = partial(self._advance, run, keys)
        pending = go_through(run, advance, self.interruption, self.emit_collected)
        return then(pending, self._leave)

    def on_watermark(self, timestamp_ms: int) -> Pending:
        """Fire what is due, then pass the watermark on."""
        self._process_context.current_watermark = timestamp_ms
        return super().on_watermark(timestamp_ms)

    def fire(self, timestamp_ms: int) -> Pending:
        """Fire the timers that a watermark has reached; then no key is current."""
        return then(super().fire(timestamp_ms), self._leave)

    def on_event_time(self, timer: Timer) -> Pending:
        """Ask the trigger, and clear the window if this is its end."""
        return self._on_timer(timer, self._trigger.on_event_time, self._is_event_time)

    def on_processing_time(self, timer: Timer) -> Pending:
        """Ask the trigger, and clear the window if this is its end."""
        pending = self._on_timer(
            timer, self._trigger.on_processing_time, not self._is_event_time
        )
        return then(then(pending, self.emit_collected), self._leave)

    def finish(self) -> Pending:
        """Warn of windows that the end of input cuts off: their time has not come."""
        if self._cuts_off_rest:
            rests = self.context.keyed_state.namespaced(CountTrigger.SEEN).items()
            self._tell_of_rest(sum(seen for _, _, seen in rests))
        if not self._is_event_time and self._timers.processing_time_timer_count:
            self.context.log.warning(
                "the input ended before windows of processing time did: they are dropped",
                windows=self._timers.processing_time_timer_count,
                remedy="use event time, or a source that outlasts the last window",
            )
        return super().finish()

    def _advance(self, run: Run, keys: list[Any], start: int) -> tuple[Pending, int]:
        """Process records until one must be awaited; return that and its index."""
        values, stamps = run.values, run.timestamps
        for index in range(start, len(values)):
            stamp = None if stamps is None else stamps[index]
            if stamp == MIN_TIMESTAMP:
                stamp = None
            key, value = keys[index], values[index]
            try:
                pending = self._add_record(key, value, stamp)
            except USER_ERRORS as error:
                self._give_up(key, value, stamp, error)
                continue
            # Without a log there is nothing to let stand, and mostly nothing to fire.
            if pending is None and (self._due or self._log is not None):
                pending = self._finish_record(key)
            if pending is not None:
                return pending, index
        return None, len(values)

    def _add_record(self, key: Any, value: Any, stamp: int | None) -> Pending:
        """Add a record to its windows and ask their triggers; fire nothing yet.

        Until all of that has been done it can be undone.
        """
        self._enter(key)
        assigner = self._assigner
        now = self._timers.current_processing_time() if assigner.needs_now else 0
        windows = assigner.assign(value, stamp, now)
        if self._contents.is_async:
            return self._add_awaited(key, windows, value, stamp)
        contents, skipped = self._contents, True
        for window in windows:
            state_window = window
            if self._is_merging:
                place = self._merge(key, window)
                if place is None:
                    continue
                # Merged before it is asked whether it is late: a late record may belong
                # to a session that is still open.
                window, state_window, merges = place
                for merge in merges:
                    contents.merge(key, *merge)
            elif self._is_over(window):
                continue
            skipped = False
            # Into the state of the window that it was merged into; its namespace never
            # moves.
            contents.add(key, state_window, value, stamp)
            self._ask_trigger(key, window, state_window, value, stamp)
        if skipped:
            self._skip(value, stamp)
        return None

    async def _add_awaited(
        self, key: Any, windows: list[Any], value: Any, stamp: int | None
    ) -> None:
        """Do what `_add_record` does, with an ``async def`` aggregate, and fire."""
        contents, skipped = self._contents, True
        try:
            for window in windows:
                state_window = window
                if self._is_merging:
                    place = self._merge(key, window)
                    if place is None:
                        continue
                    window, state_window, merges = place
                    for merge in merges:
                        await awaited(contents.merge(key, *merge))
                elif self._is_over(window):
                    continue
                skipped = False
                await awaited(contents.add(key, state_window, value, stamp))
                self._ask_trigger(key, window, state_window, value, stamp)
        except USER_ERRORS as error:
            self._give_up(key, value, stamp, error)
            return
        if skipped:
            self._skip(value, stamp)
        fired = self._finish_record(key)
        if fired is not None:
            await fired

    def _merge(self, key: Any, window: TimeWindow) -> _Merged | None:
        """Merge a window with those of its key; return None if it is over.

        Returns:
            The window that it has become part of, the one whose state that has, and
            whose contents have to be merged into which.
        """
        mapping = mapping_of(self._merging_table, key)
        if self._log is not None:
            self._log.note(self._keep, key, mapping.copy())
        windows = MergingWindowSet(self._assigner, mapping)
        merges: list[tuple[Any, list[Any]]] = []

        def on_merge(
            result: TimeWindow, merged: list[TimeWindow], state: Any, states: list[Any]
        ) -> None:
            self._merge_triggers(result, merged)
            merges.append((state, states))

        actual = windows.add(window, on_merge)
        is_over = self._is_over(actual)
        if is_over:
            windows.retire(actual)
        self._keep(key, mapping)
        return None if is_over else (actual, mapping[actual], merges)

    def _ask_trigger(
        self, key: Any, window: Any, state_window: Any, value: Any, stamp: int | None
    ) -> None:
        """Ask the trigger about a record, and note if the window is to fire."""
        self._ask.window = window
        result = self._trigger.on_element(value, stamp, window, self._ask)
        self._register_cleanup(key, window)
        if result is not TriggerResult.CONTINUE:
            check_result(result, self._trigger, "on_element", value)
            self._due.append((window, state_window, result))

    def _give_up(
        self, key: Any, value: Any, stamp: int | None, error: BaseException
    ) -> None:
        """Undo what a record has changed, and do with it what ``on_error`` says."""
        # No failure of a record's, but of the program: event times that were forgotten,
        # or an assigner that merges wrongly.
        if isinstance(error, (TimestampError, IllegalStateError)):
            add_note(error, f"in {self.place}")
            raise error
        self._due.clear()
        if self._log is not None:
            self._enter(key)
            self._log.undo()
        self._failures.take(value, stamp, error)

    def _finish_record(self, key: Any) -> Pending:
        """Let what a record has changed stand, and fire what is to fire."""
        if self._log is not None:
            self._log.clear()
        if not self._due:
            return None
        due, self._due = self._due, []
        for index, one in enumerate(due):
            pending = self._fire_due(key, *one)
            if pending is not None:
                return self._fire_others(pending, key, due[index + 1 :])
        return None

    async def _fire_others(
        self, pending: Awaitable[None], key: Any, due: list[_Due]
    ) -> None:
        await pending
        for one in due:
            # Another key's mail may have run while the first was awaited.
            self._enter(key)
            following = self._fire_due(key, *one)
            if following is not None:
                await following

    def _fire_due(
        self, key: Any, window: Any, state_window: Any, result: TriggerResult
    ) -> Pending:
        pending = self._fire(key, window, state_window) if result.is_fire else None
        if result.is_purge:
            return then(pending, self._contents.table.remove, key, state_window)
        return pending

    def _skip(self, value: Any, stamp: int | None) -> None:
        """Drop a record that no window took; it may have come too late."""
        if not self._is_event_time or stamp is None:
            return
        # Not late by itself, as of windows with gaps between them: it is in no window,
        # and in no count.
        if stamp + self._spec.allowed_lateness_ms > self._timers.current_watermark:
            return
        if self._spec.late_tag is None:
            self._dropped.drop(stamp, self._timers.current_watermark)
            return
        self._collector.timestamp = stamp
        self._collector.collect_side(self._spec.late_tag, value)

    def _merge_triggers(self, result: TimeWindow, merged: list[TimeWindow]) -> None:
        """Let triggers and timers follow when windows have become one."""
        self._check_not_shrunk(result)
        ask = self._ask
        ask.window, ask.merged = result, merged
        # Before the others are cleared: it takes over what they had planned.
        self._trigger.on_merge(result, ask)
        for window in merged:
            ask.window = window
            self._trigger.clear(window, ask)
            self._delete_cleanup(ask.key, window)

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
                # A timer of a window that was merged into another: that one has its
                # own.
                return None
        result = self._ask_timer(timer, ask)
        pending = self._fire_due(key, window, state_window, result)
        # Fired first: at the end of a window without lateness both are due at once.
        # The lateness may have been another one before a restart: a timer behind the
        # end is that of a longer one, and one of a shorter one has to come again.
        if may_clean_up and timestamp >= window.max_timestamp:
            if timestamp >= self._cleanup_time(window):
                return then(pending, self._clear, key, window, state_window)
            self._register_cleanup(key, window)
        return pending

    def _ask_timer(
        self, timer: Timer, ask: Callable[[int, Any, Any], TriggerResult]
    ) -> TriggerResult:
        """Ask the trigger about a timer; if that fails the window does not fire."""
        timestamp, key, window = timer
        self._ask.window = window
        try:
            result = ask(timestamp, window, self._ask)
            check_result(result, self._trigger, ask.__name__, window)
        except USER_ERRORS as error:
            if self._log is not None:
                self._log.undo()
            self._failures.take_window(key, window, [], error)
            return TriggerResult.CONTINUE
        if self._log is not None:
            self._log.clear()
        return result

    def _clear(self, key: Any, window: Any, state_window: Any) -> Pending:
        """Forget everything about a window."""
        self._enter(key)
        self._contents.table.remove(key, state_window)
        if self._is_merging:
            mapping = mapping_of(self._merging_table, key)
            windows = MergingWindowSet(self._assigner, mapping)
            windows.retire(window)
            self._keep(key, mapping)
        self._ask.window = window
        if self._cuts_off_rest:
            self._tell_of_rest(self._ask.get_reducing(CountTrigger.SEEN).get())
        try:
            self._trigger.clear(window, self._ask)
            pending = self._emitter.clear(window)
        except USER_ERRORS as error:
            self._failures.take_window(key, window, [], error)
            pending = None
        if self._log is not None:
            # The window is over, whatever of it could be forgotten.
            self._log.clear()
        if pending is None:
            return None
        return self._finish_firing(pending, None, key, window, [])

    def _tell_of_rest(self, count: int | None) -> None:
        if count:
            timeout = needs_live_clock(self._trigger)
            self.context.repeated.unfired(count, has_timeout=timeout)

    # None: nothing was added since it was purged, and then nothing is emitted.
    def _fire(self, key: Any, window: Any, state_window: Any) -> Pending:
        """Emit what a window holds; if that fails, the firing is over all the same."""
        content = self._contents.table.get(key, state_window)
        if content is None:
            return None
        mark = None if self._log is None else self._collector.hold()
        try:
            pending = self._emit(key, window, state_window, content)
        except USER_ERRORS as error:
            self._firing_failed(
                mark, key, window, self._contents.elements(content), error
            )
            return None
        if pending is None:
            if mark is not None:
                self._collector.release()
            return None
        elements = self._contents.elements(content)
        return self._finish_firing(pending, mark, key, window, elements)

    async def _finish_firing(
        self,
        pending: Awaitable[None],
        mark: Mark | None,
        key: Any,
        window: Any,
        elements: list[Any],
    ) -> None:
        try:
            await pending
        except USER_ERRORS as error:
            self._firing_failed(mark, key, window, elements, error)
        else:
            if mark is not None:
                self._collector.release()
        # What was awaited goes out at once.
        emitted = self.emit_collected()
        if emitted is not None:
            await emitted

    def _firing_failed(
        self,
        mark: Mark | None,
        key: Any,
        window: Any,
        elements: list[Any],
        error: BaseException,
    ) -> None:
        """Take back what a firing has emitted, and do what ``on_error`` says."""
        if mark is not None:
            self._collector.take_back(mark)
        self._failures.take_window(key, window, elements, error)

    def _emit(self, key: Any, window: Any, state_window: Any, content: Any) -> Pending:
        if self._spec.evictor is None:
            return self._emitter.emit(key, window, content)
        if self._log is None or not self._emitter.folds:
            return self._emit_evicted(key, window, state_window, content)
        return self._emit_checked(key, window, state_window, content)

    async def _emit_checked(
        self, key: Any, window: Any, state_window: Any, content: Any
    ) -> None:
        failing = await self._emitter.failing(content)
        content = self._without(key, state_window, content, failing)
        pending = self._emit_evicted(key, window, state_window, content)
        if pending is not None:
            await pending

    def _without(
        self, key: Any, state_window: Any, content: list[Any], failing: Failing
    ) -> list[Any]:
        """Take records that cannot be added out of a window, before it is evicted."""
        if not failing:
            return content
        for record, error in failing:
            self._failures.take(record.value, record.timestamp, error)
        gone = {id(record) for record, _ in failing}
        kept = [record for record in content if id(record) not in gone]
        self._keep_records(key, state_window, kept)
        return kept

    def _emit_evicted(
        self, key: Any, window: Any, state_window: Any, content: Any
    ) -> Pending:
        assert self._spec.evictor is not None, "called only with an evictor"
        kept = self._spec.evictor.evict_before(content, window)
        values = [record.value for record in kept]
        pending = self._emitter.emit(key, window, values)
        return then(pending, self._evict_after, key, window, state_window, kept)

    def _evict_after(
        self, key: Any, window: Any, state_window: Any, records: list[Any]
    ) -> None:
        assert self._spec.evictor is not None, "called only with an evictor"
        kept = self._spec.evictor.evict_after(records, window)
        self._keep_records(key, state_window, kept)

    def _keep_records(self, key: Any, state_window: Any, records: list[Any]) -> None:
        if records:
            self._contents.table.put(key, state_window, records)
        else:
            self._contents.table.remove(key, state_window)

    def _enter(self, key: Any) -> None:
        self.context.keyed_state.set_current_key(key)
        self._ask.key = key

    def _leave(self) -> None:
        """Let no key be current: a late use would get the key of another window."""
        self.context.keyed_state.leave()

    def _keep(self, key: Any, mapping: dict[TimeWindow, TimeWindow]) -> None:
        if mapping:
            self._merging_table.put(key, mapping)
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
        # Saturated: Python's integers do not overflow, and a timer beyond the end never
        # fires.
        return min(window.max_timestamp + self._spec.allowed_lateness_ms, MAX_TIMESTAMP)

    def _register_cleanup(self, key: Any, window: Window) -> None:
        time = self._cleanup_time(window)
        # No timer at the end of time: the state goes with the job.
        if time == MAX_TIMESTAMP:
            return
        if self._is_event_time:
            self._own_timers.register_event_time_timer(key, window, time)
        else:
            self._own_timers.register_processing_time_timer(key, window, time)

    def _delete_cleanup(self, key: Any, window: Window) -> None:
        time = self._cleanup_time(window)
        if self._is_event_time:
            self._own_timers.delete_event_time_timer(key, window, time)
        else:
            self._own_timers.delete_processing_time_timer(key, window, time)
