"""Functions on two connected streams, without keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic

from aiomailbox.operators.core.callables import (
    check_sync_function,
    refuse_generator,
)
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.contract import Pending
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.on_error import OnError, check_on_error, fail
from aiomailbox.operators.core.two_input import TwoInputOperator
from aiomailbox.operators.functions.co_inputs import CoFunctionOperator
from aiomailbox.operators.functions.function_state import check_without_keys
from aiomailbox.operators.functions.process_context import ProcessContext
from aiomailbox.operators.functions.rich import RichFunction
from aiomailbox.operators.stateless.fused_loop import FusedLoop
from aiomailbox.operators.stateless.fused_source import StageKind
from aiomailbox.records.run import Run
from aiomailbox.typevars import ContextT, FirstT, OutT, SecondT


class _CoStage:
    """One of the two functions, as the loop sees it."""

    def __init__(self, operator: CoMapOperator, function: Callable[[Any], Any]) -> None:
        self.kind = operator.kind
        self.function = function
        self.on_error = operator.on_error
        self.context = operator.context
        self._output = operator.output

    def failures(self) -> RecordFailures:
        return RecordFailures(self.on_error, self.function, self.context, self._output)


class CoMapOperator(TwoInputOperator):
    """Replaces each record by what the function of its stream returns.

    Args:
        first: Called with each value of the first stream.
        second: Called with each value of the second stream.
        on_error: What to do with a record for which its function raises.

    Raises:
        WrongTypeError: If a function cannot be called with one argument or is
            ``async def``.
        InvalidArgumentError: If a function is a generator and this is no flat_map.

    Concept:
        Flink, ``CoMapFunction`` and ``CoStreamMap``.

    Example:
        >>> from aiomailbox.testing import TwoInputHarness
        >>> with TwoInputHarness(CoMapOperator(str, float)) as harness:
        ...     harness.first.process_element(1)
        ...     harness.second.process_element("2")
        ...     harness.values
        ['1', 2.0]
    """

    kind: ClassVar[StageKind] = StageKind.MAP

    def __init__(
        self,
        first: Callable[[Any], Any],
        second: Callable[[Any], Any],
        *,
        on_error: OnError = fail,
    ) -> None:
        super().__init__()
        self.first: Callable[..., Any] = check_sync_function(first, "first", arity=1)
        self.second: Callable[..., Any] = check_sync_function(second, "second", arity=1)
        if self.kind is not StageKind.FLAT_MAP:
            refuse_generator(first, "first", "Use it with flat_map.")
            refuse_generator(second, "second", "Use it with flat_map.")
        self.on_error: OnError = check_on_error(on_error)

    def open(self) -> Pending:
        """Prepare a loop for each function."""
        self._first_loop = FusedLoop([_CoStage(self, self.first)], self.output)
        self._second_loop = FusedLoop([_CoStage(self, self.second)], self.output)
        return None

    def process_run1(self, run: Run) -> Pending:
        """Apply the first function to each record."""
        return self._first_loop.process(run)

    def process_run2(self, run: Run) -> Pending:
        """Apply the second function to each record."""
        return self._second_loop.process(run)


class CoFlatMapOperator(CoMapOperator):
    """Replaces each record by the items that the function of its stream returns.

    Args:
        first: Called with each value of the first stream; returns an iterable.
        second: Called with each value of the second stream; returns an iterable.
        on_error: What to do with a record for which its function raises.

    Concept:
        Flink, ``CoFlatMapFunction`` and ``CoStreamFlatMap``.

    Example:
        >>> from aiomailbox.testing import TwoInputHarness
        >>> with TwoInputHarness(CoFlatMapOperator(str.split, list)) as harness:
        ...     harness.first.process_element("to be")
        ...     harness.second.process_element("or")
        ...     harness.values
        ['to', 'be', 'o', 'r']
    """

    kind = StageKind.FLAT_MAP


class TwoInputFunction(RichFunction[OutT], Generic[FirstT, SecondT, ContextT, OutT]):
    """A function of the records of two streams."""

    def process_element1(
        self, value: FirstT, context: ContextT, out: Collector[OutT], /
    ) -> Pending:
        """Process a record of the first stream; by default it is dropped."""
        return None

    def process_element2(
        self, value: SecondT, context: ContextT, out: Collector[OutT], /
    ) -> Pending:
        """Process a record of the second stream; by default it is dropped."""
        return None

    def end_input(self, index: int, out: Collector[OutT], /) -> Pending:
        """React to the end of the first (0) or the second (1) stream."""
        return None


class CoProcessFunction(
    TwoInputFunction[FirstT, SecondT, ProcessContext, OutT],
    Generic[FirstT, SecondT, OutT],
):
    """A process function of two streams; subclass it. Methods may be ``async def``.

    With a method ``next_selection()``, not ``async def``, that returns an
    `InputSelection` it chooses the stream that the next record comes from.

    Concept:
        Flink, ``CoProcessFunction``.
    """


class CoProcessOperator(CoFunctionOperator):
    """Runs a `CoProcessFunction` on two streams without keys.

    Args:
        function: The function; it is not shared between subtasks.
        on_error: What to do with a record for which it raises.

    Raises:
        WrongTypeError: If ``function`` lacks one of its two methods.

    Concept:
        Flink, ``CoProcessOperator``.

    Example:
        >>> from aiomailbox.testing import TwoInputHarness
        >>> class Tag(CoProcessFunction):
        ...     def process_element1(self, value, context, out):
        ...         out.collect(("left", value))
        >>> with TwoInputHarness(CoProcessOperator(Tag())) as harness:
        ...     harness.first.process_element(1)
        ...     harness.values
        [('left', 1)]
    """

    def __init__(self, function: Any, *, on_error: OnError = fail) -> None:
        super().__init__(function, on_error)
        check_without_keys(
            function,
            "Derive from KeyedCoProcessFunction and give both streams a key.",
        )
