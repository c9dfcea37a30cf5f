"""Process functions on keyed streams: state and timers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiomailbox.eventtime import Timer
from aiomailbox.operators.core.checkpointed import FunctionHooks
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.contract import Pending, then
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.on_error import OnError, check_on_error, fail
from aiomailbox.operators.core.resources import FunctionLife
from aiomailbox.operators.core.selectors import field_or_function
from aiomailbox.operators.functions.function_state import (
    check_state_names,
    has_on_timer,
    inherited_on_timer,
)
from aiomailbox.operators.functions.keyed_context import KeyedProcessContext, TimeDomain
from aiomailbox.operators.functions.process import (
    ElementCalls,
    ProcessCall,
    ProcessFunction,
    check_process_method,
)
from aiomailbox.operators.keyed.key_reader import KeyReader
from aiomailbox.operators.keyed.operators import KeySelector
from aiomailbox.operators.keyed.stateful import StatefulOperator
from aiomailbox.records import MIN_TIMESTAMP, Run


class KeyedProcessFunction(ProcessFunction):
    """A process function with state and timers per key; subclass it.

    Each method may be ``async def``. State objects may be made in `open`, from
    ``context.keyed_state``, and refer to the current key when they are used.

    Concept:
        Flink, ``KeyedProcessFunction``.

    Example:
        >>> from aiomailbox.state import ValueStateDescriptor
        >>> from aiomailbox.testing import OneInputHarness
        >>> class Count(KeyedProcessFunction):
        ...     def open(self, context):
        ...         self.seen = context.keyed_state.get_value(
        ...             ValueStateDescriptor("seen", int, default=0)
        ...         )
        ...
        ...     def process_element(self, value, context, out):
        ...         self.seen.update(self.seen.value() + 1)
        ...         context.timer_service.register_event_time_timer(10)
        ...
        ...     def on_timer(self, timestamp, context, out):
        ...         out.collect((context.current_key, self.seen.value()))
        >>> operator = KeyedProcessOperator(str.lower, Count())
        >>> with OneInputHarness(operator, keyed=True) as harness:
        ...     harness.process_run(["a", "A"], [1, 2])
        ...     harness.process_watermark(10)
        ...     harness.output[0]
        StreamRecord(value=('a', 2), timestamp=10)
    """

    @inherited_on_timer
    def on_timer(self, timestamp: int, context: Any, out: Collector) -> Pending:
        """Take note that a timer is due.

        Results get the timer's event time, or none if it is about processing time.

        Args:
            timestamp: The timer's time, milliseconds.
            context: As for a record; ``time_domain`` says which time this is.
            out: The collector.
        """
        return None


class KeyedFunctionOperator(StatefulOperator):
    """The base of operators that run a process function with state and timers.

    Args:
        function: The function; it is not shared between subtasks.
        on_error: What to do with a record for which it raises. What it had emitted
            and kept for the record until then stays.
    """

    def __init__(self, function: Any, on_error: OnError) -> None:
        super().__init__()
        self._on_timer = check_process_method(function, "on_timer")
        check_state_names(function)
        FunctionHooks(function)
        self.function = function
        self.on_error = check_on_error(on_error)
        self._next_key: Callable[[], Any]
        self._is_open = False

    def open(self) -> Pending:
        """Bind state and timers, and open the function."""
        self._collector = Collector(self.output)
        self._timers = self.timer_service("timers", self, self._collector)
        self._context = KeyedProcessContext(self.context, self._collector, self._timers)
        self._context.current_watermark = self.watermark_ms
        if not has_on_timer(self.function):
            self._context.refuse_timers(self.function)
        self._failures = RecordFailures(
            self.on_error, self._on_timer, self.context, self.output
        )
        self._is_open = True
        self._life = FunctionLife(self.function)
        return self._failures.guard(self._life.open, self.context, self._context)

    def process_watermark(self, timestamp_ms: int) -> Pending:
        """Fire timers, pass on what they emitted, then the watermark."""
        self._context.current_watermark = timestamp_ms
        return super().process_watermark(timestamp_ms)

    def emit_collected(self) -> Pending:
        """Pass on what the function emitted."""
        return self._collector.emit()

    def on_event_time(self, timer: Timer) -> Pending:
        """Call the function with a timer in event time."""
        self._collector.timestamp = timer.timestamp
        return self._call_timer(timer, TimeDomain.EVENT_TIME)

    def on_processing_time(self, timer: Timer) -> Pending:
        """Call the function with a timer in processing time."""
        context, collector = self._context, self._collector
        # A function that yields to mail goes on afterwards, with its own record.
        before = (context.current_key, context.timestamp, collector.timestamp)
        collector.timestamp = MIN_TIMESTAMP
        pending = self._call_timer(timer, TimeDomain.PROCESSING_TIME)
        pending = then(pending, collector.emit)
        return then(pending, self._return_to, *before)

    def fill_state(self) -> None:
        """Let the function put what it holds into its state."""
        if self._is_open:
            self._failures.guard(self._life.snapshot)

    def finish(self) -> Pending:
        """Let the function emit what it holds back."""
        self._collector.timestamp = MIN_TIMESTAMP
        pending = self._failures.guard(self.function.finish, self._collector)
        return then(pending, self._collector.emit)

    def close(self) -> Pending:
        """Disarm the timers and close the function, if it was opened."""
        pending = super().close()
        if not self._is_open:
            return pending
        self._is_open = False
        self._collector.discard()
        return then(pending, self._failures.guard, self._life.close)

    def _element_calls(self, call: ProcessCall) -> ElementCalls:
        return ElementCalls(
            call, self._context, self._collector, self._failures, self._enter_next
        )

    def _process_keyed(self, calls: ElementCalls, keys: KeyReader, run: Run) -> Pending:
        if not len(run):
            return None
        keys_of_run = keys.read(run.values)
        self.context.keyed_state.prefetch(keys_of_run)
        self._next_key = iter(keys_of_run).__next__
        return calls.process_run(run)

    def _enter_next(self, value: Any) -> None:
        self._context.enter(self._next_key())

    def _call_timer(self, timer: Timer, domain: TimeDomain) -> Pending:
        context = self._context
        context.enter(timer.key)
        context.timestamp = timer.timestamp
        context.time_domain = domain
        pending = self._failures.guard(
            self._on_timer, timer.timestamp, context, self._collector
        )
        return then(pending, self._after_timer)

    def _after_timer(self) -> Pending:
        self._context.time_domain = None
        return None

    def _return_to(self, key: Any, timestamp: int | None, stamp: int) -> Pending:
        self._context.enter(key)
        self._context.timestamp = timestamp
        self._collector.timestamp = stamp
        return None


class KeyedProcessOperator(KeyedFunctionOperator):
    """Runs a `KeyedProcessFunction`.

    Args:
        key: A field's name or a function of a record.
        function: The function; it is not shared between subtasks.
        on_error: What to do with a record for which it raises. What it had emitted
            and kept for the record until then stays.

    Raises:
        WrongTypeError: If ``function`` lacks ``process_element`` or ``on_timer``, or
            one of them is a generator.

    Concept:
        Flink, ``KeyedProcessOperator``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> class Keys(KeyedProcessFunction):
        ...     def process_element(self, value, context, out):
        ...         out.collect(context.current_key)
        >>> operator = KeyedProcessOperator(str.lower, Keys())
        >>> with OneInputHarness(operator, keyed=True) as harness:
        ...     harness.process_element("A")
        ...     harness.values
        ['a']
    """

    def __init__(
        self, key: KeySelector, function: Any, *, on_error: OnError = fail
    ) -> None:
        self._call = check_process_method(function, "process_element")
        self._key = field_or_function(key, "key")
        super().__init__(function, on_error)

    def open(self) -> Pending:
        """Bind state and timers, and open the function."""
        pending = super().open()
        self._keys = KeyReader(self._key, self)
        self._calls = self._element_calls(self._call)
        return pending

    def process_run(self, run: Run) -> Pending:
        """Call the function for each record, with its key."""
        return self._process_keyed(self._calls, self._keys, run)
