"""Running results per key: every record leads to an updated one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import length_hint
from types import CoroutineType
from typing import Any, Final, NoReturn

from aiomailbox.errors import RecordTypeError
from aiomailbox.operators.aggregates.compiled import result_type
from aiomailbox.operators.aggregates.functions import (
    Aggregate,
    Reduced,
    check_aggregate,
    is_async_aggregate,
    warn_of_text,
)
from aiomailbox.operators.aggregates.undoing import UndoableAggregate, undoable
from aiomailbox.operators.core.failures import (
    USER_ERRORS,
    ErrorAction,
    OnError,
    RecordFailures,
    check_on_error,
    fail,
    raise_as,
)
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.operator import Pending, awaited, then
from aiomailbox.operators.core.user_code import (
    check_function,
    is_async_callable,
    refuse_coroutines,
    refuse_generator,
    refuse_none,
)
from aiomailbox.operators.keyed.key_reader import KeyReader
from aiomailbox.operators.keyed.stateful import StatefulOperator
from aiomailbox.records.run import ListRun, Run
from aiomailbox.state.descriptors import AccumulatorDescriptor, AggregateFunction

_RETURN_ONE: Final = "Return the reduced record."

KeySelector = str | Callable[[Any], Any]


class RollingOperator(StatefulOperator):
    """The base of operators that keep one content per key and emit each update.

    Args:
        key: A field's name or a function of a record.
        function: The user's function, for error messages.
        is_async: Whether the function must be awaited.
        on_error: What to do with a record for which it raises; its key's content
            stays as it was.
        aggregate: What the contents are accumulators of.
    """

    def __init__(
        self,
        key: KeySelector,
        function: Callable[..., Any],
        *,
        is_async: bool,
        on_error: OnError,
        aggregate: Any,
    ) -> None:
        super().__init__()
        # The name is in snapshots.
        self._state = AccumulatorDescriptor("rolling", aggregate)
        self._key = field_or_function(key, "key")
        self._function = function
        self._is_async = is_async
        self._may_give_coroutines = True
        self.on_error: OnError = check_on_error(on_error)

    def open(self) -> Pending:
        """Bind the state."""
        self._keys = KeyReader(self._key, self)
        self._table = self.context.keyed_state.table(self._state)
        self._failures = RecordFailures(
            self.on_error, self._function, self.context, self.output
        )
        return None

    def expect_accumulators(self) -> None:
        """Ask for the state."""
        self.context.keyed_state.table(self._state)

    def may_leave_rest(self, index: int) -> bool:
        """Whether it may leave the rest of a run: if its function is awaited."""
        return self._is_async

    def key_of_input(self, index: int) -> Callable[[Any], Any] | None:
        """Return what reads a record's key."""
        return self._key

    def process_run(self, run: Run) -> Pending:
        """Update the content of each record's key and emit the results as one run."""
        values = run.values
        if not values:
            return None
        keys = self._keys.read(values)
        if self._is_async:
            # One read for all keys of the run, if the store is on a disk.
            self._table.prefetch(keys)
            return self._process_awaited(run, keys)
        self._rows = self._table.for_run(keys)
        results: list[Any] = []
        # Iterators, so that after an error they stand right behind the record that
        # raised.
        remaining_keys, remaining = iter(keys), iter(values)
        try:
            self._update(remaining_keys, remaining, results)
        except USER_ERRORS as error:
            return self._process_rest(run, remaining_keys, remaining, results, error)
        # A lambda that calls an async function shows it only by what it returns.
        if self._may_give_coroutines and CoroutineType in map(
            type, self._given(results)
        ):
            return self._refuse(results)
        return self.output.emit_run(ListRun(results, run.timestamps))

    def _given(self, results: list[Any]) -> Iterable[Any]:
        """Return what the function gave, without what was added to it."""
        return results

    def _refuse(self, results: list[Any]) -> NoReturn:
        """Say that the function only looks as if it gave values."""
        try:
            refuse_coroutines(self._given(results), self._function)
        except RecordTypeError as error:
            raise_as(self._failures.user_error(error), error)

    def _update(
        self, keys: Iterator[Any], values: Iterator[Any], results: list[Any]
    ) -> None:
        """Update key by key until something raises."""
        raise TypeError(f"{type(self).__name__} does not define _update")

    async def _update_one(self, key: Any, value: Any) -> Any:
        """Update one key and return the result."""
        raise TypeError(f"{type(self).__name__} does not define _update_one")

    def _process_rest(
        self,
        run: Run,
        keys: Iterator[Any],
        values: Iterator[Any],
        results: list[Any],
        error: BaseException,
    ) -> Pending:
        """Go on after a record that failed; the iterators stand behind it."""
        failed: list[int] = []
        stamps = run.timestamps
        following: BaseException | None = error
        while following is not None:
            # `zip` has taken the record that raised: what is left of the iterator tells
            # its place.
            index = len(run) - length_hint(values) - 1
            stamp = None if stamps is None else stamps[index]
            self._failures.take(run.values[index], stamp, following)
            failed.append(index)
            following = None
            try:
                self._update(keys, values, results)
            except USER_ERRORS as next_error:
                following = next_error
        # The times of a run without failures are passed on as they are.
        if stamps is not None:
            gone = set(failed)
            stamps = [stamp for i, stamp in enumerate(stamps) if i not in gone]
        reported = self._failures.report()
        # Reports first: they may wait, and results must not overtake what failed
        # before.
        return then(reported, self.output.emit_run, ListRun(results, stamps))

    async def _process_awaited(self, run: Run, keys: list[Any]) -> None:
        stamps = run.timestamps
        availability, interruption = self.output.availability, self.interruption
        watch = interruption.start()
        for index, (key, value) in enumerate(zip(keys, run.values, strict=True)):
            stamp = None if stamps is None else stamps[index]
            if not availability.available:
                if interruption.leave(run, index):
                    return
                await self.context.mailbox.wait_until(availability)
            pending: Pending
            try:
                result = await self._update_one(key, value)
            except USER_ERRORS as error:
                self._failures.take(value, stamp, error)
                pending = self._failures.report()
            else:
                taken = ListRun([result], None if stamp is None else [stamp])
                pending = self.output.emit_run(taken)
            if pending is not None:
                await pending
            if watch.has_waited and await interruption.look_around(run, index + 1):
                return


class KeyedReduceOperator(RollingOperator):
    """Folds the records of each key into one, and emits it after every record.

    Args:
        key: A field's name or a function of a record.
        reduce_function: ``(reduced, record) -> reduced``, sync or ``async def``. The
            first record of a key is its first result.
        on_error: What to do with a record for which the function raises.

    Raises:
        WrongTypeError: If ``key`` or ``reduce_function`` cannot be called so.
        InvalidArgumentError: If ``reduce_function`` is a generator.

    Concept:
        Flink, ``KeyedStream.reduce`` and ``StreamGroupedReduceOperator``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> operator = KeyedReduceOperator(str.lower, lambda old, new: old + new)
        >>> with OneInputHarness(operator, keyed=True) as harness:
        ...     harness.process_run(["a", "b", "A"])
        ...     harness.values
        ['a', 'b', 'aA']
    """

    def __init__(
        self,
        key: KeySelector,
        reduce_function: Callable[[Any, Any], Any],
        *,
        on_error: OnError = fail,
    ) -> None:
        self._reduce = check_function(reduce_function, "reduce_function", arity=2)
        refuse_generator(reduce_function, "reduce_function", _RETURN_ONE)
        super().__init__(
            key,
            self._reduce,
            is_async=is_async_callable(self._reduce),
            on_error=on_error,
            aggregate=Reduced,
        )

    def open(self) -> Pending:
        """Bind the state."""
        if self.context.mutations is not None:
            self._reduce = self.context.mutations.watched_call(self._reduce)
        return super().open()

    def _update(
        self, keys: Iterator[Any], values: Iterator[Any], results: list[Any]
    ) -> None:
        reduce, rows = self._reduce, self._rows
        get = rows.get
        for key, value in zip(keys, values, strict=True):
            reduced = get(key)
            if reduced is None:
                reduced = value
            else:
                reduced = reduce(reduced, value)
                if reduced is None:
                    refuse_none(reduce, value)
            rows[key] = reduced
            results.append(reduced)

    async def _update_one(self, key: Any, value: Any) -> Any:
        reduced = self._table.get(key)
        if reduced is None:
            reduced = value
        else:
            reduced = await self._reduce(reduced, value)
            if reduced is None:
                refuse_none(self._reduce, value)
        self._table.put(key, reduced)
        return reduced


class KeyedAggregateOperator(RollingOperator):
    """Adds each record to its key's accumulator and emits the result so far.

    Args:
        key: A field's name or a function of a record.
        aggregate: What to compute: a ready-made aggregate or any `AggregateFunction`,
            whose methods may be ``async def``.
        include_key: Whether results are ``(key, result)``. That of several named
            aggregates has the field ``key`` in any case.
        on_error: What to do with a record for which the aggregate raises.

    Raises:
        WrongTypeError: If ``aggregate`` lacks a method.

    Example:
        >>> from aiomailbox.operators.aggregates.functions import sum_
        >>> from aiomailbox.testing import OneInputHarness
        >>> operator = KeyedAggregateOperator("user", sum_("amount"))
        >>> with OneInputHarness(operator, keyed=True) as harness:
        ...     harness.process_element({"user": "a", "amount": 2})
        ...     harness.process_element({"user": "a", "amount": 3})
        ...     harness.values
        [2, 5]
    """

    def __init__(
        self,
        key: KeySelector,
        aggregate: AggregateFunction,
        *,
        include_key: bool = False,
        on_error: OnError = fail,
    ) -> None:
        self._with_key = _joining(aggregate, include_key=include_key)
        if self._with_key is _pair and isinstance(aggregate, Aggregate):
            aggregate = aggregate.with_key()
        self._aggregate: Any = check_aggregate(aggregate)
        super().__init__(
            key,
            self._aggregate.add,
            is_async=is_async_aggregate(aggregate),
            on_error=on_error,
            aggregate=self._aggregate,
        )
        self._may_give_coroutines = not isinstance(aggregate, Aggregate)
        self._undoable: UndoableAggregate | None = None
        self._rolls = isinstance(aggregate, Aggregate)
        self._include_key = include_key
        if self.on_error.action is not ErrorAction.FAIL:
            self._undoable = undoable(aggregate)
            # Its pieces compute before any of them is changed.
            self._rolls = isinstance(aggregate, Aggregate) and (
                aggregate.always_has_result
            )

    def open(self) -> Pending:
        """Bind the state."""
        warn_of_text(self._aggregate, self.context.log)
        return super().open()

    def _update(
        self, keys: Iterator[Any], values: Iterator[Any], results: list[Any]
    ) -> None:
        aggregate, rows = self._aggregate, self._rows
        if self._rolls and aggregate.roll is not None:
            aggregate.roll(keys, values, rows, results)
            return
        if self._undoable is not None:
            self._update_undoably(self._undoable, keys, values, results)
            return
        create, add = aggregate.create_accumulator, aggregate.add
        get_result, with_key = aggregate.get_result, self._with_key
        get = rows.get
        for key, value in zip(keys, values, strict=True):
            accumulator = get(key)
            if accumulator is None:
                accumulator = create()
            rows[key] = accumulator = add(value, accumulator)
            result = get_result(accumulator)
            results.append(result if with_key is None else with_key(key, result))

    def _given(self, results: list[Any]) -> Iterable[Any]:
        """Return what the aggregate gave, without the keys."""
        return results if self._with_key is None else (each[-1] for each in results)

    def _update_undoably(
        self,
        aggregate: UndoableAggregate,
        keys: Iterator[Any],
        values: Iterator[Any],
        results: list[Any],
    ) -> None:
        """Update key by key; a record for which there is no result changes nothing."""
        rows, with_key = self._rows, self._with_key
        get = rows.get
        for key, value in zip(keys, values, strict=True):
            held = get(key)
            if held is None:
                held = aggregate.create_accumulator()
            # Before the result is known: what cannot give one must leave no trace in
            # the state.
            mark = aggregate.mark(value, held)
            added = aggregate.add(value, held)
            try:
                result = aggregate.get_result(added)
                results.append(result if with_key is None else with_key(key, result))
            except USER_ERRORS:
                aggregate.reset(held, mark)
                raise
            rows[key] = added

    async def _update_one(self, key: Any, value: Any) -> Any:
        aggregate = self._undoable or self._aggregate
        accumulator = self._table.get(key)
        if accumulator is None:
            accumulator = await awaited(aggregate.create_accumulator())
        accumulator = await awaited(aggregate.add(value, accumulator))
        result = await awaited(aggregate.get_result(accumulator))
        self._table.put(key, accumulator)
        return result if self._with_key is None else self._with_key(key, result)


def _joining(
    aggregate: object, *, include_key: bool
) -> Callable[[Any, Any], Any] | None:
    """Return what makes a result of a key and of what the aggregate gives."""
    if not isinstance(aggregate, Aggregate) or aggregate.names is None:
        return _pair if include_key else None
    kind = result_type(("key", *aggregate.names))
    return lambda key, result: kind(key, *result)


def _pair(key: Any, result: Any) -> tuple[Any, Any]:
    return key, result
