"""Windows: stretches of time that records are grouped by."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, NamedTuple

from aiomailbox.records.events import MAX_TIMESTAMP, MIN_TIMESTAMP
from aiomailbox.state.operator_state import OperatorStateSnapshot, RedistributionMode
from aiomailbox.state.serializers import kept_in_state

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@kept_in_state("TimeWindow")
class TimeWindow(NamedTuple):
    """The time from ``start`` up to, but not including, ``end``; milliseconds.

    Concept:
        Flink, ``TimeWindow``.

    Example:
        >>> window = TimeWindow(0, 5000)
        >>> window.max_timestamp, window.intersects(TimeWindow(5000, 6000))
        (4999, True)
    """

    start: int
    end: int

    @property
    def max_timestamp(self) -> int:
        """The last millisecond that belongs to the window."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Say whether the windows overlap or touch."""
        # Touching counts, as in Flink: a gap of 3 s joins records that are exactly 3 s
        # apart.
        return self.start <= other.end and other.start <= self.end

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Return the smallest window that contains both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))


@kept_in_state("GlobalWindow")
class GlobalWindow(Enum):
    """The one window of all time; its only member is `GLOBAL_WINDOW`.

    Concept:
        Flink, ``GlobalWindow``.
    """

    GLOBAL = "global"

    @property
    def start(self) -> int:
        """The least timestamp there is."""
        return MIN_TIMESTAMP

    @property
    def end(self) -> int:
        """The greatest timestamp there is."""
        return MAX_TIMESTAMP

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp there is: the window never ends before time does."""
        return MAX_TIMESTAMP


GLOBAL_WINDOW: Final = GlobalWindow.GLOBAL


Window = TimeWindow | GlobalWindow


def window_start(timestamp: int, offset: int, size: int) -> int:
    """Return where the window of this size begins that holds ``timestamp``.

    Args:
        timestamp: Milliseconds, may be negative.
        offset: Where windows begin, relative to multiples of ``size``.
        size: Milliseconds, more than zero.

    Example:
        >>> window_start(7, 0, 5), window_start(-1, 0, 5), window_start(7, 3, 5)
        (5, -5, 3)
    """
    # Python's remainder is never negative here; Java's is, and Flink corrects it.
    return timestamp - (timestamp - offset) % size


def window_datetime(timestamp_ms: int) -> datetime | None:
    """Return an event time as an aware datetime; None beyond the years 1 to 9999.

    Example:
        >>> window_datetime(1_000).isoformat()
        '1970-01-01T00:00:01+00:00'
    """
    try:
        return _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None


class MergedWindows(NamedTuple):
    """Several windows that became one.

    Attributes:
        result: The window that covers them.
        merged: The windows, at least two different ones, by their start.
    """

    result: TimeWindow
    merged: list[TimeWindow]


def merge_windows(windows: Iterable[TimeWindow]) -> list[MergedWindows]:
    """Return which of the windows overlap or touch, and what they become together.

    Windows that stay alone are not mentioned.

    Concept:
        Flink, ``TimeWindow.mergeWindows``.

    Example:
        >>> first, second = TimeWindow(0, 2), TimeWindow(1, 3)
        >>> merge_windows([second, first, TimeWindow(9, 10)])[0].result
        TimeWindow(start=0, end=3)
    """
    groups: list[MergedWindows] = []
    for window in sorted(set(windows)):
        if groups and groups[-1].result.intersects(window):
            last = groups[-1]
            last.merged.append(window)
            groups[-1] = MergedWindows(last.result.cover(window), last.merged)
        else:
            groups.append(MergedWindows(window, [window]))
    return [group for group in groups if len(group.merged) > 1]


# Where the windows of a subtask begin, as a part of its snapshot.


# The name is in snapshots.
_OFFSET: Final = "window-offset"


def with_offset(
    own: OperatorStateSnapshot, offset_ms: int | None
) -> OperatorStateSnapshot:
    """Return what an operator keeps, with the offset of its windows, if it has one."""
    offsets = [] if offset_ms is None else [offset_ms]
    return own.with_list(_OFFSET, offsets, RedistributionMode.MERGE)


def kept_offsets(own: OperatorStateSnapshot) -> list[int]:
    """Return the offsets that earlier subtasks had."""
    return own.elements(_OFFSET)
