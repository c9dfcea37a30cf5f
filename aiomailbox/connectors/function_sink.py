"""A function as a sink."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from operator import length_hint
from types import CoroutineType
from typing import Any

from aiomailbox.connectors.immediate_writer import ImmediateWriter
from aiomailbox.errors import RecordsRefusedError
from aiomailbox.operators.core.callables import (
    check_function,
    is_async_callable,
    refuse_coroutine,
)
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.contract import Pending
from aiomailbox.operators.core.interruption import RunInterruption
from aiomailbox.operators.core.on_error import USER_ERRORS, is_closing
from aiomailbox.operators.sinks.sink import CommitterContext
from aiomailbox.records.run import Run

__all__ = ["FunctionSink"]


class FunctionSink:
    """Calls a function with every record, in order.

    An ``async def`` function is awaited before it gets the next record, so the
    pipeline goes at its pace. Guarantee: at least once. In a job with checkpoints, records
    since the newest one come again after a failure: what the function does must bear it.
    Without checkpoints a job that fails has called it for some of its records. It is called in the process that starts the job, wherever the rest
    of the job runs: what it fills or prints is the caller's.

    Args:
        function: A function of one record. What it returns is ignored, but a coroutine
            from a function that is not ``async def`` fails the job.

    Raises:
        WrongTypeError: If it is not callable with one argument.

    Example:
        >>> sink = FunctionSink(print)
    """

    # A copy of the function in another process would fill a copy of what it fills.
    stays_in_parent = True

    def __init__(self, function: Callable[[Any], object]) -> None:
        self.function: Callable[..., Any] = check_function(
            function, "function", arity=1
        )
        self.may_leave_rest: bool = is_async_callable(self.function)

    def create_writer(self, context: RuntimeContext) -> _FunctionWriter:
        """Create the writer of one subtask."""
        return _FunctionWriter(self.function)

    def create_committer(self, context: CommitterContext) -> None:
        """Return None: nothing is committed."""
        return


class _FunctionWriter(ImmediateWriter):
    def __init__(self, function: Callable[[Any], object]) -> None:
        self.interruption: RunInterruption | None = None
        self._function = function
        self._is_async = is_async_callable(function)

    def write_run(self, run: Run) -> Pending:
        """Call the function with each record."""
        if self._is_async:
            return self._await_each(run)
        function = self._function
        values = iter(run.values)
        try:
            for value in values:
                result = function(value)
                # One test per record; a call that is never awaited would be lost.
                if type(result) is CoroutineType:
                    refuse_coroutine(result, function)
        except USER_ERRORS as error:
            raise _refused(run, values, error) from error
        return None

    async def _await_each(self, run: Run) -> None:
        function: Any = self._function
        interruption = self.interruption
        if interruption is not None:
            interruption.start()
        values = iter(run.values)
        try:
            for value in values:
                result: Awaitable[object] = function(value)
                await result
                if interruption is not None and interruption.watch.has_waited:
                    following = len(run) - length_hint(values)
                    if await interruption.look_around(run, following):
                        return
        except USER_ERRORS as error:
            if is_closing(error):
                raise
            raise _refused(run, values, error) from error


def _refused(
    run: Run, values: Iterator[Any], error: BaseException
) -> RecordsRefusedError:
    """Refuse the last record that was taken from a list's iterator.

    It knows how many are left: they need not be counted.
    """
    seen = len(run) - length_hint(values)
    return RecordsRefusedError({seen - 1: error}, seen)
