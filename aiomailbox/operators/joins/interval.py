"""Joins records of two keyed streams whose event times are near each other."""

from __future__ import annotations

from typing import Any

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.eventtime.timers import Timer
from aiomailbox.operators.core.fields import why_rows
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.core.slices import Grown, grown, values_of
from aiomailbox.operators.core.user_code import OnError, check_tag, fail
from aiomailbox.operators.joins.keyed import JoinSide, KeyedJoinOperator, Pair
from aiomailbox.operators.keyed.operators import KeySelector
from aiomailbox.records.events import OutputTag

# Up to this many times of a narrow interval are looked up instead of searched for.
_LOOK_UPS_MAX = 8


class IntervalJoinOperator(KeyedJoinOperator):
    """Joins left and right if ``left + lower <= right <= left + upper`` in event time.

    A record that is older than the watermark comes too late: it goes to a side output,
    or is dropped and counted. Others are kept as long as a partner may come.

    Args:
        key1: The key of the left stream's records: a field's name or a function.
        key2: The key of the right stream's; keys of both are of one type.
        lower_ms: How much younger the right record is at least; may be negative.
        upper_ms: How much younger it is at most; both bounds belong to the interval.
        function: A `ProcessJoinFunction`, or a function ``(left, right)`` → result.
        left_late: The side output of left records that come too late.
        right_late: The side output of right records that come too late.
        on_error: How to handle a pair for which the function raises.

    Raises:
        InvalidArgumentError: If the interval is empty.
        WrongTypeError: If a key, the function or a tag is of a wrong type.

    Concept:
        Flink, ``IntervalJoinOperator``.

    Example:
        >>> from aiomailbox.operators.joins.keyed import pair
        >>> from aiomailbox.testing import TwoInputHarness
        >>> operator = IntervalJoinOperator(str.lower, str.lower, -1, 1, pair)
        >>> with TwoInputHarness(operator, keyed=True) as harness:
        ...     harness.first.process_run(["a", "b"], [1, 5])
        ...     harness.second.process_run(["A", "B"], [2, 7])
        ...     harness.output
        [StreamRecord(value=('a', 'A'), timestamp=2)]
    """

    def __init__(
        self,
        key1: KeySelector,
        key2: KeySelector,
        lower_ms: int,
        upper_ms: int,
        function: Any,
        *,
        left_late: OutputTag | None = None,
        right_late: OutputTag | None = None,
        on_error: OnError = fail,
    ) -> None:
        super().__init__(key1, key2, function, on_error)
        if lower_ms > upper_ms:
            raise InvalidArgumentError(
                "lower",
                f"the lower bound, {lower_ms} ms, is above the upper bound, "
                f"{upper_ms} ms",
                "Give the lower bound first; an exclusive bound counts as 1 ms "
                "more or less.",
            )
        self.lower_ms = lower_ms
        self.upper_ms = upper_ms
        self._left_late, self._right_late = left_late, right_late
        late = {"left_late": left_late, "right_late": right_late}
        self.late_tags = tuple(
            check_tag(tag, name) for name, tag in late.items() if tag is not None
        )

    def rows_reason(self) -> str:
        """Return the key function that asks for rows."""
        return why_rows(self._key1) or why_rows(self._key2)

    def take(self, side: JoinSide, key: Any, value: Any, stamp: int) -> Pending:
        """Keep a record, and join it with those of the other side."""
        is_left = side is self._left
        if stamp < self.current_watermark:
            self.drop_late(
                value, stamp, self._left_late if is_left else self._right_late
            )
            return None
        # What is kept in a map is replaced, never changed: snapshots share it.
        side.buffer.put(stamp, grown(side.buffer.get(stamp, ()), value))
        self._timers.register_event_time_timer(
            key, side.name, stamp + self._kept_ms(is_left)
        )
        if is_left:
            return self._calls.process(self._with_left(value, stamp))
        return self._calls.process(self._with_right(value, stamp))

    def on_event_time(self, timer: Timer) -> Pending:
        """Forget records that no partner can come for any more."""
        is_left = timer.namespace == self._left.name
        side = self._left if is_left else self._right
        side.buffer.remove(timer.timestamp - self._kept_ms(is_left))
        return None

    def _kept_ms(self, is_left: bool) -> int:
        """Return how long after its event time a record of a side is needed."""
        return max(self.upper_ms if is_left else -self.lower_ms, 0)

    def _with_left(self, value: Any, stamp: int) -> list[Pair]:
        low, high = stamp + self.lower_ms, stamp + self.upper_ms
        return [
            (value, stamp, other, other_stamp)
            for other_stamp, others in _within(self._right, low, high)
            for other in values_of(others)
        ]

    def _with_right(self, value: Any, stamp: int) -> list[Pair]:
        low, high = stamp - self.upper_ms, stamp - self.lower_ms
        return [
            (other, other_stamp, value, stamp)
            for other_stamp, others in _within(self._left, low, high)
            for other in values_of(others)
        ]


def _within(side: JoinSide, low: int, high: int) -> list[tuple[int, Grown]]:
    """Return the records of a side from ``low`` to ``high``, by event time."""
    buffer = side.buffer
    if high - low < _LOOK_UPS_MAX:
        return [(stamp, buffer.get(stamp, ())) for stamp in range(low, high + 1)]
    # Nearly all that is kept is near: only what a partner may still come for.
    return sorted(
        (stamp, records) for stamp, records in buffer.items() if low <= stamp <= high
    )
