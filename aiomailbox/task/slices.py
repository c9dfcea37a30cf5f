"""How many records a task processes before it looks up again."""

from __future__ import annotations

from typing import Final

from aiomailbox.clock import Clock
from aiomailbox.records import RUN_LENGTH_MAX

# A slice should last about as long as the loop may be held; see decisions on D6.
SLICE_TARGET_S: Final = 0.001


class SliceSize:
    """Adapts the length of slices so that one takes about a millisecond.

    Two clock reads a slice, none a record. It starts with one record, doubles at most
    and falls at once: what a record costs is not known before it was paid.

    Args:
        clock: Tells how long a slice took.
        target_s: How long it should take, seconds.
        records_max: The longest slice.

    Attributes:
        records: How long the next slice may be, 1 to ``records_max``.

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

    __slots__ = ("_monotonic", "_records_max", "_target_s", "records")

    def __init__(
        self,
        clock: Clock,
        target_s: float = SLICE_TARGET_S,
        records_max: int = RUN_LENGTH_MAX,
    ) -> None:
        self.records = 1
        self._records_max = records_max
        self._target_s = target_s
        self._monotonic = clock.monotonic

    def start(self) -> float:
        """Return the start of a slice, to give to `stop`."""
        return self._monotonic()

    def stop(self, started: float, count: int) -> None:
        """Take note that ``count`` records took from ``started`` until now."""
        elapsed = self._monotonic() - started
        longest = min(2 * self.records, self._records_max)
        if elapsed * longest <= self._target_s * count:
            self.records = longest
        else:
            self.records = max(1, int(self._target_s * count / elapsed))
