"""Joins each record with the version that was valid at its event time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

from aiomailbox.errors import WrongTypeError
from aiomailbox.eventtime.timer_queue import Timer
from aiomailbox.operators.core.failures import OnError, fail
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.core.slices import grown, values_of
from aiomailbox.operators.joins.keyed import JoinSide, KeyedJoinOperator, Pair, pair
from aiomailbox.operators.keyed.operators import KeySelector
from aiomailbox.records.elements import MIN_TIMESTAMP, OutputTag


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
        on_error: What to do with a pair for which the function raises.

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
        if left_late is not None and not isinstance(left_late, OutputTag):
            raise WrongTypeError(
                "left_late",
                f"{left_late!r} is not an OutputTag",
                "Write am.OutputTag('late').",
            )
        self.keep_unmatched = keep_unmatched
        self._left_late = left_late

    def open(self) -> Pending:
        """Bind state and timers, and open the function."""
        self._stamps_of: tuple[Any, ...] = ()
        self._kept_stamps: list[int] = []
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
