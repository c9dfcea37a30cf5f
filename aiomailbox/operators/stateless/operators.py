"""Map, filter and flat_map: operators that keep nothing between records."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, ClassVar

from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.operators.core.failures import (
    USER_ERRORS,
    OnError,
    RecordFailures,
    check_on_error,
    fail,
)
from aiomailbox.operators.core.operator import Operator, Pending
from aiomailbox.operators.core.user_code import (
    CallableKind,
    callable_kind,
    check_function,
    check_sync_function,
    describe,
    is_async_callable,
    items_of,
    refuse_generator,
    refuse_resultless,
)
from aiomailbox.operators.core.watched import noted, watched_function
from aiomailbox.operators.stateless.fused import FusedLoop, StageKind, next_piece_length
from aiomailbox.operators.stateless.thread_operator import ThreadOperator, check_run_in
from aiomailbox.records.run import ListRun, Run

# Map, filter and flat_map with ``async def`` functions, one record at a time.


class AsyncStatelessOperator(Operator):
    """An ``async def`` function awaited for one record after the other.

    Each result goes out before the next call, so order is kept and nothing is held
    back; `map_async` runs many calls at once.

    Args:
        kind: What is done with the function's result. A flat_map's is an iterable, or
            the function is an asynchronous generator.
        function: Called with each value.
        on_error: What to do with a record for which it raises.

    Raises:
        WrongTypeError: If ``function`` is not asynchronous or cannot be called with
            one argument.
        InvalidArgumentError: If an asynchronous generator is not used as flat_map.

    Example:
        >>> import asyncio
        >>> from aiomailbox.testing import OneInputHarness
        >>> async def greet(name):
        ...     return f"hello {name}"
        >>> async def main():
        ...     with OneInputHarness(
        ...         AsyncStatelessOperator(StageKind.MAP, greet)
        ...     ) as harness:
        ...         await harness.run(harness.process_element, "you")
        ...         return harness.values
        >>> asyncio.run(main())
        ['hello you']
    """

    def __init__(
        self,
        kind: StageKind,
        function: Callable[[Any], Any],
        *,
        on_error: OnError = fail,
    ) -> None:
        self.kind = kind
        self.function: Callable[..., Any] = check_function(
            function, "function", arity=1
        )
        self.on_error: OnError = check_on_error(on_error)
        gives = callable_kind(self.function)
        if gives is CallableKind.SYNC:
            raise WrongTypeError(
                "function",
                f"{describe(function)} is not asynchronous",
                "Give an async def function.",
            )
        self._piece_length = 1
        self._generates = gives is CallableKind.ASYNC_GENERATOR
        if self._generates and kind is not StageKind.FLAT_MAP:
            raise InvalidArgumentError(
                "function",
                f"{describe(function)} is an asynchronous generator",
                "Use it with flat_map.",
            )

    def open(self) -> Pending:
        """Prepare for failing records."""
        self._failures = RecordFailures(
            self.on_error, self.function, self.context, self.output
        )
        return None

    def may_leave_rest(self, index: int) -> bool:
        """Whether it may leave the rest of a run: always."""
        return True

    def process_run(self, run: Run) -> Pending:
        """Await the function for each record, in order."""
        return self._process(run) if len(run) else None

    async def _process(self, run: Run) -> None:
        values, timestamps = run.values, run.timestamps
        process = self._process_generated if self._generates else self._process_awaited
        availability, interruption = self.output.availability, self.interruption
        watch = interruption.start()
        for index, value in enumerate(values):
            timestamp = None if timestamps is None else timestamps[index]
            # Before each record: what one emits always fits.
            if not availability.available:
                if interruption.leave(run, index):
                    return
                await self.context.mailbox.wait_until(availability)
            await process(value, timestamp)
            if self._failures.waiting:
                reported = self._failures.report()
                if reported is not None:
                    await reported
            if watch.has_waited and await interruption.look_around(run, index + 1):
                return

    async def _process_awaited(self, value: Any, timestamp: int | None) -> None:
        try:
            result = await self.function(value)
            is_flat = self.kind is StageKind.FLAT_MAP
            items = items_of(self.function, result) if is_flat else None
            if items is not None and self.context.mutations is not None:
                items = noted(items, self.context.mutations)
        except USER_ERRORS as error:
            self._failures.take(value, timestamp, error)
            return
        if items is not None:
            await self._emit_items(value, timestamp, items)
        elif self.kind is StageKind.MAP:
            await self._emit([result], timestamp)
        elif result:
            await self._emit([value], timestamp)

    async def _emit_items(
        self, value: Any, timestamp: int | None, items: Iterator[Any]
    ) -> None:
        """Emit items in pieces, and pause while the output is full: they may not end."""
        while True:
            length, piece = self._piece_length, list[Any]()
            try:
                # What islice has taken when it raises is in the list nevertheless.
                piece.extend(islice(items, length))
            except USER_ERRORS as error:
                await self._emit(piece, timestamp)
                self._failures.take(value, timestamp, error)
                return
            await self._emit(piece, timestamp)
            available = self.output.availability.available
            self._piece_length = next_piece_length(length, len(piece), fitted=available)
            if len(piece) < length:
                return
            # An endless iterator of ready items would keep the event loop.
            await asyncio.sleep(0)
            await self._wait_for_room()

    async def _process_generated(self, value: Any, timestamp: int | None) -> None:
        # Closed also if the task ends in the middle, so that its `finally` runs now and
        # not at some collection of garbage.
        async with contextlib.aclosing(self.function(value)) as items:
            while True:
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
                except USER_ERRORS as error:
                    self._failures.take(value, timestamp, error)
                    return
                await self._emit([item], timestamp)
                await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        """Wait in the middle of a record, while those behind go on with theirs."""
        availability = self.output.availability
        if not availability.available:
            await self.context.mailbox.wait_until(availability)

    async def _emit(self, results: list[Any], timestamp: int | None) -> None:
        if not results:
            return
        stamps = None if timestamp is None else [timestamp] * len(results)
        pending = self.output.emit_run(ListRun(results, stamps))
        if pending is not None:
            await pending


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
