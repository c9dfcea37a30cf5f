"""How many records a task processes before it looks up again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiomailbox.clock import Clock
from aiomailbox.records import RUN_LENGTH_MAX

# A slice should last about as long as the loop may be held; see decision 20.
SLICE_TARGET_S: Final = 0.001
# Of records that are awaited: the next one may take a thousand times as long as the
# last. Longer slices of them are not measurably faster.
_AWAITED_MAX: Final = 64


# How much longer than others a slice of columns may take: a full run of them takes a
# millisecond or two, and cutting it would cost more than it brings.
_COLUMN_STRETCH: Final = 8


class SliceSize:
    """Adapts the length of slices so that one takes about a millisecond.

    Two clock reads a slice, none a record. It starts with one record, doubles at most
    and falls at once: what a record costs is not known before it was paid. What was
    awaited in a slice is part of it: mail, timers and barriers wait meanwhile.

    Args:
        clock: Tells how long a slice took.
        target_s: How long it should take, seconds.
        records_max: The longest slice.
        room: How many records the operators can take without waiting; None if they
            never have to.
        left: How many records of the last slice operators have left; None if they
            never leave any.

    Attributes:
        records: How long the next slice should be, 1 to ``records_max``.

    Example:
        >>> from aiomailbox.testing import ManualClock
        >>> clock = ManualClock()
        >>> size = SliceSize(clock)
        >>> started = size.start()
        >>> size.stop(started, 1)
        >>> size.records
        2
        >>> started = size.start()
        >>> clock.advance(0.010)
        >>> size.stop(started, 2)
        >>> size.records
        1
    """

    __slots__ = ("_left", "_monotonic", "_records_max", "_room", "_target_s", "records")

    def __init__(
        self,
        clock: Clock,
        target_s: float = SLICE_TARGET_S,
        *,
        records_max: int = RUN_LENGTH_MAX,
        room: Callable[[], int] | None = None,
        left: Callable[[], int] | None = None,
    ) -> None:
        self.records: int = 1
        if records_max > RUN_LENGTH_MAX:
            # Columns: a kernel is not interrupted, and costs as much for few records.
            self.records = RUN_LENGTH_MAX
            target_s *= _COLUMN_STRETCH
        self._left = left
        self._room = room
        self._records_max = records_max
        self._target_s = target_s
        self._monotonic = clock.monotonic

    def allowed(self) -> int:
        """Return how long the next slice may be: 1 where there is room for none."""
        if self._room is None:
            return self.records
        return max(1, min(self.records, self._room()))

    def start(self) -> float:
        """Return the start of a slice, to give to `stop`."""
        return self._monotonic()

    def stop(self, started: float, count: int, *, awaited: bool = False) -> None:
        """Adapt to ``count`` records having taken from ``started`` until now.

        Args:
            started: What `start` returned.
            count: How many records there were.
            awaited: Whether some of them were awaited.
        """
        elapsed = self._monotonic() - started
        longest = min(_AWAITED_MAX, self._records_max) if awaited else self._records_max
        longest = min(2 * self.records, longest)
        # What the operator put back was not processed in this slice.
        if awaited and self._left is not None:
            count = max(1, count - self._left())
        if elapsed * longest <= self._target_s * count:
            self.records = longest
        else:
            self.records = max(1, int(self._target_s * count / elapsed))
