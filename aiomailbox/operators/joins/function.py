"""What becomes of two records that belong together."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from types import CoroutineType
from typing import Any, Generic

from aiomailbox.errors import WrongTypeError
from aiomailbox.operators.core.callables import (
    CallableKind,
    callable_kind,
    check_function,
    collected,
    describe,
    refuse_coroutine,
    refuse_undefined,
)
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.contract import Pending
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.mutations import MutationCheck
from aiomailbox.operators.core.on_error import USER_ERRORS
from aiomailbox.operators.functions.process_context import ProcessContext
from aiomailbox.records.elements import MIN_TIMESTAMP
from aiomailbox.typevars import FirstT, OutT, SecondT

# The records of two sides with their event times; `MIN_TIMESTAMP` where there is none.
Pair = tuple[Any, int, Any, int]


class ProcessJoinContext(ProcessContext):
    """A `ProcessContext` that knows the event times of both records.

    ``timestamp`` is that of the result: the larger one.

    Attributes:
        left_timestamp: Of the left record, milliseconds.
        right_timestamp: Of the right record; None if there is no such record.

    Concept:
        Flink, ``ProcessJoinFunction.Context``.
    """

    __slots__ = ("left_timestamp", "right_timestamp")

    def __init__(self, context: RuntimeContext, collector: Collector) -> None:
        super().__init__(context, collector)
        self.left_timestamp: int = MIN_TIMESTAMP
        self.right_timestamp: int | None = None


class ProcessJoinFunction(Generic[FirstT, SecondT, OutT]):
    """A function of two records that belong together; subclass it.

    Each method may be ``async def``.

    Concept:
        Flink, ``ProcessJoinFunction``.

    Example:
        >>> class Delay(ProcessJoinFunction):
        ...     def process_element(self, left, right, context, out):
        ...         out.collect(context.right_timestamp - context.left_timestamp)
    """

    def open(self, context: RuntimeContext, /) -> Any:
        """Acquire resources, before the first pair."""
        return None

    @abstractmethod
    def process_element(
        self,
        left: FirstT,
        right: SecondT,
        context: ProcessJoinContext,
        out: Collector[OutT],
        /,
    ) -> Pending:
        """Take a pair; what it leads to goes to ``out.collect(value)``."""
        raise WrongTypeError(
            "function", f"{type(self).__qualname__} defines no process_element"
        )

    def close(self) -> Pending:
        """Release resources; called also after a failure."""
        return None


class PairFunction(ProcessJoinFunction):
    """A plain function of two records, whose result is emitted.

    Args:
        function: ``(left, right)`` → the result; may be ``async def``.
        parameter: The argument it was given for.
    """

    def __init__(
        self, function: Callable[[Any, Any], Any], parameter: str = "function"
    ) -> None:
        self.function: Callable[..., Any] = check_function(function, parameter, arity=2)
        kind = callable_kind(function)
        if kind is CallableKind.ASYNC_GENERATOR or inspect.isgeneratorfunction(
            function
        ):
            raise WrongTypeError(
                parameter,
                f"{describe(function)} is a generator",
                "Return one result, or use a ProcessJoinFunction.",
            )
        self._is_async = kind is CallableKind.ASYNC

    def process_element(
        self, left: Any, right: Any, context: Any, out: Collector, /
    ) -> Pending:
        """Emit what the function returns."""
        result = self.function(left, right)
        if self._is_async:
            return self._collect(result, out)
        if type(result) is CoroutineType:
            refuse_coroutine(result, self.function)
        out.collect(result)
        return None

    async def _collect(self, result: Awaitable[Any], out: Collector) -> None:
        out.collect(await result)


def pair(left: Any, right: Any) -> tuple[Any, Any]:
    """Return both records: what joins emit if no function is given."""
    return left, right


def check_join_function(function: Any, parameter: str = "function") -> Any:
    """Return ``function`` in the form of `ProcessJoinFunction`.

    Raises:
        WrongTypeError: If it is neither that nor a function of two arguments.
    """
    process = getattr(function, "process_element", None)
    if process is None:
        return PairFunction(function, parameter)
    refuse_undefined(process, parameter)
    check_function(process, parameter, arity=4)
    if inspect.isgeneratorfunction(process) or inspect.isasyncgenfunction(process):
        raise WrongTypeError(
            parameter,
            f"{describe(process)} is a generator, which is never iterated",
            "Write out.collect(value) where it says yield value.",
        )
    return function


class PairCalls:
    """Calls a join function for pairs; its results get the larger event time.

    Args:
        function: A `ProcessJoinFunction`.
        context: Gets the event times of each pair.
        collector: Gets the results, and emits those that were awaited at once.
        failures: Gets the pairs for which the function raises.
        check: Watches over the records of the pairs, or None.
    """

    __slots__ = ("_call", "_collector", "_context", "_failures", "_function")

    def __init__(
        self,
        function: Any,
        context: ProcessJoinContext,
        collector: Collector,
        failures: RecordFailures,
        check: MutationCheck | None = None,
    ) -> None:
        self._function: Callable[..., Pending] = function.process_element
        self._call = self._function
        if check is not None:
            self._call = _watched(check, self._function)
        self._context = context
        self._collector = collector
        self._failures = failures

    def process(self, pairs: Sequence[Pair]) -> Pending:
        """Call the function for each pair, in order."""
        pending, index = self._advance(pairs, 0)
        return None if pending is None else self._process_rest(pending, pairs, index)

    def _advance(self, pairs: Sequence[Pair], start: int) -> tuple[Pending, int]:
        """Process pairs until a call must be awaited; return it and its index."""
        call, context, collector = self._call, self._context, self._collector
        for index in range(start, len(pairs)):
            left, left_ms, right, right_ms = pairs[index]
            context.left_timestamp = left_ms
            context.right_timestamp = None if right_ms == MIN_TIMESTAMP else right_ms
            stamp = max(left_ms, right_ms)
            context.timestamp = collector.timestamp = stamp
            collector.passed = 0
            try:
                pending = call(left, right, context, collector)
            except USER_ERRORS as error:
                self._failures.take((left, right), stamp, error)
                continue
            if pending is not None:
                return pending, index
        return None, len(pairs)

    async def _process_rest(
        self, pending: Pending, pairs: Sequence[Pair], index: int
    ) -> None:
        while pending is not None:
            try:
                await collected(self._function, pending)
            except USER_ERRORS as error:
                left, left_ms, right, right_ms = pairs[index]
                self._failures.take((left, right), max(left_ms, right_ms), error)
            emitted = self._collector.emit()
            if emitted is not None:
                await emitted
            pending, index = self._advance(pairs, index + 1)


def _watched(
    check: MutationCheck, process: Callable[..., Pending]
) -> Callable[..., Pending]:
    def call(left: Any, right: Any, *rest: Any) -> Pending:
        pending: Pending = check.calling((left, right), process, left, right, *rest)
        return pending

    return call
