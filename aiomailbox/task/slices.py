"""How many records a task processes before it looks up again."""

from __future__ import annotations

from typing import Final

from aiomailbox.clock import Clock
from aiomailbox.records import RUN_LENGTH_MAX

# A slice should last about as long as the loop may be held; see decisions on D6.
SLICE_TARGET_S: Final = 0.001


class SliceSize:
    """Adapts the length of slices so that one takes about a millisecond.

    Two clock reads a slice, none a record. It doubles at most and falls at once.

    Attributes:
        records: How long the next slice may be, 1 to `RUN_LENGTH_MAX`.

    Example:
        >>> from aiomailbox.testing import ManualClock
        >>> clock = ManualClock()
        >>> size = SliceSize(clock)
        >>> started = size.start()
        >>> clock.advance(0.010)
        >>> size.stop(started, 1024)
        >>> size.records
        102
    """

    __slots__ = ("_monotonic", "_target_s", "records")

    def __init__(self, clock: Clock, target_s: float = SLICE_TARGET_S) -> None:
        self.records = RUN_LENGTH_MAX
        self._target_s = target_s
        self._monotonic = clock.monotonic

    def start(self) -> float:
        """Return the start of a slice, to give to `stop`."""
        return self._monotonic()

    def stop(self, started: float, count: int) -> None:
        """Take note that ``count`` records took from ``started`` until now."""
        elapsed = self._monotonic() - started
        if elapsed * RUN_LENGTH_MAX <= self._target_s * count:
            self.records = RUN_LENGTH_MAX
            return
        fitting = int(self._target_s * count / elapsed)
        self.records = max(1, min(fitting, 2 * self.records, RUN_LENGTH_MAX))
