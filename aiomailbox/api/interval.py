"""Two keyed streams joined by the distance of their event times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from aiomailbox.api.build import described_key, function_info, own_copy
from aiomailbox.api.columns import Expression, selected_pairs
from aiomailbox.api.misnamed import Unfinished
from aiomailbox.durations import duration_ms
from aiomailbox.errors import WrongTypeError
from aiomailbox.graph.transformation import FunctionInfo, Origin
from aiomailbox.operators.core.failures import OnError, fail
from aiomailbox.operators.joins.interval import IntervalJoinOperator
from aiomailbox.operators.joins.keyed import ProcessJoinFunction, pair
from aiomailbox.operators.keyed.operators import KeySelector
from aiomailbox.records.elements import OutputTag

if TYPE_CHECKING:
    # A stream leads to this class, and this class to a stream: only in their types.
    from aiomailbox.api.stream import DataStream

A = TypeVar("A")
B = TypeVar("B")
U = TypeVar("U")

_NONE = timedelta()
# Flink says afterwards what is excluded.
_BOUNDS: Final = {
    "lower_bound_exclusive": "between(lower, upper, lower_exclusive=True)",
    "upper_bound_exclusive": "between(lower, upper, upper_exclusive=True)",
}


class IntervalJoin(Unfinished, Generic[A, B]):
    """Two keyed streams to be joined by event time: next is ``between(...)``.

    Made by `KeyedStream.interval_join`.

    Concept:
        Flink, ``KeyedStream.IntervalJoin`` and ``IntervalJoined``.
    """

    _called = "join"
    _left = "between(lower, upper).process(function)"
    _meant = _BOUNDS

    def __init__(
        self,
        derive: Callable[..., DataStream[Any]],
        keys: tuple[KeySelector, KeySelector],
        origins: tuple[list[Origin], list[Origin]],
    ) -> None:
        self._derive = derive
        self._keys = keys
        self._origins = origins

    def __repr__(self) -> str:
        left, right = map(described_key, self._keys)
        return f"<IntervalJoin by {left} and {right}; next is between(lower, upper)>"

    def between(
        self,
        lower: timedelta | float,
        upper: timedelta | float,
        *,
        lower_exclusive: bool = False,
        upper_exclusive: bool = False,
    ) -> IntervalJoined[A, B]:
        """Set how much later than the left record the right one is, in event time.

        Args:
            lower: The lower bound: a timedelta or seconds; negative for earlier.
            upper: The upper bound, given likewise.
            lower_exclusive: Whether the lower bound is exclusive.
            upper_exclusive: Whether the upper bound is exclusive.

        Raises:
            InvalidArgumentError: If the interval is empty.
            WrongTypeError: If a bound is not a duration.
        """
        low = _signed_ms(lower, "lower") + lower_exclusive
        high = _signed_ms(upper, "upper") - upper_exclusive
        IntervalJoinOperator(*self._keys, low, high, pair)
        return IntervalJoined(self._derive, self._keys, self._origins, (low, high))


class IntervalJoined(Unfinished, Generic[A, B]):
    """An interval join with its interval set; next is what is computed from the pairs.

    Use `select` with the names of fields, or `process` with a function.
    """

    _called = "join"
    _left = "process(function) or join.select(...), which give a stream"
    _meant = _BOUNDS

    def __init__(
        self,
        derive: Callable[..., DataStream[Any]],
        keys: tuple[KeySelector, KeySelector],
        origins: tuple[list[Origin], list[Origin]],
        bounds: tuple[int, int],
    ) -> None:
        self._derive = derive
        self._keys = keys
        self._origins = origins
        self._bounds = bounds

    def __repr__(self) -> str:
        left, right = map(described_key, self._keys)
        lower, upper = self._bounds
        return f"<IntervalJoined by {left} and {right}, {lower} to {upper} ms apart>"

    @overload
    def process(
        self,
        function: ProcessJoinFunction[A, B, U],
        *,
        left_late: OutputTag[A] | None = None,
        right_late: OutputTag[B] | None = None,
        on_error: OnError = fail,
    ) -> DataStream[U]: ...

    @overload
    def process(
        self,
        function: Callable[[A, B], Awaitable[U]],
        *,
        left_late: OutputTag[A] | None = None,
        right_late: OutputTag[B] | None = None,
        on_error: OnError = fail,
    ) -> DataStream[U]: ...

    @overload
    def process(
        self,
        function: Callable[[A, B], U],
        *,
        left_late: OutputTag[A] | None = None,
        right_late: OutputTag[B] | None = None,
        on_error: OnError = fail,
    ) -> DataStream[U]: ...

    def process(
        self,
        function: ProcessJoinFunction[A, B, Any] | Callable[[A, B], Any],
        *,
        left_late: OutputTag[A] | None = None,
        right_late: OutputTag[B] | None = None,
        on_error: OnError = fail,
    ) -> DataStream[Any]:
        """Pass each pair of a left and a right record to ``function``.

        Args:
            function: A `ProcessJoinFunction`, or ``(left, right)`` → the result; sync
                or ``async def``.
            left_late: The side output of left records that arrive too late.
            right_late: The side output of right records that arrive too late.
            on_error: What to do with a pair for which ``function`` raises.

        Returns:
            The results, each with the larger event time of its pair.
        """
        factory = partial(
            own_copy,
            IntervalJoinOperator,
            *self._keys,
            *self._bounds,
            function,
            left_late=left_late,
            right_late=right_late,
            on_error=on_error,
        )
        factory()
        return self._derive("interval join", factory, functions=(join_info(function),))

    def select(
        self,
        *names: str,
        left_late: OutputTag[A] | None = None,
        right_late: OutputTag[B] | None = None,
        on_error: OnError = fail,
        **named: str | Expression,
    ) -> DataStream[Any]:
        """Build a record from fields of each pair. Columns stay columns.

        A field that only one side has goes by its name, and so does a key that has one
        name on both sides; any field goes by ``left.name`` or ``right.name``, also in an
        expression. Where left records are dicts, the results are dicts, else NamedTuples.

        Args:
            names: The fields to keep, in this order; ``left.`` and ``right.`` are removed
                from their new names.
            left_late: The side output of left records that arrive too late.
            right_late: The side output of right records that arrive too late.
            on_error: What to do with a pair for which an expression fails.
            named: New names, each with the name of a field or an expression of
                `pyarrow.compute`. They follow the kept fields.

        Returns:
            The results, each with the larger event time of its pair.

        Raises:
            InvalidArgumentError: If no field is named, or two would have the same name.
            RecordTypeError: If the records are known to have no such field, or if both
                sides have it.
            WrongTypeError: If something is neither a name nor an expression.

        Example:
            >>> import aiomailbox as am
            >>> import pyarrow.compute as pc
            >>> env = am.StreamExecutionEnvironment()
            >>> time = am.WatermarkStrategy.for_monotonous_timestamps()
            >>> time = time.with_timestamp_assigner("at")
            >>> orders = env.from_collection([{"id": 7, "price": 5, "at": 0}], time)
            >>> offers = env.from_collection([{"id": 7, "price": 3, "at": 900}], time)
            >>> gains = (
            ...     orders.key_by("id")
            ...     .interval_join(offers.key_by("id"))
            ...     .between(am.seconds(0), am.seconds(1))
            ...     .select(
            ...         "id",
            ...         "left.price",
            ...         offer="right.price",
            ...         gain=pc.field("left.price") - pc.field("right.price"),
            ...     )
            ... )
            >>> am.run(gains.collect())
            [{'id': 7, 'price': 5, 'offer': 3, 'gain': 2}]
        """
        make: Any = partial(
            own_copy,
            IntervalJoinOperator,
            *self._keys,
            *self._bounds,
            pair,
            left_late=left_late,
            right_late=right_late,
        )
        make()
        factory, facts = selected_pairs(
            make,
            "ColumnarIntervalJoin",
            "",
            names,
            named,
            self._keys,
            self._origins,
            on_error,
        )
        if facts.get("takes_columns"):
            late = {tag for tag in (left_late, right_late) if tag is not None}
            facts["columns_aside"] = frozenset(late)
        return self._derive("interval join", factory, **facts)


def join_info(function: Any) -> FunctionInfo:
    """Describe a join function for `explain`."""
    return function_info(getattr(function, "process_element", function))


def _signed_ms(value: Any, parameter: str) -> int:
    """Return a duration, which may be negative, in milliseconds."""
    if isinstance(value, bool) or not isinstance(value, timedelta | int | float):
        raise WrongTypeError(
            parameter,
            f"{value!r} is not a duration",
            "Use a timedelta, e.g. -am.minutes(5), or a number of seconds.",
        )
    negative = value < _NONE if isinstance(value, timedelta) else value < 0
    return (
        -duration_ms(-value, parameter) if negative else duration_ms(value, parameter)
    )
