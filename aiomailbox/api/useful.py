"""Verbs that nobody should have to write again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from aiomailbox.api.build import GROWS_WITH_KEYS, function_info
from aiomailbox.api.sessions import SessionMaker
from aiomailbox.api.windowed import WindowedStream
from aiomailbox.durations import duration_ms
from aiomailbox.errors import WrongTypeError
from aiomailbox.exchange import BroadcastPartitioner
from aiomailbox.graph import ChainingStrategy, FunctionInfo, OperatorFactory, Origin
from aiomailbox.operators import (
    BatchOperator,
    BufferOperator,
    BufferPolicy,
    DeduplicateOperator,
    MatchOperator,
    OnError,
    Pattern,
    SampleOperator,
    WithLatestOperator,
    check_function,
    fail,
    is_async_callable,
)
from aiomailbox.policies import RateLimit
from aiomailbox.windowing import EventTimeSessionWindows

StreamT = TypeVar("StreamT")


class Useful(Generic[StreamT]):
    """Methods of any stream that cut it up, thin it out or slow it down."""

    def _derive(self, name: str, factory: OperatorFactory, **facts: Any) -> StreamT:
        raise TypeError(f"{type(self).__name__} does not define _derive")

    def _connected(
        self, others: list[Origin], name: str, factory: OperatorFactory, **facts: Any
    ) -> StreamT:
        raise TypeError(f"{type(self).__name__} does not define _connected")

    def _check_joinable(self, other: object, parameter: str) -> None:
        raise TypeError(f"{type(self).__name__} does not define _check_joinable")

    def batch(self, size: int, within: timedelta | float | None = None) -> StreamT:
        """Put records together in lists, in their order.

        A list goes out when it is full, when its first record has waited for
        ``within``, when the stream becomes idle, and at the end. Its event time is the
        latest one of its records; a watermark waits for the list that is open.

        Args:
            size: Records in a list at most.
            within: How long the first record waits for others, in processing time: a
                timedelta or seconds; None for as long as it takes.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> lists = env.from_collection([1, 2, 3]).batch(2, within=am.seconds(1))
            >>> am.run(lists.collect())
            [[1, 2], [3]]
        """
        factory = partial(BatchOperator, size, within)
        factory()
        return self._derive("batch", factory, bound=f"{size} records")

    def buffer(self, size: int, policy: BufferPolicy = "drop_oldest") -> StreamT:
        """Take records as fast as they come, and lose some rather than wait.

        A source that cannot wait is thus parted from a consumer that is too slow at
        times. Beside those that wait here, records are on their way to the consumer,
        as many as the buffers of `JobConfig` hold: thousands of small ones, unless it
        says less. Watermarks keep their places between records. What is lost is counted
        as ``records_dropped``.

        Args:
            size: Records that wait at most.
            policy: What happens to one too many: ``"drop_oldest"``: the one that waits
                longest is dropped; ``"latest"``: all that wait are dropped, and the new
                one waits; ``"error"``: the job fails with `BufferFullError`.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> am.run(env.from_collection([1, 2]).buffer(10).collect())
            [1, 2]
        """
        factory = partial(BufferOperator, size, policy)
        factory()
        return self._derive(
            "buffer", factory, chaining=ChainingStrategy.NEVER, bound=f"{size} records"
        )

    def sample(self, fraction: float) -> StreamT:
        """Pass on a random part of the records, each with the same probability.

        With ``JobConfig(seed=...)`` a job that is run again chooses the same ones of
        the same input.

        Args:
            fraction: The probability, from 0 to 1.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> part = am.run(env.from_collection(range(1000)).sample(0.1).collect())
            >>> 60 < len(part) < 140
            True
        """
        factory = partial(SampleOperator, fraction)
        factory()
        return self._derive("sample", factory)

    def rate_limit(
        self,
        limit: RateLimit,
        *,
        weight: float | Callable[[Any], float] | None = None,
    ) -> StreamT:
        """Let through at most so many records in any window of time, in their order.

        The others wait, and the source with them; none is dropped.

        Args:
            limit: How many; those that name the same limit share it in the whole job.
            weight: What a record costs: a number, or a function; None for 1.

        Raises:
            WrongTypeError: If ``limit`` is not a `RateLimit`.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> slow = env.from_collection([1, 2, 3]).rate_limit(am.RateLimit(1000))
            >>> am.run(slow.collect())
            [1, 2, 3]
        """
        if not isinstance(limit, RateLimit):
            raise WrongTypeError(
                "limit", f"{limit!r} is not a RateLimit", "Write am.RateLimit(100)."
            )
        stream: Any = self
        limited: Any = stream.map_async(_itself, limit=limit, weight=weight)
        named: StreamT = limited.name("rate_limit")
        return named

    def with_latest_from(
        self,
        other: Any,
        function: Callable[[Any, Any], Any | Awaitable[Any]] | None = None,
        *,
        on_error: OnError = fail,
    ) -> StreamT:
        """Combine each record with the record of another stream that came last.

        Which one that is depends on when records arrive; `KeyedStream.as_of_join` goes
        by event time. Records that come before the other stream's first one are
        dropped and counted as ``records_without_latest``.

        Args:
            other: The other stream; every subtask gets all of it.
            function: ``(record, latest)`` → the result, sync or ``async def``; None for
                a tuple of both.
            on_error: What to do with a pair for which it raises.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> rates = env.from_collection([10])
            >>> pairs = env.from_collection([1, 2]).with_latest_from(rates)
            >>> set(am.run(pairs.collect())) <= {(1, 10), (2, 10)}
            True
        """
        self._check_joinable(other, "other")
        combine: Any = None
        if function is not None:
            check_function(function, "function", arity=2)
            combine = _spread(function)
        everywhere = [
            Origin(origin.transformation, BroadcastPartitioner(), origin.tag)
            for origin in other._origins
        ]
        pairs: Any = self._connected(everywhere, "with_latest_from", WithLatestOperator)
        combined: StreamT = (
            pairs if combine is None else pairs.map(combine, on_error=on_error)
        )
        return combined


class KeyedUseful(Generic[StreamT]):
    """Methods of keyed streams of the same kind."""

    key: Callable[..., Any]

    def _keyed(
        self,
        name: str,
        factory: OperatorFactory,
        functions: tuple[FunctionInfo, ...] = (),
        **facts: Any,
    ) -> StreamT:
        raise TypeError(f"{type(self).__name__} does not define _keyed")

    def deduplicate(self, ttl: timedelta | float | None = None) -> StreamT:
        """Pass on the first record of each key and drop the others.

        Args:
            ttl: After how long, in processing time since its first record, a key counts
                as new again: a timedelta or seconds; None for never. Without it state
                grows with the number of keys.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> words = env.from_collection(["a", "b", "a"]).key_by(lambda word: word)
            >>> am.run(words.deduplicate(ttl=am.hours(1)).collect())
            ['a', 'b']
        """
        factory = partial(DeduplicateOperator, self.key, ttl=ttl)
        factory()
        unbounded = GROWS_WITH_KEYS if ttl is None else ""
        return self._keyed("deduplicate", factory, unbounded=unbounded)

    def sessionise(self, gap: timedelta | float) -> StreamT:
        """Put records of a key between pauses together, as `Session` records.

        Args:
            gap: A pause in event time that ends a session: a timedelta or seconds.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> time = am.WatermarkStrategy.for_monotonous_timestamps()
            >>> time = time.with_timestamp_assigner(lambda click: click[1])
            >>> clicks = env.from_collection([("a", 0), ("a", 900), ("a", 5000)], time)
            >>> sessions = clicks.key_by(lambda c: c[0]).sessionise(am.seconds(1))
            >>> for one in am.run(sessions.collect()):
            ...     print(one.key, one.start, one.end, len(one.records))
            a 0 900 2
            a 5000 5000 1
        """
        windows: WindowedStream[Any, Any, StreamT] = WindowedStream(
            self.key, EventTimeSessionWindows.with_gap(gap), self._keyed
        )
        return windows.apply(SessionMaker(duration_ms(gap, "gap")))

    def match(
        self, pattern: Pattern, *, partials_max: int = 1000, on_error: OnError = fail
    ) -> StreamT:
        """Emit a `Match` for records of a key that match a pattern, in event time.

        Records are sorted by event time up to the watermark; late ones are dropped and
        counted. Unless the pattern says otherwise (`Pattern.skipping`) a record is part
        of one match only: a match ends all others that have begun. Patterns should say
        ``within``, or beginnings of matches are kept for ever.

        Args:
            pattern: What to look for; begun with ``am.pattern(...)``.
            partials_max: Beginnings of matches that are kept per key; beyond it the
                earliest is forgotten and counted as ``partial_matches_dropped``.
            on_error: What to do with a record for which a step's ``where`` raises.

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
            ann ('ann', 900, 20) 20
        """
        factory = partial(
            MatchOperator,
            self.key,
            pattern,
            partials_max=partials_max,
            on_error=on_error,
        )
        factory()
        infos = tuple(
            function_info(step.where)
            for step in pattern.steps
            if step.where is not None
        )
        unbounded = GROWS_WITH_KEYS if pattern.within_ms is None else ""
        return self._keyed("match", factory, infos, unbounded=unbounded)


async def _itself(value: Any) -> Any:
    return value


def _spread(function: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """Return ``function`` as one of a pair, async if it is."""
    return (_AsyncSpread if is_async_callable(function) else _Spread)(function)


class _Spread:
    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function

    def __call__(self, pair: Any) -> Any:
        return self.function(*pair)


class _AsyncSpread:
    def __init__(self, function: Callable[[Any, Any], Awaitable[Any]]) -> None:
        self.function = function

    async def __call__(self, pair: Any) -> Any:
        return await self.function(*pair)
