"""Session windows: a record keeps its session open for a gap."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

from aiomailbox.durations import duration_ms
from aiomailbox.errors import BadResultError, InvalidArgumentError, UsageError
from aiomailbox.operators.core.callables import check_sync_function, describe, shortened
from aiomailbox.windowing.assigners import (
    Duration,
    WindowAssigner,
    required_timestamp,
    signed_ms,
)
from aiomailbox.windowing.time_window import MergedWindows, TimeWindow, merge_windows

Gap = int | Callable[[Any], int]


class MergingWindowAssigner(WindowAssigner[TimeWindow]):
    """Assigns windows that are merged when they touch or overlap.

    Concept:
        Flink, ``MergingWindowAssigner``.
    """

    is_merging = True

    def merge(self, windows: Iterable[TimeWindow]) -> list[MergedWindows]:
        """Return which of a key's windows are merged."""
        return merge_windows(windows)


class _SessionWindows(MergingWindowAssigner):
    def __init__(self, gap_ms: Gap) -> None:
        if isinstance(gap_ms, int) and gap_ms <= 0:
            raise InvalidArgumentError(
                "gap", f"{gap_ms} ms is not positive", "Use 1 ms or more."
            )
        self._gap_ms = gap_ms

    @classmethod
    def with_gap(cls, gap: Duration) -> Self:
        """Return sessions with one gap, a timedelta or a number of seconds."""
        return cls(signed_ms(gap, "gap"))

    @classmethod
    def with_dynamic_gap(cls, gap: Callable[[Any], Duration]) -> Self:
        """Return sessions whose gap is what a function of the record returns."""
        return cls(DynamicGap(gap))

    @property
    def gap_ms(self) -> Gap:
        """Milliseconds, or a function of a record that returns them."""
        return self._gap_ms

    def _session(self, value: Any, begin_ms: int) -> list[Any]:
        gap = self._gap_ms
        length = gap if isinstance(gap, int) else gap(value)
        return [TimeWindow(begin_ms, begin_ms + length)]


class EventTimeSessionWindows(_SessionWindows):
    """Sessions in event time: they end when a key has no record for longer than a gap.

    Args:
        gap_ms: Milliseconds, or a function of a record that returns them; see
            `with_gap` and `with_dynamic_gap`.

    Raises:
        InvalidArgumentError: If the gap is not above zero.

    Concept:
        Flink, ``EventTimeSessionWindows``.

    Example:
        >>> EventTimeSessionWindows.with_gap(5).assign("record", 12_000, 0)
        [TimeWindow(start=12000, end=17000)]
    """

    is_event_time = True

    def assign(self, value: Any, timestamp: int | None, now_ms: int) -> list[Any]:
        """Return the session of the record alone, before merging."""
        begin_ms = required_timestamp(timestamp) if timestamp is None else timestamp
        return self._session(value, begin_ms)


class ProcessingTimeSessionWindows(_SessionWindows):
    """Sessions in processing time.

    Args:
        gap_ms: Milliseconds, or a function of a record that returns them; see
            `with_gap` and `with_dynamic_gap`.

    Raises:
        InvalidArgumentError: If the gap is not above zero.

    Concept:
        Flink, ``ProcessingTimeSessionWindows``.
    """

    is_event_time = False

    def assign(self, value: Any, timestamp: int | None, now_ms: int) -> list[Any]:
        """Return the session of the record alone, before merging."""
        return self._session(value, now_ms)


class DynamicGap:
    """Reads a session's gap from a record, in milliseconds.

    Args:
        gap: A function of a record that returns a timedelta or a number of seconds.
    """

    __slots__ = ("_gap",)

    def __init__(self, gap: Callable[[Any], Duration]) -> None:
        self._gap = check_sync_function(gap, "gap", arity=1)

    def __call__(self, value: Any) -> int:
        """Return the gap after ``value``.

        Raises:
            BadResultError: If it is no duration, or not above zero.
        """
        gap = self._gap(value)
        try:
            length = duration_ms(gap, "gap")
        except UsageError as error:
            raise self._refusal(gap, value) from error
        if length <= 0:
            raise self._refusal(gap, value)
        return length

    def _refusal(self, gap: Any, value: Any) -> BadResultError:
        return BadResultError(
            describe(self._gap),
            f"{shortened(gap)} as the session gap after the record {shortened(value)}",
            "Return a timedelta or a number of seconds, more than 0.",
        )
