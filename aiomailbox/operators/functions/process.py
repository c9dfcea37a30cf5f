"""Process functions: full control over what a record leads to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from aiomailbox.errors import WrongTypeError
from aiomailbox.operators.core.callables import describe
from aiomailbox.operators.core.checkpointed import FunctionHooks
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.contract import Operator, Pending, then
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.on_error import (
    USER_ERRORS,
    OnError,
    check_on_error,
    fail,
)
from aiomailbox.operators.core.resources import FunctionLife
from aiomailbox.operators.functions.function_state import check_without_keys
from aiomailbox.operators.functions.process_context import ProcessContext
from aiomailbox.records import MIN_TIMESTAMP, Run


class ProcessFunction:
    """A function with a life, side outputs and access to time; subclass it.

    Each method may be ``async def``.

    Concept:
        Flink, ``ProcessFunction``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> class Split(ProcessFunction):
        ...     def process_element(self, value, context, out):
        ...         for word in value.split():
        ...             out.collect(word)
        >>> with OneInputHarness(ProcessOperator(Split())) as harness:
        ...     harness.process_element("to be")
        ...     harness.values
        ['to', 'be']
    """

    def open(self, context: RuntimeContext) -> Any:
        """Acquire resources, before the first record.

        A context manager that is returned, such as an HTTP client, is entered now and
        left at the end; what it gives is ``context.resource`` of the other methods.
        """
        return None

    def process_element(self, value: Any, context: Any, out: Collector) -> Pending:
        """Process one record; what it leads to goes to ``out.collect(value)``."""
        raise WrongTypeError(
            "function", f"{type(self).__qualname__} defines no process_element"
        )

    def finish(self, out: Collector) -> Pending:
        """Emit what is still held back; no record follows."""
        return None

    def close(self) -> Pending:
        """Release resources; called also after a failure."""
        return None


ProcessCall = Callable[[Any, Any, Collector], Pending]


def check_process_method(owner: object, method: str) -> ProcessCall:
    """Return a method ``(value, context, out)`` of a function object.

    Raises:
        WrongTypeError: If it is not there, or is a generator: results go to ``out``.
    """
    call = getattr(owner, method, None)
    if not callable(call):
        raise WrongTypeError(
            "function",
            f"{owner!r} has no method {method}(value, context, out)",
            "Give an instance of a subclass of ProcessFunction.",
        )
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise WrongTypeError(
            "function",
            f"{describe(call)} is a generator, which nobody would iterate",
            "Write out.collect(value) where it says yield value.",
        )
    checked: ProcessCall = call
    return checked


class ElementCalls:
    """Calls a function for each record of a run and emits what it collected.

    Results go out as one run at the end; after a call that had to be awaited, at once.

    Args:
        function: Called with the value, the context and the collector.
        context: Gets the event time of each record.
        collector: Gets the results.
        failures: Gets the records for which the function raises.
        before: Called with each value before the function, e.g. to set the key.
    """

    __slots__ = ("_before", "_collector", "_context", "_failures", "_function")

    def __init__(
        self,
        function: ProcessCall,
        context: ProcessContext,
        collector: Collector,
        failures: RecordFailures,
        before: Callable[[Any], None] | None = None,
    ) -> None:
        self._function = function
        self._context = context
        self._collector = collector
        self._failures = failures
        self._before = before

    def process_run(self, run: Run) -> Pending:
        """Process all records of a run, in order."""
        pending, index = self._advance(run, 0)
        if pending is None:
            return self.emit()
        return self._process_rest(pending, run, index)

    def emit(self) -> Pending:
        """Emit what was collected, and what failed."""
        if self._failures.waiting:
            return then(self._failures.report(), self._collector.emit)
        return self._collector.emit()

    def _advance(self, run: Run, start: int) -> tuple[Pending, int]:
        """Process records until a call must be awaited; return it and its index."""
        values, timestamps = run.values, run.timestamps
        function, context, collector = self._function, self._context, self._collector
        before = self._before
        for index in range(start, len(values)):
            stamp = MIN_TIMESTAMP if timestamps is None else timestamps[index]
            collector.timestamp = stamp
            context.timestamp = None if stamp == MIN_TIMESTAMP else stamp
            value = values[index]
            if before is not None:
                before(value)
            try:
                pending = function(value, context, collector)
            except USER_ERRORS as error:
                self._failures.take(value, stamp, error)
                continue
            if pending is not None:
                return pending, index
        return None, len(values)

    async def _process_rest(self, pending: Pending, run: Run, index: int) -> None:
        while pending is not None:
            try:
                await pending
            except USER_ERRORS as error:
                stamp = self._collector.timestamp
                self._failures.take(run.values[index], stamp, error)
            emitted = self.emit()
            if emitted is not None:
                await emitted
            pending, index = self._advance(run, index + 1)
        emitted = self.emit()
        if emitted is not None:
            await emitted


class ProcessOperator(Operator):
    """Runs a `ProcessFunction` on a stream without keys.

    Args:
        function: The function; it is not shared between subtasks.
        on_error: What to do with a record for which it raises. What it had emitted
            for the record until then stays emitted.

    Raises:
        WrongTypeError: If ``function`` has no usable ``process_element``, or needs a
            key: it has ``on_timer``, or describes state of a key.

    Concept:
        Flink, ``ProcessOperator``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> class Late(ProcessFunction):
        ...     def process_element(self, value, context, out):
        ...         out.collect((value, context.timestamp))
        >>> with OneInputHarness(ProcessOperator(Late())) as harness:
        ...     harness.process_element("a", 5)
        ...     harness.values
        [('a', 5)]
    """

    def __init__(self, function: Any, *, on_error: OnError = fail) -> None:
        self._call = check_process_method(function, "process_element")
        check_without_keys(
            function,
            "Derive from KeyedProcessFunction and write key_by(...).process(...).",
        )
        FunctionHooks(function)
        self.function = function
        self.on_error = check_on_error(on_error)
        self._is_open = False

    def open(self) -> Pending:
        """Open the function."""
        self._collector = Collector(self.output)
        self._context = ProcessContext(self.context, self._collector)
        self._context.current_watermark = self.watermark_ms
        self._failures = RecordFailures(
            self.on_error, self._call, self.context, self.output
        )
        self._calls = ElementCalls(
            self._call, self._context, self._collector, self._failures
        )
        self._is_open = True
        self._life = FunctionLife(self.function)
        return self._failures.guard(self._life.open, self.context, self._context)

    def process_run(self, run: Run) -> Pending:
        """Call the function for each record and emit its results as one run."""
        return self._calls.process_run(run)

    def process_watermark(self, timestamp_ms: int) -> Pending:
        """Note the watermark for the function and pass it on."""
        self.watermark_ms = timestamp_ms
        self._context.current_watermark = timestamp_ms
        return self.output.emit_watermark(timestamp_ms)

    def fill_state(self) -> None:
        """Let the function put what it holds into its state."""
        if self._is_open:
            self._failures.guard(self._life.snapshot)

    def finish(self) -> Pending:
        """Let the function emit what it holds back."""
        self._collector.timestamp = MIN_TIMESTAMP
        pending = self._failures.guard(self.function.finish, self._collector)
        return then(pending, self._calls.emit)

    def close(self) -> Pending:
        """Close the function, if it was opened."""
        if not self._is_open:
            return None
        self._is_open = False
        self._collector.discard()
        return self._failures.guard(self._life.close)
