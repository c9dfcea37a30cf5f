"""Says what would happen to a record, without a job."""

from __future__ import annotations

from copy import copy
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from aiomailbox.durations import duration_ms, event_time_ms
from aiomailbox.records.elements import MAX_TIMESTAMP
from aiomailbox.windowing.assigners import WindowAssigner
from aiomailbox.windowing.time_window import Window, window_datetime


class WindowExplanation(NamedTuple):
    """A window of a record, and its times; None where a datetime cannot say it.

    Attributes:
        window: The window, in milliseconds.
        start: When it begins.
        end: When it ends; this moment belongs to the next one.
        fires_at: It fires when the watermark reaches this (by default).
        takes_late_until: From when the watermark has reached this, records that
            belong to it are dropped or go to the side output of late ones.
    """

    window: Window
    start: datetime | None
    end: datetime | None
    fires_at: datetime | None
    takes_late_until: datetime | None


def explain_window(
    assigner: WindowAssigner,
    timestamp: datetime | int,
    allowed_lateness: timedelta | float = 0,
    *,
    value: Any = None,
) -> list[WindowExplanation]:
    """Return the windows that a record would be in, and their times.

    A session may still grow when other records come.

    Args:
        assigner: The windows.
        timestamp: The record's event time (for windows in processing time, when it
            arrives): an aware datetime or milliseconds since the epoch.
        allowed_lateness: As for the window: a timedelta or a number of seconds.
        value: The record, for sessions whose gap depends on it.

    Raises:
        TimestampError: If ``timestamp`` is neither.

    Example:
        >>> from aiomailbox.windowing.assigners import TumblingEventTimeWindows
        >>> (found,) = explain_window(TumblingEventTimeWindows.of(60), 90_000, 5)
        >>> found.start.time().isoformat(), found.takes_late_until.time().isoformat()
        ('00:01:00', '00:02:04.999000')
    """
    now = event_time_ms(timestamp)
    lateness = duration_ms(allowed_lateness, "allowed_lateness")
    if not assigner.is_event_time:
        lateness = 0
    found: list[WindowExplanation] = []
    # A copy: the first record of a subtask may decide where its windows begin.
    for window in copy(assigner).assign(value, now, now):
        over = min(window.max_timestamp + lateness, MAX_TIMESTAMP)
        found.append(
            WindowExplanation(
                window,
                window_datetime(window.start),
                window_datetime(window.end),
                window_datetime(window.max_timestamp),
                window_datetime(over),
            )
        )
    return found
