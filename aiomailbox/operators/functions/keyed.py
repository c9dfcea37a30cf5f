"""Process functions on keyed streams: state and timers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic

from aiomailbox.eventtime.timer_queue import Timer
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.contract import Pending, then
from aiomailbox.operators.core.on_error import OnError, fail
from aiomailbox.operators.core.selectors import field_or_function
from aiomailbox.operators.functions.base import ElementOperator
from aiomailbox.operators.functions.calls import check_process_method
from aiomailbox.operators.functions.function_state import (
    check_state_names,
    has_on_timer,
    inherited_on_timer,
)
from aiomailbox.operators.functions.keyed_context import KeyedProcessContext, TimeDomain
from aiomailbox.operators.functions.process import ElementFunction
from aiomailbox.operators.functions.process_context import ProcessContext
from aiomailbox.operators.keyed.key_reader import KeyReader
from aiomailbox.operators.keyed.operators import KeySelector
from aiomailbox.operators.keyed.stateful import StatefulOperator
from aiomailbox.records.elements import MIN_TIMESTAMP
from aiomailbox.records.run import Run
from aiomailbox.typevars import InT, KeyT, OutT


class KeyedProcessFunction(
    ElementFunction[InT, KeyedProcessContext[KeyT], OutT], Generic[KeyT, InT, OutT]
):
    """A process function with state and timers per key; subclass it.

    Each method may be ``async def``. State objects may be made in `open`, from
    ``context.keyed_state``, and refer to the current key when they are used. For a type
    checker, ``KeyedProcessFunction[Key, In, Out]`` says what comes in and goes out.

    Concept:
        Flink, ``KeyedProcessFunction``.

    Example:
        >>> from aiomailbox.state.descriptors import ValueStateDescriptor
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
    def on_timer(
        self,
        timestamp: int,
        context: KeyedProcessContext[KeyT],
        out: Collector[OutT],
        /,
    ) -> Pending:
        """React to a timer that is due.

        Results get the timer's event time, or none if it is about processing time.

        Args:
            timestamp: The timer's time, milliseconds.
            context: As for a record; ``time_domain`` says which time this is.
            out: The collector.
        """
        return None


class KeyedFunctionOperator(ElementOperator, StatefulOperator):
    """The base of operators that run a process function with state and timers.

    Args:
        function: The function; it is not shared between subtasks.
        on_error: What to do with a record for which it raises. What it had emitted
            and kept for the record until then stays.
        **keys: For each input that has keys a field's name or a function of a record,
            by the parameter's name; those of all inputs are of one type.
    """

    def __init__(self, function: Any, on_error: OnError, **keys: KeySelector) -> None:
        super().__init__(function, on_error)
        self._on_timer = check_process_method(function, "on_timer")
        check_state_names(function)
        self._selectors = [field_or_function(key, name) for name, key in keys.items()]

    def open(self) -> Pending:
        """Bind state and timers, and open the function."""
        first, *others = self._selectors
        reader = KeyReader(first, self)
        self._readers = [reader, *(KeyReader(key, self, like=reader) for key in others)]
        return super().open()

    def make_contexts(self) -> Sequence[ProcessContext]:
        """Return one context for all methods, with the timers bound."""
        self._timers = self.timer_service("timers", self, self._collector)
        self._context = self.keyed_context()
        if not has_on_timer(self.function):
            self._context.refuse_timers(self.function)
        return [self._context] * len(self.methods)

    def keyed_context(self) -> KeyedProcessContext:
        """Return the context of the methods that have a key."""
        return KeyedProcessContext(self.context, self._collector, self._timers)

    def key_of_input(self, index: int) -> Callable[[Any], Any] | None:
        """Return what reads the key of an input's records; None if they have none."""
        return self._selectors[index] if index < len(self._selectors) else None

    def process_input(self, index: int, run: Run) -> Pending:
        """Call the method of an input for each record, with its key."""
        if not len(run):
            return None
        keys = self._readers[index].read(run.values)
        self.context.keyed_state.prefetch(keys)
        return self._calls[index].process_run(run, keys)

    def enter_of(self, index: int) -> Callable[[Any], None] | None:
        """Return what makes the key of each record the current one."""
        return self._context.enter

    def emit_collected(self) -> Pending:
        """Pass on what the function emitted."""
        return self._collector.emit()

    def on_event_time(self, timer: Timer) -> Pending:
        """Call the function with a timer in event time."""
        self._collector.timestamp = timer.timestamp
        self._collector.passed = 0
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
        super().__init__(function, on_error, key=key)
