"""How many records a task processes before it looks up again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from aiomailbox.clock import Clock
from aiomailbox.records.run import COLUMN_RUN_LENGTH_MAX, RUN_LENGTH_MAX

# A slice should last about as long as the loop may be held; see decision 20.
SLICE_TARGET_S: Final = 0.001
# Of records that are awaited: the next one may take a thousand times as long as the
# last. Longer slices of them are not measurably faster.
_AWAITED_MAX: Final = 64


# How much longer than others a slice of columns may take: a full run of them takes a
# millisecond or two, and cutting it would cost more than it brings.
_COLUMN_STRETCH: Final = 8


class SliceForm(NamedTuple):
    """What is known of slices before there was one.

    Attributes:
        records_max: The longest slice, in records.
        has_fixed_cost: Whether a slice costs something however few records it has, as
            calls into kernels do.
        records_min: The shortest slice, and the first one.
        stretch: How many times as long as others it may take.
    """

    records_max: int = RUN_LENGTH_MAX
    has_fixed_cost: bool = False
    records_min: int = 1
    stretch: int = 1


ROW_SLICES: Final = SliceForm()
# Kernels run for rows, too: columns are made of them.
ROW_SLICES_OF_KERNELS: Final = SliceForm(has_fixed_cost=True)
# Rows are made of what comes out of kernels; what makes them yields to the loop itself.
MIXED_SLICES: Final = SliceForm(
    COLUMN_RUN_LENGTH_MAX,
    has_fixed_cost=True,
    records_min=_AWAITED_MAX,
    stretch=_COLUMN_STRETCH,
)
# A kernel is not interrupted: there is nothing to find out record by record. Fewer records
# save no time, of which most is that of calls.
COLUMN_SLICES: Final = SliceForm(
    COLUMN_RUN_LENGTH_MAX,
    has_fixed_cost=True,
    records_min=4 * RUN_LENGTH_MAX,
    stretch=_COLUMN_STRETCH,
)


class SliceSize:
    """Adapts the length of slices so that one takes about a millisecond.

    Two clock reads a slice, none a record. It starts with one record, doubles at most
    and falls at once: what a record costs is not known before it was paid. What was
    awaited in a slice is part of it: mail, timers and barriers wait meanwhile.

    What a slice costs however short it is cannot be saved by shorter ones. Where there
    is such a cost, it is taken to be that of the shortest slice, or of the quickest since,
    and only what comes on top is to fit into the millisecond.

    Args:
        clock: Tells how long a slice took.
        target_s: How long it should take, seconds.
        form: The longest slice, and what one costs.
        room: How many records the operators can take without waiting; None if they
            never have to.
        left: How many records of the last slice operators have left; None if they
            never leave any.

    Attributes:
        records: How long the next slice should be, 1 to the longest.

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

    __slots__ = (
        "_fixed_s",
        "_has_fixed_cost",
        "_left",
        "_monotonic",
        "_records_max",
        "_records_min",
        "_room",
        "_target_s",
        "records",
    )

    def __init__(
        self,
        clock: Clock,
        target_s: float = SLICE_TARGET_S,
        *,
        form: SliceForm = ROW_SLICES,
        room: Callable[[], int] | None = None,
        left: Callable[[], int] | None = None,
    ) -> None:
        self.records: int = form.records_min
        self._left = left
        self._room = room
        self._records_min = form.records_min
        self._records_max = form.records_max
        self._has_fixed_cost = form.has_fixed_cost
        self._fixed_s = 0.0
        self._target_s = target_s * form.stretch
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
        longest = self._records_max
        if awaited:
            # Making rows of columns also awaits the loop's turns in between.
            is_parting = self._has_fixed_cost and self._left is None
            longest = min(RUN_LENGTH_MAX if is_parting else _AWAITED_MAX, longest)
            longest = max(longest, self._records_min)
        longest = min(2 * self.records, longest)
        # What the operator put back was not processed in this slice.
        if awaited and self._left is not None:
            count = max(1, count - self._left())
        if self._has_fixed_cost:
            if count <= self._records_min or elapsed < self._fixed_s:
                self._fixed_s = elapsed
            elapsed -= self._fixed_s
        if elapsed * longest <= self._target_s * count:
            self.records = longest
        else:
            fitting = int(self._target_s * count / elapsed)
            self.records = max(self._records_min, fitting)
