"""The verbs of records that belong together: by key, in windows, in partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

from aiomailbox.api.build import extreme
from aiomailbox.graph.transformation import Origin
from aiomailbox.operators.core.user_code import (
    OnError,
    check_function,
    check_on_error,
    fail,
)
from aiomailbox.signatures import explained
from aiomailbox.state.descriptors import AggregateFunction
from aiomailbox.typevars import K, T, U

if TYPE_CHECKING:
    # A stream leads to this class, and this class to a stream: only in their types.
    from aiomailbox.api.stream import DataStream


class Grouped(Generic[K, T]):
    """The verbs that `KeyedStream`, `WindowedStream` and `PartitionWindowedStream` share.

    They emit for each key: a keyed stream after every record, windows when they fire,
    partitions when the input has ended.
    """

    _origins: list[Origin]

    if TYPE_CHECKING:

        def _reduced(
            self, name: str, function: Callable[[Any, Any], Any], on_error: OnError
        ) -> DataStream[Any]: ...

        def _aggregated(
            self,
            *,
            aggregate: AggregateFunction[Any, Any, Any],
            include_key: bool,
            on_error: OnError,
        ) -> DataStream[Any]: ...

    @explained(
        "Write reduce(function): it begins with the first record of each key. For another "
        "beginning, use aggregate(...)."
    )
    def reduce(
        self,
        function: Callable[[T, T], T] | Callable[[T, T], Awaitable[T]],
        *,
        on_error: OnError = fail,
    ) -> DataStream[T]:
        """Fold the records of each key into one.

        A keyed stream emits it after every record, a partition when the input has ended.

        Args:
            function: ``(reduced, record)`` → a new record. It must change neither of the
                two: the reduced value may have been emitted.
            on_error: How to handle a record for which it raises.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> words = env.from_collection([("a", 1), ("b", 1), ("a", 1)])
            >>> words = words.key_by(lambda word: word[0])
            >>> add = lambda a, b: (a[0], a[1] + b[1])
            >>> am.run(words.reduce(add).collect())
            [('a', 1), ('b', 1), ('a', 2)]
            >>> am.run(words.full_window_partition().reduce(add).collect())
            [('a', 2), ('b', 1)]
        """
        check_function(function, "function", arity=2, gets="reduced, record")
        return self._reduced("reduce", function, check_on_error(on_error))

    def min_by(
        self,
        field: str | Callable[[T], Any],
        *,
        first: bool = True,
        on_error: OnError = fail,
    ) -> DataStream[T]:
        """Emit the record of each key that has the smallest value of a field.

        A keyed stream emits it after every record, a window when it fires, a partition
        when the input has ended.

        Args:
            field: A field's name, or a function of a record; no value may be None. NaN
                never wins over a number.
            first: Whether the first of several such records is emitted, not the last.
            on_error: How to handle a record whose value cannot be compared.

        Concept:
            Flink, ``KeyedStream.minBy``.
        """
        return self._extreme("min_by", field, first, on_error)

    def max_by(
        self,
        field: str | Callable[[T], Any],
        *,
        first: bool = True,
        on_error: OnError = fail,
    ) -> DataStream[T]:
        """Emit the record of each key that has the largest value of a field.

        A keyed stream emits it after every record, a window when it fires, a partition
        when the input has ended.

        Args:
            field: A field's name, or a function of a record; no value may be None. NaN
                never wins over a number.
            first: Whether the first of several such records is emitted, not the last.
            on_error: How to handle a record whose value cannot be compared.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> bids = env.from_collection([("car", 5), ("car", 9), ("car", 7)])
            >>> bids = bids.key_by(lambda bid: bid[0])
            >>> am.run(bids.max_by(lambda bid: bid[1]).collect())
            [('car', 5), ('car', 9), ('car', 9)]
            >>> highest = bids.full_window_partition().max_by(lambda bid: bid[1])
            >>> am.run(highest.collect())
            [('car', 9)]

        Concept:
            Flink, ``KeyedStream.maxBy``.
        """
        return self._extreme("max_by", field, first, on_error)

    def _extreme(
        self, name: str, field: Any, first: bool, on_error: OnError
    ) -> DataStream[T]:
        function = extreme(name, field, first, self._origins)
        return self._reduced(name, function, check_on_error(on_error))

    @overload
    def aggregate(
        self,
        aggregate: AggregateFunction[T, Any, U],
        *,
        include_key: Literal[False] = False,
        on_error: OnError = fail,
    ) -> DataStream[U]: ...

    @overload
    def aggregate(
        self,
        aggregate: AggregateFunction[T, Any, U],
        *,
        include_key: Literal[True],
        on_error: OnError = fail,
    ) -> DataStream[tuple[K, U]]: ...

    def aggregate(
        self,
        aggregate: AggregateFunction[T, Any, Any],
        *,
        include_key: bool = False,
        on_error: OnError = fail,
    ) -> DataStream[Any]:
        """Aggregate the records of each key as they arrive.

        A keyed stream emits the result after every record, a partition when the input has
        ended; a partition without key has a result without records, too.

        Args:
            aggregate: ``am.count()``, ``am.aggregates(...)`` or your own. Several named
                ones give records with a field ``key``, if there are keys.
            include_key: Whether a single aggregate emits ``(key, result)``.
            on_error: How to handle a record for which it raises.

        Raises:
            InvalidArgumentError: If ``include_key`` is given, and there are no keys.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> words = env.from_collection(["a", "b", "a"]).key_by(lambda word: word)
            >>> am.run(words.aggregate(am.count(), include_key=True).collect())
            [('a', 1), ('b', 1), ('a', 2)]
            >>> totals = words.full_window_partition()
            >>> am.run(totals.aggregate(am.aggregates(n=am.count())).collect())
            [Result(key='a', n=2), Result(key='b', n=1)]
        """
        return self._aggregated(
            aggregate=aggregate,
            include_key=include_key,
            on_error=check_on_error(on_error),
        )
