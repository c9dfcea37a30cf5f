"""Streams that are joined: by intervals, and by windows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import copy
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, overload

from aiomailbox.api.build import described_key, selected_pairs
from aiomailbox.api.definition import expression_infos, formed, own_copy
from aiomailbox.api.misnamed import Unfinished
from aiomailbox.api.windowed import Items, WindowedStream
from aiomailbox.durations import duration_text, signed_ms
from aiomailbox.operators.core.fields import Expression, field_or_function
from aiomailbox.operators.core.user_code import OnError, check_on_error, fail
from aiomailbox.operators.joins.interval import IntervalJoinOperator
from aiomailbox.operators.joins.keyed import ProcessJoinFunction, pair
from aiomailbox.operators.keyed.operators import KeySelector
from aiomailbox.records.events import OutputTag
from aiomailbox.typevars import A, B, U
from aiomailbox.windowing.assigners import WindowAssigner
from aiomailbox.windowing.co_group import CoGroupFunction, JoinFunction, SidedKey
from aiomailbox.windowing.evictors import Evictor
from aiomailbox.windowing.triggers import Trigger

if TYPE_CHECKING:
    from aiomailbox.api.stream import DataStream


# Two keyed streams joined by the distance of their event times.


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
    ) -> None:
        self._derive = derive
        self._keys = keys

    def __repr__(self) -> str:
        left, right = map(described_key, self._keys)
        return f"<IntervalJoin by {left} and {right}; next is between(lower, upper)>"

    def between(
        self,
        lower: timedelta,
        upper: timedelta,
        *,
        lower_exclusive: bool = False,
        upper_exclusive: bool = False,
    ) -> IntervalJoined[A, B]:
        """Set how much later than the left record the right one is, in event time.

        Args:
            lower: The lower bound: a timedelta; negative for earlier.
            upper: The upper bound, given likewise.
            lower_exclusive: Whether the lower bound is exclusive.
            upper_exclusive: Whether the upper bound is exclusive.

        Raises:
            InvalidArgumentError: If the interval is empty.
            WrongTypeError: If a bound is not a duration.
        """
        low = signed_ms(lower, "lower") + lower_exclusive
        high = signed_ms(upper, "upper") - upper_exclusive
        IntervalJoinOperator(*self._keys, low, high, pair)
        return IntervalJoined(self._derive, self._keys, (low, high))


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
        function: ProcessJoinFunction[A, B, U] | Callable[[A, B], Awaitable[U]],
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
            on_error: How to handle a pair for which ``function`` raises.

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
        return self._derive(
            "interval join",
            factory,
            functions=(called(function),),
            settings=(self._told(),),
        )

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
            on_error: How to handle a pair for which an expression fails.
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
        fields = selected_pairs(names, named, self._keys)
        factory = partial(
            own_copy,
            formed,
            IntervalJoinOperator,
            *self._keys,
            *self._bounds,
            pair,
            selection=(fields, check_on_error(on_error)),
            left_late=left_late,
            right_late=right_late,
        )
        infos = expression_infos(*fields.expressions)
        return self._derive(
            "interval join",
            factory,
            functions=infos,
            settings=(self._told(),),
            has_columns=True,
        )

    def _told(self) -> str:
        """Return the interval, for `explain`."""
        lower, upper = map(duration_text, self._bounds)
        return f"the right record is {lower} to {upper} later than the left one"


def called(function: Any) -> Callable[..., Any]:
    """Return what a join calls: a function, or the method of an object."""
    found: Callable[..., Any] = getattr(function, "process_element", function)
    return found


# Two streams joined by key and window, built step by step.


# What the join ends in: `JoinedWindows` or `CoGroupedWindows`.
EndT = TypeVar("EndT")
# Makes it of the windows of both sides, united.
MakeEnd = Callable[[SidedKey, WindowAssigner[Any]], EndT]


class JoinedStreams(Unfinished, Generic[A, B, EndT]):
    """Two streams to be joined by window: next is ``where(key)``.

    Made by `DataStream.join` and `DataStream.co_group`.

    Concept:
        Flink, ``JoinedStreams`` and ``CoGroupedStreams``.
    """

    _called = "join"
    _left = "where(key).equal_to(key).window(assigner).apply(function)"

    def __init__(self, make: MakeEnd[EndT]) -> None:
        self._make = make

    def __repr__(self) -> str:
        return "<JoinedStreams; next is where(key)>"

    def where(self, key: str | Callable[[A], Any]) -> JoinedWhere[B, EndT]:
        """Set the key of the first stream: a field's name or a function."""
        field_or_function(key, "where")
        return JoinedWhere(self._make, key)


class JoinedWhere(Unfinished, Generic[B, EndT]):
    """A join with one key set: next is ``equal_to(key)``."""

    _called = "join"
    _left = "equal_to(key).window(assigner).apply(function)"

    def __init__(self, make: MakeEnd[EndT], where: KeySelector) -> None:
        self._make = make
        self._where = where

    def __repr__(self) -> str:
        return "<JoinedWhere; next is equal_to(key)>"

    def equal_to(self, key: str | Callable[[B], Any]) -> JoinedKeys[EndT]:
        """Set the key of the second stream; keys of both streams have one type."""
        return JoinedKeys(self._make, SidedKey(self._where, key))


class JoinedKeys(Unfinished, Generic[EndT]):
    """A join with both keys set: next is ``window(assigner)``."""

    _called = "join"
    _left = "window(assigner).apply(function)"

    def __init__(self, make: MakeEnd[EndT], key: SidedKey) -> None:
        self._make = make
        self._key = key

    def __repr__(self) -> str:
        return "<JoinedKeys; next is window(assigner)>"

    def window(self, assigner: WindowAssigner[Any]) -> EndT:
        """Set the windows in which records are joined."""
        return self._make(self._key, assigner)


class _SidedWindowed(Unfinished):
    """Windows of two streams; what their triggers and evictors see has its side."""

    _called = "join"
    _left = "apply(function), which gives a stream"
    _meant = MappingProxyType({"on_error": "apply(function, on_error=...)"})

    def __init__(self, windowed: WindowedStream[Any, Any]) -> None:
        self._windowed = windowed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} in {self._windowed._assigner_name}>"

    def trigger(self, trigger: Trigger) -> Self:
        """Return windows that fire when the trigger says so.

        By default they fire when time passes their end.
        """
        return self._with(self._windowed.trigger(trigger))

    def evictor(self, evictor: Evictor) -> Self:
        """Return windows that evict records when they fire."""
        return self._with(self._windowed.evictor(evictor))

    def allowed_lateness(self, lateness: timedelta) -> Self:
        """Return windows that are kept for longer, and fire again for each late record."""
        return self._with(self._windowed.allowed_lateness(lateness))

    def _with(self, windowed: WindowedStream[Any, Any]) -> Self:
        changed = copy(self)
        changed._windowed = windowed
        return changed


class JoinedWindows(_SidedWindowed, Generic[A, B]):
    """A window join; `apply` sets what is computed from the records that are joined.

    Triggers, evictors and gap functions see records with their side: ``(0, record)``
    of the first stream, ``(1, record)`` of the second.

    Concept:
        Flink, ``JoinedStreams.WithWindow``.
    """

    def __init__(
        self,
        windowed: WindowedStream[Any, Any],
        select: Callable[..., DataStream[Any]],
    ) -> None:
        super().__init__(windowed)
        self._select = select

    @overload
    def apply(
        self, function: Callable[[A, B], Awaitable[U]], *, on_error: OnError = fail
    ) -> DataStream[U]: ...

    @overload
    def apply(
        self, function: Callable[[A, B], U], *, on_error: OnError = fail
    ) -> DataStream[U]: ...

    def apply(
        self, function: Callable[[A, B], Any], *, on_error: OnError = fail
    ) -> DataStream[Any]:
        """Emit what ``function`` returns for each pair of joined records.

        Args:
            function: ``(first, second)`` → one result; sync or ``async def``.
            on_error: How to handle a pair for which it raises, or with a record for
                which a gap function or trigger does; see `WindowedStream.reduce`.

        Returns:
            The results, with the last millisecond of their window as event time.
        """
        return self._windowed._join("window join", JoinFunction(function), on_error)

    def select(
        self, *names: str, on_error: OnError = fail, **named: str | Expression
    ) -> DataStream[Any]:
        """Build a record from fields of each pair of joined records. Columns stay columns.

        The first stream is ``left``, the second ``right``. A field that only one side has
        goes by its name, and so does a key that has one name on both sides; any field
        goes by ``left.name`` or ``right.name``, also in an expression. If left records
        are dicts, the results are dicts, else NamedTuples.

        Args:
            names: The fields to keep, in this order; ``left.`` and ``right.`` are removed
                from their new names.
            on_error: As in `apply`, also for an expression that fails.
            named: New names, each with the name of a field or an expression of
                `pyarrow.compute`. They follow the kept fields.

        Returns:
            The results, with the last millisecond of their window as event time.

        Raises:
            InvalidArgumentError: If no field is named, or two would have the same name.
            RecordTypeError: If the records are known to have no such field, or if both
                sides have it.
            WrongTypeError: If something is neither a name nor an expression.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> time = am.WatermarkStrategy.for_monotonous_timestamps()
            >>> time = time.with_timestamp_assigner("at")
            >>> clicks = env.from_collection([{"user": "a", "at": 100}], time)
            >>> buys = env.from_collection(
            ...     [{"user": "a", "item": "tea", "at": 900}], time
            ... )
            >>> joined = (
            ...     clicks.join(buys)
            ...     .where("user")
            ...     .equal_to("user")
            ...     .window(am.TumblingEventTimeWindows.of(am.seconds(5)))
            ...     .select("user", "item", clicked="left.at")
            ... )
            >>> am.run(joined.collect())
            [{'user': 'a', 'item': 'tea', 'clicked': 100}]
        """
        return self._select(self._windowed._said, names, named, on_error)


class CoGroupedWindows(_SidedWindowed, Generic[A, B]):
    """A window co-group; `apply` sets what is computed from the grouped records.

    Triggers, evictors and gap functions see records with their side, as those of
    `JoinedWindows` do.

    Concept:
        Flink, ``CoGroupedStreams.WithWindow``.
    """

    def apply(
        self,
        function: Callable[[list[A], list[B]], Items[U]],
        *,
        on_error: OnError = fail,
    ) -> DataStream[U]:
        """Emit what ``function`` returns for the records of a key and window.

        Args:
            function: ``(firsts, seconds)`` → an iterable of results, called with two
                lists, of which one may be empty. Sync or ``async def``.
            on_error: How to handle a window for which it raises, or with a record for
                which a gap function or trigger does; see `WindowedStream.reduce`.

        Returns:
            The results, with the last millisecond of their window as event time.
        """
        return self._windowed._join("co-group", CoGroupFunction(function), on_error)
