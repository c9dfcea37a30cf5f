"""Two keyed streams joined by the distance of their event times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from aiomailbox.api.build import described_key, function_info, own_copy
from aiomailbox.durations import duration_ms
from aiomailbox.errors import WrongTypeError
from aiomailbox.graph import FunctionInfo
from aiomailbox.operators import (
    IntervalJoinOperator,
    KeySelector,
    OnError,
    ProcessJoinFunction,
    fail,
    pair,
)
from aiomailbox.records import OutputTag

if TYPE_CHECKING:
    # A stream leads to this class, and this class to a stream: only in their types.
    from aiomailbox.api.stream import DataStream

A = TypeVar("A")
B = TypeVar("B")
U = TypeVar("U")

_NONE = timedelta()


class IntervalJoin(Generic[A, B]):
    """Two keyed streams to be joined by event time: next is ``between(...)``.

    Made by `KeyedStream.interval_join`.

    Concept:
        Flink, ``KeyedStream.IntervalJoin`` and ``IntervalJoined``.
    """

    def __init__(
        self,
        derive: Callable[..., DataStream[Any]],
        keys: tuple[KeySelector, KeySelector],
    ) -> None:
        self._derive = derive
        self._keys = keys

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
        """Say how much younger than the left record the right one is.

        Args:
            lower: At least so much: a timedelta or seconds; negative for older.
            upper: At most so much.
            lower_exclusive: Whether it has to be more than ``lower``.
            upper_exclusive: Whether it has to be less than ``upper``.

        Raises:
            InvalidArgumentError: If that leaves no time.
            WrongTypeError: If a bound is not a duration.
        """
        low = _signed_ms(lower, "lower") + lower_exclusive
        high = _signed_ms(upper, "upper") - upper_exclusive
        IntervalJoinOperator(*self._keys, low, high, pair)
        return IntervalJoined(self._derive, self._keys, (low, high))


class IntervalJoined(Generic[A, B]):
    """An interval join that knows its interval; `process` says what is made of pairs."""

    def __init__(
        self,
        derive: Callable[..., DataStream[Any]],
        keys: tuple[KeySelector, KeySelector],
        bounds: tuple[int, int],
    ) -> None:
        self._derive = derive
        self._keys = keys
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
        """Hand each pair of a left and a right record to ``function``.

        Args:
            function: A `ProcessJoinFunction`, or ``(left, right)`` → the result; sync
                or ``async def``.
            left_late: The side output of left records that come too late.
            right_late: The side output of right records that come too late.
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
        return self._derive("interval join", factory, (join_info(function),))


def join_info(function: Any) -> FunctionInfo:
    """Describe a join function for `explain`."""
    return function_info(getattr(function, "process_element", function))


def _signed_ms(value: Any, parameter: str) -> int:
    """Return a duration, which may be negative, in milliseconds."""
    if isinstance(value, bool) or not isinstance(value, timedelta | int | float):
        raise WrongTypeError(
            parameter,
            f"{value!r} is not a duration",
            "Use a timedelta, e.g. -aiomailbox.minutes(5), or a number of seconds.",
        )
    negative = value < _NONE if isinstance(value, timedelta) else value < 0
    return (
        -duration_ms(-value, parameter) if negative else duration_ms(value, parameter)
    )
