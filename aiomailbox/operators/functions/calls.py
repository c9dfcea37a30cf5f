"""Calls a method of a function object for each record of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from aiomailbox.errors import WrongTypeError
from aiomailbox.operators.core.callables import (
    check_methods,
    collected,
    describe,
    refuse_undefined,
)
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.contract import Pending, then
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.interruption import RunInterruption
from aiomailbox.operators.core.on_error import USER_ERRORS
from aiomailbox.operators.functions.process_context import ProcessContext
from aiomailbox.records.elements import MIN_TIMESTAMP
from aiomailbox.records.run import Run

__all__ = [
    "ElementCalls",
    "ProcessCall",
    "check_function_object",
    "check_process_method",
]

# What the methods of function objects are called with.
_RECORD: Final = ("value", "context", "out")
_OTHERS: Final = {
    "on_timer": ("timestamp", "context", "out"),
    "process": ("key", "context", "elements", "out"),
}
_LIFE: Final = {
    "open": ("context",),
    "clear": ("context",),
    "end_input": ("index", "out"),
    "next_selection": (),
    "finish": ("out",),
    "close": (),
}

ProcessCall = Callable[[Any, Any, Collector], Pending]


def check_process_method(owner: object, method: str) -> ProcessCall:
    """Return a method ``(value, context, out)`` of a function object.

    Raises:
        WrongTypeError: If it is not there, or only declared, takes other arguments, or is
            a generator: results go to ``out``.
    """
    call = getattr(owner, method, None)
    if not callable(call):
        raise WrongTypeError(
            "function",
            f"{owner!r} has no method {method}(value, context, out)",
            "Give an instance of a subclass of ProcessFunction.",
        )
    refuse_undefined(call, "function")
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise WrongTypeError(
            "function",
            f"{describe(call)} is a generator, which is never iterated",
            "Write out.collect(value) where it says yield value.",
        )
    check_methods(owner, "function", {method: _OTHERS.get(method, _RECORD)})
    checked: ProcessCall = call
    return checked


def check_function_object(function: object, parameter: str = "function") -> None:
    """Refuse a function object whose life cannot be as it will be: opened, closed.

    Raises:
        WrongTypeError: Naming the method, its line, and how to write it.
    """
    check_methods(function, parameter, _LIFE)


class ElementCalls:
    """Calls a function for each record of a run and emits what it collected.

    Results go out as one run at the end; after a call that had to be awaited, at once.

    Args:
        function: Called with the value, the context and the collector.
        context: Gets the event time of each record.
        collector: Gets the results.
        failures: Gets the records for which the function raises.
        interruption: The operator's, asked between two calls that are awaited.
        enter: Called with the key of each record before the function, if there are keys.
    """

    __slots__ = (
        "_collector",
        "_context",
        "_enter",
        "_failures",
        "_function",
        "_interruption",
    )

    def __init__(
        self,
        function: ProcessCall,
        context: ProcessContext,
        collector: Collector,
        failures: RecordFailures,
        interruption: RunInterruption,
        enter: Callable[[Any], None] | None = None,
    ) -> None:
        self._interruption = interruption
        self._function = function
        self._context = context
        self._collector = collector
        self._failures = failures
        self._enter = enter

    def process_run(self, run: Run, keys: Sequence[Any] = ()) -> Pending:
        """Process all records of a run, in order.

        Args:
            run: The records.
            keys: The key of each, if they have any.
        """
        pending, index = self._advance(run, keys, 0)
        if pending is None:
            return self.emit()
        return self._process_rest(pending, run, keys, index)

    def emit(self) -> Pending:
        """Emit what was collected, and what failed."""
        if self._failures.waiting:
            return then(self._failures.report(), self._collector.emit)
        return self._collector.emit()

    def _advance(
        self, run: Run, keys: Sequence[Any], start: int
    ) -> tuple[Pending, int]:
        """Process records until a call must be awaited; return it and its index."""
        values, timestamps = run.values, run.timestamps
        function, context, collector = self._function, self._context, self._collector
        enter = self._enter
        collector.timestamp = MIN_TIMESTAMP
        context.timestamp = None
        for index in range(start, len(values)):
            if timestamps is not None:
                stamp = timestamps[index]
                collector.timestamp = stamp
                context.timestamp = None if stamp == MIN_TIMESTAMP else stamp
            if enter is not None:
                enter(keys[index])
            collector.passed = 0
            try:
                pending = function(values[index], context, collector)
            except USER_ERRORS as error:
                self._failures.take(values[index], collector.timestamp, error)
                continue
            if pending is not None:
                return pending, index
        return None, len(values)

    async def _process_rest(
        self, pending: Pending, run: Run, keys: Sequence[Any], index: int
    ) -> None:
        interruption = self._interruption
        watch = interruption.start()
        while pending is not None:
            try:
                await collected(self._function, pending)
            except USER_ERRORS as error:
                stamp = self._collector.timestamp
                self._failures.take(run.values[index], stamp, error)
            emitted = self.emit()
            if emitted is not None:
                await emitted
            if watch.has_waited and await interruption.look_around(run, index + 1):
                return
            pending, index = self._advance(run, keys, index + 1)
        emitted = self.emit()
        if emitted is not None:
            await emitted
