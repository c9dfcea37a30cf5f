"""Map, filter and flat_map: operators that keep nothing between records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from aiomailbox.operators.core.callables import (
    check_function,
    check_sync_function,
    is_async_callable,
    refuse_generator,
    refuse_resultless,
)
from aiomailbox.operators.core.contract import Operator, Pending
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.on_error import OnError, check_on_error, fail
from aiomailbox.operators.core.watched import watched_function
from aiomailbox.operators.stateless.async_operator import AsyncStatelessOperator
from aiomailbox.operators.stateless.fused_loop import FusedLoop
from aiomailbox.operators.stateless.fused_source import StageKind
from aiomailbox.operators.stateless.thread_operator import (
    ThreadOperator,
    check_run_in,
)
from aiomailbox.records.run import ListRun, Run


class StatelessOperator(Operator):
    """A synchronous function applied to each record; adjacent ones can be fused.

    Args:
        function: Called with each value.
        on_error: What to do with a record for which it raises.

    Raises:
        WrongTypeError: If ``function`` cannot be called with one argument, or is
            asynchronous (see `stateless`), or ``on_error`` is not an `OnError`.
        InvalidArgumentError: If ``function`` is a generator and this is no flat_map.
    """

    kind: ClassVar[StageKind]

    def __init__(
        self, function: Callable[[Any], Any], *, on_error: OnError = fail
    ) -> None:
        self.function: Callable[..., Any] = check_sync_function(
            function, "function", arity=1
        )
        if self.kind is not StageKind.FLAT_MAP:
            refuse_generator(function, "function", "Use it with flat_map.")
        self.on_error: OnError = check_on_error(on_error)
        self._loop: FusedLoop | None = None

    def failures(self) -> RecordFailures:
        """Return a collector of the operator's failed records."""
        return RecordFailures(self.on_error, self.function, self.context, self.output)

    def open(self) -> Pending:
        """Prepare the loop; it is compiled when the first run shows its form."""
        check = self.context.mutations
        if check is not None and self.kind is StageKind.FLAT_MAP:
            self.function = watched_function(self.function, check)
        self._loop = FusedLoop([self], self.output)
        return None

    def process_run(self, run: Run) -> Pending:
        """Apply the function to each record and emit the results as one run."""
        assert self._loop is not None, "process_run before open"
        return self._loop.process(run)

    def process_element(self, value: Any, timestamp: int | None) -> Pending:
        """Apply the function to one record."""
        return self.process_run(
            ListRun([value], None if timestamp is None else [timestamp])
        )


class MapOperator(StatelessOperator):
    """Replaces each record by what a function returns for it.

    Concept:
        Flink, ``MapFunction`` and ``StreamMap``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> with OneInputHarness(MapOperator(str.upper)) as harness:
        ...     harness.process_element("a", 1)
        ...     harness.output
        [StreamRecord(value='A', timestamp=1)]
    """

    kind = StageKind.MAP


class FilterOperator(StatelessOperator):
    """Keeps the records for which a function returns something true.

    Concept:
        Flink, ``FilterFunction`` and ``StreamFilter``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> with OneInputHarness(FilterOperator(str.isupper)) as harness:
        ...     harness.process_run(["a", "B"])
        ...     harness.output
        [StreamRecord(value='B', timestamp=None)]
    """

    kind = StageKind.FILTER


class FlatMapOperator(StatelessOperator):
    """Replaces each record by the items of what a function returns for it.

    The function returns an iterable, or is a generator function: then it is paused
    between its items while the output cannot take more.

    Concept:
        Flink, ``FlatMapFunction`` and ``StreamFlatMap``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> with OneInputHarness(FlatMapOperator(str.split)) as harness:
        ...     harness.process_run(["to be", "or"])
        ...     [record.value for record in harness.output]
        ['to', 'be', 'or']
    """

    kind = StageKind.FLAT_MAP


_OPERATORS: dict[StageKind, type[StatelessOperator]] = {
    operator.kind: operator
    for operator in (MapOperator, FilterOperator, FlatMapOperator)
}


def stateless(
    kind: StageKind,
    function: Callable[[Any], Any],
    *,
    on_error: OnError = fail,
    run_in: str = "loop",
) -> StatelessOperator | AsyncStatelessOperator | ThreadOperator:
    """Return the operator for a function, whether it is sync or ``async def``.

    Args:
        kind: What is done with the function's result.
        function: Called with each value.
        on_error: What to do with a record for which it raises.
        run_in: ``"thread"`` for a synchronous function that blocks.

    Raises:
        InvalidArgumentError: If ``run_in`` is not known, or does not fit the function.
        WrongTypeError: If ``function`` cannot be called with one argument.

    Example:
        >>> stateless(StageKind.MAP, str.upper).kind.value
        'map'
    """
    check_run_in(run_in, function)
    if kind is StageKind.FILTER:
        refuse_resultless(function, "function")
    if run_in == "thread":
        return ThreadOperator(kind, function, on_error=on_error)
    checked = check_function(function, "function", arity=1)
    if is_async_callable(checked):
        return AsyncStatelessOperator(kind, checked, on_error=on_error)
    return _OPERATORS[kind](checked, on_error=on_error)
