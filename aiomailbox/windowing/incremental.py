"""Windows whose contents are one accumulator: how it is filled and read."""

from __future__ import annotations

from collections.abc import Callable
from types import CoroutineType
from typing import Any, Final, Protocol

from aiomailbox.operators.aggregates.functions import (
    Aggregate,
    Reduced,
    Undoable,
    is_commutative,
)
from aiomailbox.operators.core.mutations import MutationCheck
from aiomailbox.operators.core.user_code import refuse_coroutines, refuse_none
from aiomailbox.state.descriptors import ReduceFunction
from aiomailbox.windowing.time_window import Window, window_datetime

# What precedes the named results of a window.
WINDOW_FIELDS: Final = ("key", "window_start", "window_end")


class WindowResult(Protocol):
    """Makes the results of windows of their accumulators."""

    def __call__(self, key: Any, window: Window, accumulator: Any) -> Any:
        """Return the result of one key."""
        ...

    def of_all(self, window: Window, accumulators: dict[Any, Any]) -> list[Any]:
        """Return the results of all keys of a window, in order."""
        ...


class ReduceAggregate(Undoable, Reduced):
    """A reduce function in the form of an aggregate function.

    A reduce function changes neither of its arguments: they are records.

    Args:
        reduce_function: ``(reduced, value) -> reduced``.

    Attributes:
        is_commutative: Whether the function is said to be; see `commutative`.
    """

    __slots__ = ("is_commutative", "reduce_function")

    merges_in_place = False

    def __init__(self, reduce_function: ReduceFunction) -> None:
        self.reduce_function: ReduceFunction = reduce_function
        self.is_commutative: bool = is_commutative(reduce_function)

    def create_accumulator(self) -> Any:
        """Return None: nothing has been added."""
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        """Return ``value``, folded into what is there."""
        if accumulator is None:
            return value
        reduced = self.reduce_function(accumulator, value)
        if reduced is None:
            refuse_none(self.reduce_function, value)
        return reduced

    def get_result(self, accumulator: Any) -> Any:
        """Return the accumulator, which is the result."""
        return accumulator

    def merge(self, first: Any, second: Any) -> Any:
        """Return both, folded into one."""
        return second if first is None else self.add(second, first)


class AsyncReduce(ReduceAggregate):
    """An ``async def`` reduce function in the form of an aggregate function."""

    __slots__ = ()

    async def add(self, value: Any, accumulator: Any) -> Any:
        """Return ``value``, folded into what is there."""
        if accumulator is None:
            return value
        reduced = await self.reduce_function(accumulator, value)
        if reduced is None:
            refuse_none(self.reduce_function, value)
        return reduced


def watch_reduce(aggregate: Any, check: MutationCheck | None) -> None:
    """Let a reduce function raise if it changes what it is given."""
    if check is not None and isinstance(aggregate, ReduceAggregate):
        aggregate.reduce_function = check.watched_call(aggregate.reduce_function)


def window_result(
    aggregate: Any, *, keyed: bool = True, include_key: bool = False
) -> WindowResult:
    """Return how a window's accumulator becomes its result.

    Several named aggregates become a record that also has the key, unless the stream
    has none, and the window's start and end as aware datetimes in UTC (None for the
    global window). Anything else is the aggregate's own result, or ``(key, result)``.
    """
    if include_key and getattr(aggregate, "names", None) is None:
        return _Paired(window_result(aggregate))
    if not isinstance(aggregate, Aggregate):
        return _Own(aggregate.get_result)
    if aggregate.names is None:
        return _Single(aggregate)
    if not keyed:
        return _Unkeyed(aggregate)
    return _Keyed(aggregate)


class _Paired:
    __slots__ = ("_result",)

    def __init__(self, result: WindowResult) -> None:
        self._result = result

    def __call__(self, key: Any, window: Window, accumulator: Any) -> Any:
        return key, self._result(key, window, accumulator)

    def of_all(self, window: Window, accumulators: dict[Any, Any]) -> list[Any]:
        results = self._result.of_all(window, accumulators)
        return list(zip(accumulators, results, strict=True))


class _Single:
    __slots__ = ("_get_result", "_make_all")

    def __init__(self, aggregate: Aggregate) -> None:
        self._get_result = aggregate.get_result
        self._make_all = aggregate.results_maker(())

    def __call__(self, key: Any, window: Window, accumulator: Any) -> Any:
        return self._get_result(accumulator)

    def of_all(self, window: Window, accumulators: dict[Any, Any]) -> list[Any]:
        return self._make_all(accumulators)


class _Own:
    """Results of functions of the user's, which may be coroutines by mistake."""

    __slots__ = ("_get_result",)

    def __init__(self, get_result: Callable[[Any], Any]) -> None:
        self._get_result = get_result

    def __call__(self, key: Any, window: Window, accumulator: Any) -> Any:
        result = self._get_result(accumulator)
        if type(result) is CoroutineType:
            self._refuse([result])
        return result

    def of_all(self, window: Window, accumulators: dict[Any, Any]) -> list[Any]:
        get_result = self._get_result
        results = [get_result(found) for found in accumulators.values()]
        if CoroutineType in map(type, results):
            self._refuse(results)
        return results

    def _refuse(self, results: list[Any]) -> None:
        owner = getattr(self._get_result, "__self__", None)
        function = getattr(owner, "reduce_function", self._get_result)
        refuse_coroutines(results, function)


class _Keyed:
    __slots__ = ("_make", "_make_all", "_times")

    def __init__(self, aggregate: Aggregate) -> None:
        self._make = aggregate.result_maker(WINDOW_FIELDS)
        self._make_all = aggregate.results_maker(WINDOW_FIELDS)
        self._times = _Times()

    def __call__(self, key: Any, window: Window, accumulator: Any) -> Any:
        start, end = self._times.of(window)
        return self._make(key, start, end, accumulator)

    def of_all(self, window: Window, accumulators: dict[Any, Any]) -> list[Any]:
        return self._make_all(*self._times.of(window), accumulators)


class _Unkeyed:
    __slots__ = ("_make", "_make_all", "_times")

    def __init__(self, aggregate: Aggregate) -> None:
        self._make = aggregate.result_maker(WINDOW_FIELDS[1:])
        self._make_all = aggregate.results_maker(WINDOW_FIELDS[1:])
        self._times = _Times()

    def __call__(self, key: Any, window: Window, accumulator: Any) -> Any:
        start, end = self._times.of(window)
        return self._make(start, end, accumulator)

    def of_all(self, window: Window, accumulators: dict[Any, Any]) -> list[Any]:
        return self._make_all(*self._times.of(window), accumulators)


class _Times:
    """The datetimes of the window that was asked for last: it is mostly the same."""

    __slots__ = ("_times", "_window")

    def __init__(self) -> None:
        self._window: Window | None = None
        self._times: tuple[Any, Any] = (None, None)

    def of(self, window: Window) -> tuple[Any, Any]:
        # By identity: all keys of a window are asked with the same object.
        if window is not self._window:
            self._window = window
            self._times = (window_datetime(window.start), window_datetime(window.end))
        return self._times
