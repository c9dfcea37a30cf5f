"""The verbs that bring records of two streams, or of a stream and a service, together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from aiomailbox.api.build import GROWS_WITH_KEYS, check_count, function_info, own_copy
from aiomailbox.api.interval import IntervalJoin, join_info
from aiomailbox.api.window_joins import JoinedStreams
from aiomailbox.api.windowed import WindowedStream
from aiomailbox.errors import UsageError
from aiomailbox.graph import FunctionInfo, OperatorFactory, Origin
from aiomailbox.operators import (
    AsOfJoinOperator,
    KeySelector,
    LookupJoinOperator,
    OnError,
    ProcessJoinFunction,
    StageKind,
    check_on_error,
    fail,
    pair,
    stateless,
)
from aiomailbox.policies import Batch, Cache, RateLimit, Retry
from aiomailbox.records import OutputTag
from aiomailbox.windowing import (
    CoGroupFunction,
    JoinFunction,
    SidedKey,
    WindowAssigner,
    mark_first,
    mark_second,
)

StreamT = TypeVar("StreamT")


class Joins(Generic[StreamT]):
    """Joins of any two streams, and with what a service knows."""

    def _derive(self, name: str, factory: OperatorFactory, **facts: Any) -> StreamT:
        raise TypeError(f"{type(self).__name__} does not define _derive")

    def _check_joinable(self, other: object, parameter: str) -> None:
        raise TypeError(f"{type(self).__name__} does not define _check_joinable")

    def join(self, other: Any) -> JoinedStreams[StreamT]:
        """Join two streams: each pair of records with one key in one window.

        Args:
            other: The second stream, of another type if need be.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> time = am.WatermarkStrategy.for_monotonous_timestamps()
            >>> time = time.with_timestamp_assigner(lambda record: record[1])
            >>> clicks = env.from_collection([("a", 1000), ("b", 2000)], time)
            >>> buys = env.from_collection([("a", 1500), ("a", 9000)], time)
            >>> joined = (
            ...     clicks.join(buys)
            ...     .where(lambda click: click[0])
            ...     .equal_to(lambda buy: buy[0])
            ...     .window(am.TumblingEventTimeWindows.of(am.seconds(5)))
            ...     .apply(lambda click, buy: (click[0], buy[1] - click[1]))
            ... )
            >>> am.run(joined.collect())
            [('a', 500)]
        """
        self._check_joinable(other, "other")
        return JoinedStreams(partial(self._sided, other), JoinFunction)

    def co_group(self, other: Any) -> JoinedStreams[StreamT]:
        """Group two streams: the records of a key and window, as two lists.

        Args:
            other: The second stream, of another type if need be.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> time = am.WatermarkStrategy.for_monotonous_timestamps()
            >>> time = time.with_timestamp_assigner(lambda record: record[1])
            >>> orders = env.from_collection([("a", 1000), ("b", 2000)], time)
            >>> payments = env.from_collection([("a", 1500)], time)
            >>> unpaid = (
            ...     orders.co_group(payments)
            ...     .where(lambda order: order[0])
            ...     .equal_to(lambda payment: payment[0])
            ...     .window(am.TumblingEventTimeWindows.of(am.seconds(5)))
            ...     .apply(lambda orders, payments: [] if payments else orders)
            ... )
            >>> am.run(unpaid.collect())
            [('b', 2000)]
        """
        self._check_joinable(other, "other")
        return JoinedStreams(partial(self._sided, other), CoGroupFunction)

    def lookup_join(
        self,
        lookup: Callable[[Any], Awaitable[Any]],
        *,
        key: KeySelector,
        join: Callable[[Any, Any], Any] | None = None,
        left: bool = False,
        cache: Cache | None = None,
        concurrency: int = 16,
        ordered: bool = True,
        timeout: timedelta | float | None = None,
        deadline: timedelta | float | None = None,
        retry: Retry | None = None,
        limit: RateLimit | None = None,
        batch: Batch | None = None,
        on_error: OnError = fail,
        buffer: int | None = None,
    ) -> StreamT:
        """Join each record with what an async function finds for its key.

        Args:
            lookup: ``async def lookup(key)``; returns None if there is nothing.
                Otherwise like the function of `DataStream.map_async`.
            key: A field's name, or a function of a record.
            join: ``(record, found)`` → the result; None for a tuple of both.
            left: Whether records for which nothing was found stay, joined with None.
            cache: Keeps what was found, ``Cache(size=..., ttl=...)``.
            concurrency: Lookups under way at a time in the whole job.
            ordered: Whether results keep the order of the records.
            timeout: Limit of one attempt, a timedelta or seconds.
            deadline: Limit of all attempts of a record with their waits.
            retry: How often, and after which waits, a failed lookup is repeated.
            limit: A rate that all who name it keep together.
            batch: Look several keys up in one call: it gets and returns a list.
            on_error: What to do with a record whose lookup or join failed.
            buffer: Records held in the whole job.

        Example:
            >>> import aiomailbox as am
            >>> async def country_of(city):
            ...     return {"Oslo": "Norway"}.get(city)
            >>> env = am.StreamExecutionEnvironment()
            >>> cities = env.from_collection(["Oslo", "Atlantis", "Oslo"])
            >>> joined = cities.lookup_join(
            ...     country_of, key=str.title, left=True, cache=am.Cache(ttl=60)
            ... )
            >>> am.run(joined.collect())
            [('Oslo', 'Norway'), ('Atlantis', None), ('Oslo', 'Norway')]
        """
        factory = partial(
            own_copy,
            LookupJoinOperator,
            lookup,
            key=key,
            join=join,
            keep_unmatched=left,
            cache=cache,
            concurrency=check_count(concurrency, "concurrency"),
            ordered=ordered,
            timeout=timeout,
            deadline=deadline,
            retry=retry,
            limit=limit,
            batch=batch,
            on_error=check_on_error(on_error),
            buffer=buffer,
            # Of a keyed stream.
            partition_key=getattr(self, "key", None),
        )
        # Wrong arguments fail here, where they are written.
        sample = factory()
        return self._derive(
            "lookup join",
            factory,
            functions=(function_info(lookup, serial=False),),
            bound=f"{sample.buffer} records",
        )

    def _sided(
        self, other: Any, key: SidedKey, assigner: WindowAssigner
    ) -> WindowedStream[Any, Any, StreamT]:
        """Return the windows of both streams, united, each record with its side."""
        first: Any = self._derive(
            "first side", partial(stateless, StageKind.MAP, mark_first)
        )
        second = other._derive(
            "second side", partial(stateless, StageKind.MAP, mark_second)
        )
        windows: WindowedStream[Any, Any, StreamT] = (
            first.union(second).key_by(key).window(assigner)
        )
        return windows


class KeyedJoins(Generic[StreamT]):
    """Joins of two keyed streams by event time."""

    key: Callable[[Any], Any]

    def _connected(
        self, others: list[Origin], name: str, factory: OperatorFactory, **facts: Any
    ) -> StreamT:
        raise TypeError(f"{type(self).__name__} does not define _connected")

    def _check_joinable(self, other: object, parameter: str) -> None:
        raise TypeError(f"{type(self).__name__} does not define _check_joinable")

    def interval_join(self, other: Any) -> IntervalJoin[StreamT]:
        """Join two keyed streams: pairs with one key and event times near each other.

        Args:
            other: The right stream, keyed too.

        Raises:
            UsageError: If the right stream has no key.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> time = am.WatermarkStrategy.for_monotonous_timestamps()
            >>> time = time.with_timestamp_assigner(lambda record: record[1])
            >>> orders = env.from_collection([("a", 1000)], time)
            >>> parcels = env.from_collection([("a", 3000), ("a", 60000)], time)
            >>> joined = (
            ...     orders.key_by(lambda order: order[0])
            ...     .interval_join(parcels.key_by(lambda parcel: parcel[0]))
            ...     .between(am.seconds(0), am.seconds(10))
            ...     .process(lambda order, parcel: (order[0], parcel[1] - order[1]))
            ... )
            >>> am.run(joined.collect())
            [('a', 2000)]
        """
        derive = partial(self._join_by_key, other)
        return IntervalJoin(derive, (self.key, self._key_of(other, "interval_join")))

    def as_of_join(
        self,
        versions: Any,
        join: ProcessJoinFunction | Callable[[Any, Any], Any] | None = None,
        *,
        left: bool = False,
        left_late: OutputTag | None = None,
        on_error: OnError = fail,
    ) -> StreamT:
        """Join each record with the newest version that is not younger than it.

        A record waits until the watermark has reached it. Of each key the newest
        version that the watermark has passed is kept, and those after it.

        Args:
            versions: The right stream, keyed too: prices, rates, settings over time.
            join: A `ProcessJoinFunction`, or ``(record, version)`` → the result, sync
                or ``async def``; None for a tuple of both.
            left: Whether records without a version stay, joined with None.
            left_late: The side output of records that come too late.
            on_error: What to do with a pair for which ``join`` raises.

        Raises:
            UsageError: If the right stream has no key.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> time = am.WatermarkStrategy.for_monotonous_timestamps()
            >>> time = time.with_timestamp_assigner(lambda record: record[1])
            >>> orders = env.from_collection([("EUR", 1500), ("EUR", 2500)], time)
            >>> rates = env.from_collection([("EUR", 1000, 2), ("EUR", 2000, 3)], time)
            >>> joined = orders.key_by(lambda order: order[0]).as_of_join(
            ...     rates.key_by(lambda rate: rate[0]),
            ...     lambda order, rate: (order[1], rate[2]),
            ... )
            >>> am.run(joined.collect())
            [(1500, 2), (2500, 3)]
        """
        function = pair if join is None else join
        factory = partial(
            own_copy,
            AsOfJoinOperator,
            self.key,
            self._key_of(versions, "as_of_join"),
            function,
            keep_unmatched=left,
            left_late=left_late,
            on_error=on_error,
        )
        factory()
        infos = () if join is None else (join_info(join),)
        return self._join_by_key(
            versions, "as-of join", factory, infos, unbounded=GROWS_WITH_KEYS
        )

    def _key_of(self, other: Any, verb: str) -> Callable[[Any], Any]:
        self._check_joinable(other, "other")
        key: Callable[[Any], Any] | None = getattr(other, "key", None)
        if key is None:
            message = f"{verb} needs keys on both streams: a.key_by(...).{verb}(b.key_by(...))"
            raise UsageError(message)
        return key

    def _join_by_key(
        self,
        other: Any,
        name: str,
        factory: OperatorFactory,
        infos: tuple[FunctionInfo, ...],
        **facts: Any,
    ) -> StreamT:
        return self._connected(
            other._origins, name, factory, functions=infos, is_keyed=True, **facts
        )
