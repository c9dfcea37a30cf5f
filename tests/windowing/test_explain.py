"""What would happen to a record."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from aiomailbox.durations import seconds
from aiomailbox.errors import TimestampError
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowStagger,
)
from aiomailbox.windowing.spec import explain_window

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def test_a_record_is_explained_with_datetimes() -> None:
    (found,) = explain_window(
        TumblingEventTimeWindows.of(timedelta(days=1)), NOON, timedelta(hours=1)
    )
    midnight = NOON - timedelta(hours=12)
    assert found.start == midnight
    assert found.end == midnight + timedelta(days=1)
    assert found.fires_at == found.end - MILLISECOND
    assert found.takes_late_until == found.fires_at + timedelta(hours=1)


def test_all_windows_of_a_record_are_explained() -> None:
    found = explain_window(SlidingEventTimeWindows.of(seconds(10), seconds(5)), 12_000)
    assert [tuple(each.window) for each in found] == [(10000, 20000), (5000, 15000)]


def test_a_dynamic_gap_needs_the_record() -> None:
    assigner = EventTimeSessionWindows.with_dynamic_gap(seconds)
    (found,) = explain_window(assigner, 1000, value=2)
    assert tuple(found.window) == (1000, 3000)


def test_windows_in_processing_time_take_nothing_late() -> None:
    (found,) = explain_window(
        TumblingProcessingTimeWindows.of(seconds(1)), 1500, seconds(10)
    )
    assert found.takes_late_until == found.fires_at


def test_the_global_window_has_no_datetimes() -> None:
    (found,) = explain_window(GlobalWindows.create(), 0)
    assert found[1:] == (None, None, None, None)


def test_a_naive_datetime_is_refused() -> None:
    with pytest.raises(TimestampError):
        explain_window(TumblingEventTimeWindows.of(seconds(1)), datetime(2013, 1, 1))


@pytest.mark.parametrize("stagger", WindowStagger)
def test_explaining_a_record_leaves_the_windows_as_they_are(
    stagger: WindowStagger,
) -> None:
    windows = TumblingEventTimeWindows.of(seconds(5), stagger=stagger)
    explain_window(windows, 1_150)
    assert (windows.stagger, windows.offset_ms) == (stagger, 0)
