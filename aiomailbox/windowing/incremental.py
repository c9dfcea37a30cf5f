"""Windows whose contents are one accumulator: how it is filled and read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from aiomailbox.operators.aggregates.functions import (
    Aggregate,
    Reduced,
    Undoable,
    is_commutative,
)
from aiomailbox.operators.core.mutations import MutationCheck
from aiomailbox.operators.core.user_code import UNMADE, refuse_all_unmade, refuse_none
from aiomailbox.operators.keyed.reducing import first_reduced
from aiomailbox.state.descriptors import ReduceFunction
from aiomailbox.windowing.time_window import Window, window_datetime

# What precedes the named results of a window.
WINDOW_FIELDS: Final = ("key", "window_start", "window_end")


class WindowResult(NamedTuple):
    """Makes the results of windows of their accumulators.

    Attributes:
        of_one: ``(key, window, accumulator)`` → the result of one key.
        of_all: ``(window, {key: accumulator})`` → those of all keys, in order.
    """

    of_one: Callable[[Any, Window, Any], Any]
    of_all: Callable[[Window, dict[Any, Any]], list[Any]]


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
        if accumulator is None:
            return value
        reduced = await self.reduce_function(accumulator, value)
        if reduced is None:
            refuse_none(self.reduce_function, value)
        return reduced


def watch_reduce(aggregate: Any, check: MutationCheck | None, log: Any) -> None:
    """Let a reduce function raise if it changes what it is given; or look at one call."""
    if not isinstance(aggregate, ReduceAggregate):
        return
    function = aggregate.reduce_function
    if check is not None:
        aggregate.reduce_function = check.watched_call(function)
    elif not isinstance(aggregate, AsyncReduce):

        def put_in_place() -> None:
            aggregate.reduce_function = function

        aggregate.reduce_function = first_reduced(function, log, put_in_place)


def window_result(
    aggregate: Any,
    *,
    keyed: bool = True,
    include_key: bool = False,
    has_bounds: bool = True,
) -> WindowResult:
    """Return how a window's accumulator becomes its result.

    Several named aggregates become a record that also has the key, unless the stream
    has none, and the window's start and end as aware datetimes in UTC (None for the
    global window), unless these are left out (``has_bounds``). Anything else is the
    aggregate's own result, or ``(key, result)``.
    """
    if include_key and getattr(aggregate, "names", None) is None:
        return _paired(window_result(aggregate))
    if not isinstance(aggregate, Aggregate):
        return _own(aggregate.get_result)
    if aggregate.names is None:
        get_result, make_results = aggregate.get_result, aggregate.results_maker(())
        return WindowResult(
            lambda key, window, accumulator: get_result(accumulator),
            lambda window, accumulators: make_results(accumulators),
        )
    if not has_bounds:
        before = ("key",) if keyed else ()
        alone, together = (
            aggregate.result_maker(before),
            aggregate.results_maker(before),
        )
        return WindowResult(
            lambda key, window, accumulator: (
                alone(key, accumulator) if keyed else alone(accumulator)
            ),
            lambda window, accumulators: together(accumulators),
        )
    fields = WINDOW_FIELDS if keyed else WINDOW_FIELDS[1:]
    make, make_all = aggregate.result_maker(fields), aggregate.results_maker(fields)
    times = _Times()

    def of_one(key: Any, window: Window, accumulator: Any) -> Any:
        bounds = times.of(window)
        return make(key, *bounds, accumulator) if keyed else make(*bounds, accumulator)

    return WindowResult(
        of_one,
        lambda window, accumulators: make_all(*times.of(window), accumulators),
    )


def _paired(result: WindowResult) -> WindowResult:
    def of_all(window: Window, accumulators: dict[Any, Any]) -> list[Any]:
        results = result.of_all(window, accumulators)
        return list(zip(accumulators, results, strict=True))

    return WindowResult(
        lambda key, window, accumulator: (
            key,
            result.of_one(key, window, accumulator),
        ),
        of_all,
    )


def _own(get_result: Callable[[Any], Any]) -> WindowResult:
    """Return results of functions of the user's, which may be none by mistake."""

    def refuse(results: list[Any]) -> None:
        owner = getattr(get_result, "__self__", None)
        refuse_all_unmade(results, getattr(owner, "reduce_function", get_result))

    def of_one(key: Any, window: Window, accumulator: Any) -> Any:
        result = get_result(accumulator)
        if type(result) in UNMADE:
            refuse([result])
        return result

    def of_all(window: Window, accumulators: dict[Any, Any]) -> list[Any]:
        results = [get_result(found) for found in accumulators.values()]
        if not UNMADE.isdisjoint(map(type, results)):
            refuse(results)
        return results

    return WindowResult(of_one, of_all)


class _Times:
    """The datetimes of the window that was asked for last: it is mostly the same."""

    def __init__(self) -> None:
        self._window: Window | None = None
        self._times: tuple[Any, Any] = (None, None)

    def of(self, window: Window) -> tuple[Any, Any]:
        # By identity: all keys of a window are asked with the same object.
        if window is not self._window:
            self._window = window
            self._times = (window_datetime(window.start), window_datetime(window.end))
        return self._times
