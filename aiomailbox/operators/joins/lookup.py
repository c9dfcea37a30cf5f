"""Joins each record with what an asynchronous function finds for its key."""

from __future__ import annotations

import dataclasses
import functools
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.eventtime.timers import Timer
from aiomailbox.operators.async_io.calls import CallEntry
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.async_io.rows import RowFlow
from aiomailbox.operators.core.failures import USER_ERRORS
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.core.slices import grown, values_of
from aiomailbox.operators.core.user_code import (
    OnError,
    check_sync_function,
    check_tag,
    fail,
)
from aiomailbox.operators.joins.keyed import JoinSide, KeyedJoinOperator, Pair, pair
from aiomailbox.operators.keyed.operators import KeySelector
from aiomailbox.policies.cache import Cache
from aiomailbox.records.events import MIN_TIMESTAMP, OutputTag

# Counts the records that a join drops, as there is nothing to join them with.
_ALONE: Final = "records_without_partner"


class LookupJoinOperator(AsyncMapOperator):
    """Joins each record with what an asynchronous function returns for its key.

    Args:
        lookup: Called with a key, or with a list of keys if there are batches; returns
            what it found, None for nothing. Otherwise as in `AsyncMapOperator`.
        key: A field's name or a function of a record.
        join: ``(record, found)`` → the result; both in a tuple if left out.
        keep_unmatched: Whether a record for which nothing was found is joined with
            None; otherwise it leads to nothing.
        cache: Keeps what was found, also that nothing was, by the lookup's key.
        **calls: The other arguments of `AsyncMapOperator`.

    Raises:
        InvalidArgumentError: If the cache has a key of its own, or another argument
            has a value that cannot work.
        WrongTypeError: If an argument has the wrong type.

    Concept:
        Flink SQL, ``AsyncLookupJoinRunner`` with its lookup cache.

    Example:
        >>> import asyncio
        >>> from aiomailbox.testing import OneInputHarness
        >>> async def country_of(city):
        ...     return {"Oslo": "Norway"}.get(city)
        >>> async def main():
        ...     operator = LookupJoinOperator(country_of, key=str.title, concurrency=10)
        ...     async with OneInputHarness(operator) as harness:
        ...         await harness.run(harness.process_run, ["oslo", "atlantis"])
        ...         await harness.run(harness.end_input)
        ...         return harness.values
        >>> asyncio.run(main())
        [('oslo', 'Norway')]
    """

    def __init__(
        self,
        lookup: Callable[[Any], Any],
        *,
        key: KeySelector,
        join: Callable[[Any, Any], Any] | None = None,
        keep_unmatched: bool = False,
        cache: Cache | None = None,
        **calls: Any,
    ) -> None:
        self._key_of = field_or_function(key, "key")
        if isinstance(cache, Cache):
            cache = _by_lookup_key(cache, self._key_of)
        if calls.get("ordered") == "key":
            calls["key"] = self._key_of
        super().__init__(lookup, cache=cache, **calls)
        self._join = check_sync_function(
            join or pair, "join", arity=2, gets="record, found"
        )
        self._keep_unmatched = keep_unmatched

    def _prepare(self) -> Pending:
        self.function.call = self._by_key(self.function.call)
        return super()._prepare()

    def _by_key(self, lookup: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
        key_of = self._key_of

        @functools.wraps(lookup)
        def look_up(record: Any) -> Any:
            return lookup(key_of(record))

        @functools.wraps(lookup)
        def look_up_all(records: list[Any]) -> Any:
            return lookup([key_of(record) for record in records])

        return look_up if self.settings.batch is None else look_up_all

    def _row_flow(self, *parts: Any) -> RowFlow:
        join, check = self._join, self.context.mutations
        if check is not None:
            join = check.watched_call(join)
        return _JoiningRowFlow(*parts, join=join, keep_unmatched=self._keep_unmatched)


class _JoiningRowFlow(RowFlow):
    """Joins a row with its call's result when that is there."""

    def __init__(
        self, *parts: Any, join: Callable[[Any, Any], Any], keep_unmatched: bool
    ) -> None:
        super().__init__(*parts)
        self._join = join
        self._keep_unmatched = keep_unmatched
        self._alone = self._context.metrics.counter(_ALONE)

    def _done(self, entry: CallEntry) -> None:
        if not entry.dropped:
            if entry.result is None and not self._keep_unmatched:
                entry.dropped = True
                self._alone.value += 1
            else:
                try:
                    entry.result = self._join(entry.value, entry.result)
                except USER_ERRORS as error:
                    # Its call ended well, and that is what a journal has.
                    if not self._drop(entry, error, 1):
                        return
        super()._done(entry)


def _by_lookup_key(cache: Cache, key: Callable[[Any], Any]) -> Cache:
    if cache.key is not None:
        raise InvalidArgumentError(
            "cache",
            f"its key {cache.key!r} has no effect here: results are cached by the "
            "key that is looked up",
            "Write Cache(size=..., ttl=...).",
        )
    return dataclasses.replace(cache, key=key)


# Joins each record with the version that was valid at its event time.


class AsOfJoinOperator(KeyedJoinOperator):
    """Joins each left record with the newest right one that is not younger.

    Theory of operation: a left record waits until the watermark has reached it, for a
    version may still come. Then it is joined and emitted, records of a key by event
    time. When the watermark reaches a version, older ones of its key are forgotten.
    Of versions with one event time the one that came last counts.

    A left record that is not younger than the watermark comes too late: it goes to a
    side output, or is dropped and counted. A version that comes late counts for left
    records that are still to be joined.

    Args:
        key1: The key of the left stream's records: a field's name or a function.
        key2: The key of the versions; keys of both are of one type.
        function: A `ProcessJoinFunction`, or a function ``(left, right)`` → result.
        keep_unmatched: Whether a left record for which there is no version is joined
            with None; otherwise it leads to nothing.
        left_late: The side output of left records that come too late.
        on_error: How to handle a pair for which the function raises.

    Raises:
        WrongTypeError: If a key, the function or the tag is of a wrong type.

    Concept:
        Flink, ``TemporalRowTimeJoinOperator``.

    Example:
        >>> from aiomailbox.testing import TwoInputHarness
        >>> first = lambda record: record[0]
        >>> with TwoInputHarness(AsOfJoinOperator(first, first), keyed=True) as harness:
        ...     harness.second.process_run([("EUR", 1.1), ("EUR", 1.2)], [0, 10])
        ...     harness.first.process_run([("EUR", 5)], [9])
        ...     harness.first.process_watermark(9)
        ...     harness.second.process_watermark(9)
        ...     harness.values
        [(('EUR', 5), ('EUR', 1.1))]
    """

    def __init__(
        self,
        key1: KeySelector,
        key2: KeySelector,
        function: Any = pair,
        *,
        keep_unmatched: bool = False,
        left_late: OutputTag | None = None,
        on_error: OnError = fail,
    ) -> None:
        super().__init__(key1, key2, function, on_error)
        if left_late is not None:
            check_tag(left_late, "left_late")
        self.keep_unmatched = keep_unmatched
        self._left_late = left_late

    def open(self) -> Pending:
        self._stamps_of: tuple[Any, ...] = ()
        self._kept_stamps: list[int] = []
        self._alone = self.context.metrics.counter(_ALONE)
        return super().open()

    def take(self, side: JoinSide, key: Any, value: Any, stamp: int) -> Pending:
        """Keep a record until its time comes."""
        if side is self._right:
            self._take_version(key, value, stamp)
        elif stamp <= self.current_watermark:
            self.drop_late(value, stamp, self._left_late)
        else:
            # What is kept in a map is replaced, never changed: snapshots share it.
            waiting = side.buffer
            waiting.put(stamp, grown(waiting.get(stamp, ()), value))
            self._timers.register_event_time_timer(key, side.name, stamp)
        return None

    def on_event_time(self, timer: Timer) -> Pending:
        """Join the left records of this time, or forget older versions."""
        stamp = timer.timestamp
        if timer.namespace == self._right.name:
            self._forget_before(stamp)
            return None
        lefts = list(values_of(self._left.buffer.get(stamp, ())))
        self._left.buffer.remove(stamp)
        return self._calls.process(self._pairs(lefts, stamp))

    def _take_version(self, key: Any, value: Any, stamp: int) -> None:
        versions, watermark = self._right.buffer, self.current_watermark
        if stamp <= watermark and self._version_at(watermark) > stamp:
            # All records that it was valid for have been joined.
            self._dropped.drop(stamp, watermark)
            return
        # A tuple, for the version itself may be None.
        versions.put(stamp, grown((), value))
        # Only if it is the key that is known: others may have many versions.
        if self._stamps_of == (key,):
            stamps = self._kept_stamps
            place = bisect_left(stamps, stamp)
            if place == len(stamps) or stamps[place] != stamp:
                stamps.insert(place, stamp)
        self._timers.register_event_time_timer(key, self._right.name, stamp)

    def _version_at(self, time: int) -> int:
        """Return the event time of the version at a time; `MIN_TIMESTAMP` if none."""
        stamps = self._stamps()
        place = bisect_right(stamps, time)
        return stamps[place - 1] if place else MIN_TIMESTAMP

    def _stamps(self) -> list[int]:
        """Return the event times of the current key's versions, in order."""
        key = self.context.keyed_state.current_key
        # Kept of one key: a watermark that many records of a key have waited for would
        # otherwise look at all of its versions for each of them.
        if self._stamps_of != (key,):
            self._stamps_of = (key,)
            self._kept_stamps = sorted(self._right.buffer.keys())
        return self._kept_stamps

    def _pairs(self, lefts: list[Any], stamp: int) -> list[Pair]:
        version = self._version_at(stamp)
        if version == MIN_TIMESTAMP:
            if not self.keep_unmatched:
                self._alone.value += len(lefts)
                return []
            return [(left, stamp, None, MIN_TIMESTAMP) for left in lefts]
        rights = self._right.buffer.get(version, ())
        return [
            (left, stamp, right, version)
            for left in lefts
            for right in values_of(rights)
        ]

    def _forget_before(self, stamp: int) -> None:
        stamps = self._stamps()
        place = bisect_left(stamps, stamp)
        for older in stamps[:place]:
            self._right.buffer.remove(older)
        del stamps[:place]
