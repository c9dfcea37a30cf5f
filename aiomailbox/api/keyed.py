"""Streams with keys: their verbs compute for each key, with its state and timers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from aiomailbox.api.adapted import OnlyKeyedProcess, as_object
from aiomailbox.api.build import GROWS_WITH_KEYS, warn_of_own_counts
from aiomailbox.api.calls import OLD_NAMES
from aiomailbox.api.definition import JobDefinition, formed, own_copy
from aiomailbox.api.grouped import Grouped
from aiomailbox.api.joined import IntervalJoin, called
from aiomailbox.api.partitioned import PartitionWindowedStream
from aiomailbox.api.sessions import Session, SessionMaker
from aiomailbox.api.windowed import WindowedStream, counting
from aiomailbox.durations import pipeline_ms
from aiomailbox.errors import UsageError
from aiomailbox.graph.transformation import OperatorFactory, Origin
from aiomailbox.operators.async_state.function import (
    KeyedAsyncContext,
    KeyedAsyncProcessFunction,
)
from aiomailbox.operators.async_state.operator import KeyedAsyncProcessOperator
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.user_code import OnError, check_on_error, fail
from aiomailbox.operators.functions.base import held_back
from aiomailbox.operators.functions.contexts import KeyedProcessContext
from aiomailbox.operators.functions.process import (
    KeyedProcessFunction,
    KeyedProcessOperator,
)
from aiomailbox.operators.joins.keyed import ProcessJoinFunction, pair
from aiomailbox.operators.joins.lookup import AsOfJoinOperator
from aiomailbox.operators.keyed.operators import (
    KeyedAggregateOperator,
    KeyedReduceOperator,
)
from aiomailbox.operators.useful.operators import DeduplicateOperator
from aiomailbox.operators.useful.patterns import Match, MatchOperator, Pattern
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.policies.retry import Retry
from aiomailbox.records.events import OutputTag
from aiomailbox.signatures import check_count
from aiomailbox.typevars import K, T, U, V
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    WindowAssigner,
)
from aiomailbox.windowing.time_window import GlobalWindow

if TYPE_CHECKING:
    # A stream leads to this class, and this class to a stream: only in their types.
    from aiomailbox.api.stream import DataStream, KeyedStream

WindowT = TypeVar("WindowT")


class Keyed(Grouped[K, T]):
    """The verbs of a stream that need a key; see `KeyedStream`."""

    _definition: JobDefinition

    if TYPE_CHECKING:

        @property
        def key(self) -> Callable[[T], K]: ...

        def _check_joinable(self, other: object, parameter: str) -> None: ...

        def _keyed(
            self,
            name: str,
            factory: OperatorFactory,
            functions: tuple[Any, ...] = (),
            **facts: Any,
        ) -> DataStream[Any]: ...

        def _connected(
            self,
            others: list[Origin],
            name: str,
            factory: OperatorFactory,
            **facts: Any,
        ) -> DataStream[Any]: ...

    def process(
        self,
        function: KeyedProcessFunction[K, T, U]
        | Callable[[T, KeyedProcessContext[K], Collector[U]], Awaitable[None] | None],
        *,
        on_error: OnError = fail,
    ) -> DataStream[U]:
        """Pass each record to a function with state and timers of its key.

        Args:
            function: A `KeyedProcessFunction`, or a function ``(value, context, out)``,
                sync or ``async def``, if no timer is needed.
            on_error: How to handle a record for which it raises.

        Example:
            >>> import aiomailbox as am
            >>> seen = am.ValueStateDescriptor("seen", int, default=0)
            >>> def number(word, context, out):
            ...     count = context.keyed_state.get_value(seen)
            ...     count.update(count.value() + 1)
            ...     out.collect(f"{word}{count.value()}")
            >>> env = am.StreamExecutionEnvironment()
            >>> words = env.from_collection(["a", "b", "a"]).key_by(lambda word: word)
            >>> am.run(words.process(number).collect())
            ['a1', 'b1', 'a2']
        """
        if not isinstance(function, KeyedProcessFunction):
            function = as_object(OnlyKeyedProcess, function, "(value, context, out)", 3)
        policy = check_on_error(on_error)
        factory = partial(
            own_copy, KeyedProcessOperator, self.key, function, on_error=policy
        )
        functions, held = (function.process_element,), held_back(function)
        stream: DataStream[U] = self._keyed("process", factory, functions, held=held)
        warn_of_own_counts(function, "process_element", "on_timer")
        return stream

    @OLD_NAMES
    def process_async(
        self,
        function: KeyedAsyncProcessFunction[K, T, U]
        | Callable[[T, KeyedAsyncContext[K], Collector[U]], Awaitable[None]],
        *,
        concurrency: int = 16,
        timeout: timedelta | float | None = None,
        deadline: timedelta | float | None = None,
        retry: Retry | None = None,
        limit: RateLimit | None = None,
        on_error: OnError = fail,
        capacity: int | None = None,
        key_capacity: int | None = None,
    ) -> DataStream[U]:
        """Pass each record to an async function with state and timers of its key.

        Records of a key are processed one at a time and in order, records of different
        keys concurrently. The results and state changes of a call take effect atomically
        when it returns, or not at all if it raises; a snapshot never contains a part of
        them. Watermarks and timers keep their places between the records of a key.
        Calls are not journalled: after a failure, those since the last checkpoint are made
        again, because state is restored to that checkpoint.

        Args:
            function: A `KeyedAsyncProcessFunction`, or an ``async def`` function
                ``(value, context, out)``.
            concurrency: The maximum number of concurrent calls in the whole job.
            timeout: The time limit of one attempt: a timedelta or seconds.
            deadline: The time limit of all attempts for a record, including their delays.
            retry: How often, and after which delays, a failed call is repeated; each
                attempt begins with the state that the key had before the record.
            limit: A rate limit, shared by all operators that name it.
            on_error: How to handle a record after the last attempt. A timer that
                fails always fails the job.
            capacity: The maximum number of records held in the whole job; by default, 4
                times ``concurrency``.
            key_capacity: How many records may wait for their key, in addition to ``capacity``.

        Example:
            >>> import asyncio
            >>> import aiomailbox as am
            >>> seen = am.ValueStateDescriptor("seen", int, default=0)
            >>> async def number(word, context, out):
            ...     await asyncio.sleep(0.001)
            ...     count = context.keyed_state.get_value(seen)
            ...     count.update(count.value() + 1)
            ...     out.collect(f"{word}{count.value()}")
            >>> env = am.StreamExecutionEnvironment()
            >>> words = env.from_collection(["a", "b", "a"]).key_by(lambda word: word)
            >>> sorted(am.run(words.process_async(number).collect()))
            ['a1', 'a2', 'b1']
        """
        factory = partial(
            KeyedAsyncProcessOperator,
            self.key,
            function,
            concurrency=check_count(concurrency, "concurrency"),
            timeout=timeout,
            deadline=deadline,
            retry=retry,
            limit=limit,
            on_error=check_on_error(on_error),
            capacity=capacity,
            key_capacity=key_capacity,
        )
        process: Any = getattr(function, "process_element", function)
        stream: DataStream[U] = self._keyed(
            "process_async", factory, (process,), serial=False, limit=limit
        )
        warn_of_own_counts(function, "process_element", "on_timer")
        return stream

    def window(
        self, assigner: WindowAssigner[WindowT]
    ) -> WindowedStream[K, T, WindowT]:
        """Group the records of each key into time windows."""
        return WindowedStream(self.key, assigner, self._keyed, self._origins)

    def full_window_partition(self) -> PartitionWindowedStream[K, T]:
        """Take all records of each key as one partition, which ends with the input.

        For bounded streams: it gives one result for each key, where `aggregate` and
        `reduce` give one for each record.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> words = env.from_collection(["tea", "jam", "tea"])
            >>> by_word = words.key_by(lambda word: word).full_window_partition()
            >>> am.run(by_word.aggregate(am.count(), include_key=True).collect())
            [('tea', 2), ('jam', 1)]

        Concept:
            Flink, ``KeyedStream.fullWindowPartition``.
        """
        return PartitionWindowedStream(self.key, self._keyed, self._origins)

    def count_window(
        self, size: int, slide: int | None = None
    ) -> WindowedStream[K, T, GlobalWindow]:
        """Group the records of each key into windows of a number of records.

        Time plays no part. The last records of a key, too few for a window, are never
        emitted; a trigger of your own changes that (`ProcessingTimeoutTrigger`).

        Args:
            size: How many records are in a window.
            slide: After how many records of a key a window is emitted: it has the last
                ``size`` ones, the first windows fewer. None for windows that do not
                overlap.

        Raises:
            InvalidArgumentError: If a number is below 1.
            WrongTypeError: If it is no int.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> words = env.from_collection(["a1", "b1", "a2", "a3", "a4", "b2"])
            >>> by_letter = words.key_by(lambda word: word[0])
            >>> join = lambda key, window, records: ["+".join(records)]
            >>> am.run(by_letter.count_window(2).apply(join).collect())
            ['a1+a2', 'a3+a4', 'b1+b2']
            >>> am.run(by_letter.count_window(3, 2).apply(join).collect())
            ['a1+a2', 'a2+a3+a4', 'b1+b2']

        Concept:
            Flink, ``KeyedStream.countWindow``.
        """
        return counting(self.window(GlobalWindows.create()), size, slide)

    def sessionise(self, gap: timedelta) -> DataStream[Session[K, T]]:
        """Group the records of each key into sessions, emitted as `Session` records.

        Args:
            gap: A timedelta. A longer pause in event time ends a session.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> time = am.WatermarkStrategy.for_monotonous_timestamps()
            >>> time = time.with_timestamp_assigner(lambda click: click[1])
            >>> clicks = env.from_collection([("a", 0), ("a", 900), ("a", 5000)], time)
            >>> sessions = clicks.key_by(lambda c: c[0]).sessionise(am.seconds(1))
            >>> for one in am.run(sessions.collect()):
            ...     print(one.key, one.start.time(), one.end - one.start)
            a 00:00:00 0:00:00.900000
            a 00:00:05 0:00:00
        """
        windows = self.window(EventTimeSessionWindows.with_gap(gap))
        return windows.apply(SessionMaker(pipeline_ms(gap, "gap")))

    def deduplicate(self, ttl: timedelta | None = None) -> DataStream[T]:
        """Pass on the first record of each key and drop the others.

        Args:
            ttl: How long after its first record, in processing time, a key counts
                as new again: a timedelta; None for never, which lets state
                grow with the number of keys.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> words = env.from_collection(["a", "b", "a"]).key_by(lambda word: word)
            >>> am.run(words.deduplicate(ttl=am.hours(1)).collect())
            ['a', 'b']
        """
        factory = partial(DeduplicateOperator, self.key, ttl=ttl)
        unbounded = GROWS_WITH_KEYS if ttl is None else ""
        return self._keyed("deduplicate", factory, unbounded=unbounded)

    def match(
        self, pattern: Pattern, *, partials_max: int = 1000, on_error: OnError = fail
    ) -> DataStream[Match]:
        """Emit a `Match` for records of a key that match a pattern, in event time.

        Records are sorted by event time up to the watermark; late records are dropped and
        counted. Unless the pattern says otherwise (`Pattern.skipping`), a record is part
        of one match only: a match discards all partial matches. Patterns should set
        ``within``; otherwise partial matches are kept forever.

        Args:
            pattern: The pattern, which begins with ``am.pattern(...)``.
            partials_max: The maximum number of partial matches kept per key; beyond it, the
                earliest is dropped and counted as ``partial_matches_dropped``.
            on_error: How to handle a record for which a step's ``where`` raises.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> time = am.WatermarkStrategy.for_monotonous_timestamps()
            >>> time = time.with_timestamp_assigner(lambda payment: payment[2])
            >>> payments = [("ann", 1, 0), ("ann", 5, 10), ("ann", 900, 20)]
            >>> fraud = (
            ...     am.pattern("test", where=lambda payment: payment[1] < 2)
            ...     .followed_by("theft", where=lambda payment: payment[1] > 500)
            ...     .within(am.minutes(5))
            ... )
            >>> stream = env.from_collection(payments, time).key_by(lambda p: p[0])
            >>> for found in am.run(stream.match(fraud).collect()):
            ...     print(found.key, found.events["theft"], found.end - found.start)
            ann ('ann', 900, 20) 0:00:00.020000
        """
        factory = partial(
            MatchOperator,
            self.key,
            pattern,
            partials_max=partials_max,
            on_error=on_error,
        )
        factory()
        functions = tuple(
            step.where for step in pattern.steps if step.where is not None
        )
        unbounded = GROWS_WITH_KEYS if pattern.within_ms is None else ""
        return self._keyed(
            "match",
            factory,
            functions,
            unbounded=unbounded,
            held="records that wait for the watermark",
            waits_for_watermarks=True,
        )

    def interval_join(self, other: KeyedStream[Any, U]) -> IntervalJoin[T, U]:
        """Join two keyed streams: pairs with equal keys and event times near each other.

        Next is ``between(...)``, then ``select(...)`` with fields of both sides, which
        leaves columns what they are, or ``process(...)`` with a function.

        Args:
            other: The right stream, which must be keyed too.

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
        keys = self.key, self._key_of(other, "interval_join")
        derive = partial(self._join_by_key, other)
        return IntervalJoin(derive, keys)

    @overload
    def as_of_join(
        self,
        versions: KeyedStream[Any, V],
        join: None = None,
        *,
        left: Literal[False] = False,
        left_late: OutputTag[T] | None = None,
        on_error: OnError = fail,
    ) -> DataStream[tuple[T, V]]: ...

    @overload
    def as_of_join(
        self,
        versions: KeyedStream[Any, V],
        join: None = None,
        *,
        left: bool,
        left_late: OutputTag[T] | None = None,
        on_error: OnError = fail,
    ) -> DataStream[tuple[T, V | None]]: ...

    @overload
    def as_of_join(
        self,
        versions: KeyedStream[Any, V],
        join: ProcessJoinFunction[T, Any, U] | Callable[[T, Any], Awaitable[U]],
        *,
        left: bool = False,
        left_late: OutputTag[T] | None = None,
        on_error: OnError = fail,
    ) -> DataStream[U]: ...

    @overload
    def as_of_join(
        self,
        versions: KeyedStream[Any, V],
        join: Callable[[T, Any], U],
        *,
        left: bool = False,
        left_late: OutputTag[T] | None = None,
        on_error: OnError = fail,
    ) -> DataStream[U]: ...

    def as_of_join(
        self,
        versions: KeyedStream[Any, Any],
        join: ProcessJoinFunction[T, Any, Any] | Callable[[T, Any], Any] | None = None,
        *,
        left: bool = False,
        left_late: OutputTag[T] | None = None,
        on_error: OnError = fail,
    ) -> DataStream[Any]:
        """Join each record with the latest version that is not newer than the record.

        A record waits until the watermark has reached it. For each key, the latest
        version that the watermark has passed is kept, and all newer ones.

        Args:
            versions: The right stream, keyed too: such as prices, rates or settings.
            join: A `ProcessJoinFunction`, or ``(record, version)`` → the result, sync
                or ``async def``; None for a tuple of both.
            left: Whether records without a version are kept, joined with None.
            left_late: The side output of records that arrive too late.
            on_error: How to handle a pair for which ``join`` raises.

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
        return self._join_by_key(
            versions,
            "as-of join",
            factory,
            functions=() if join is None else (called(join),),
            unbounded=GROWS_WITH_KEYS,
            held="records that wait for the watermark",
            waits_for_watermarks=True,
        )

    def _key_of(self, other: DataStream[Any], verb: str) -> Callable[[Any], Any]:
        self._check_joinable(other, "other")
        key = other._key
        if key is None:
            message = (
                f"{verb} needs keys on both streams: "
                f"a.key_by(...).{verb}(b.key_by(...))"
            )
            raise UsageError(message)
        return key

    def _join_by_key(
        self,
        other: DataStream[Any],
        name: str,
        factory: OperatorFactory,
        **facts: Any,
    ) -> DataStream[Any]:
        return self._connected(other._origins, name, factory, is_keyed=True, **facts)

    def _reduced(
        self, name: str, function: Callable[[Any, Any], Any], on_error: OnError
    ) -> DataStream[Any]:
        factory = partial(KeyedReduceOperator, self.key, function, on_error=on_error)
        return self._keyed(name, factory, (function,), unbounded=GROWS_WITH_KEYS)

    def _aggregated(self, **work: Any) -> DataStream[Any]:
        factory = partial(formed, KeyedAggregateOperator, self.key, **work)
        return self._keyed(
            "aggregate", factory, unbounded=GROWS_WITH_KEYS, has_columns=True
        )
