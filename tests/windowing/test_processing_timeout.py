"""A window that does not fill up fires when its timeout has passed.

The cases are those of Flink's ``ProcessingTimeoutTriggerTest``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.durations import seconds
from aiomailbox.errors import InvalidArgumentError, UsageError, WrongTypeError
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    TumblingEventTimeWindows,
)
from aiomailbox.windowing.triggers import (
    CountTrigger,
    EventTimeTrigger,
    ProcessingTimeoutTrigger,
    PurgingTrigger,
)

Make = Callable[..., Any]
GLOBAL = GlobalWindows.create()
COUNT = am.count()


def three_or(timeout_s: float, **settings: bool) -> ProcessingTimeoutTrigger:
    full = CountTrigger.of(3)
    return ProcessingTimeoutTrigger.of(full, seconds(timeout_s), **settings)


def values(found: list[Any]) -> list[Any]:
    return [value for value, _ in found]


def test_it_fires_with_the_inner_trigger_or_after_the_timeout(scenario: Make) -> None:
    windows = scenario(GLOBAL, aggregate=COUNT, trigger=three_or(5))
    assert values(windows.feed("a", 1, 2)) == []
    assert values(windows.time(5_001)) == [2]
    # The inner count began anew at the timeout; the contents stay.
    assert values(windows.feed("a", 3, 4)) == []
    assert values(windows.feed("a", 5)) == [5]
    # It has fired: no timeout is left.
    assert values(windows.time(20_000)) == []


def test_the_first_record_after_a_firing_begins_the_timeout(scenario: Make) -> None:
    windows = scenario(GLOBAL, aggregate=COUNT, trigger=three_or(5))
    windows.feed("a", 1)
    windows.time(4_000)
    windows.feed("a", 2)
    assert values(windows.time(5_001)) == [2]
    windows.time(7_000)
    windows.feed("a", 3)
    assert values(windows.time(11_999)) == []
    assert values(windows.time(12_001)) == [3]


def test_each_record_begins_the_timeout_anew_if_it_is_said(scenario: Make) -> None:
    trigger = three_or(5, reset_timer_on_new_record=True)
    windows = scenario(GLOBAL, aggregate=COUNT, trigger=trigger)
    windows.feed("a", 1)
    windows.time(4_000)
    windows.feed("a", 2)
    assert values(windows.time(8_999)) == []
    assert values(windows.time(9_001)) == [2]


def test_the_inner_trigger_goes_on_counting_if_the_timeout_does_not_clear_it(
    scenario: Make,
) -> None:
    trigger = three_or(5, clear_on_timeout=False)
    windows = scenario(GLOBAL, aggregate=COUNT, trigger=trigger)
    windows.feed("a", 1, 2)
    assert values(windows.time(5_001)) == [2]
    assert values(windows.feed("a", 3)) == [3]


def test_around_it_a_purging_trigger_empties_the_window_at_the_timeout(
    scenario: Make,
) -> None:
    trigger = PurgingTrigger.of(three_or(5))
    windows = scenario(GLOBAL, aggregate=COUNT, trigger=trigger)
    windows.feed("a", 1, 2)
    windows.feed("b", 1)
    assert sorted(values(windows.time(5_001))) == [1, 2]
    assert values(windows.feed("a", 3, 4, 5)) == [3]
    assert windows.is_empty()


def test_windows_of_event_time_fire_at_their_end_too(scenario: Make) -> None:
    trigger = ProcessingTimeoutTrigger.of(EventTimeTrigger(), seconds(5))
    tumbling = TumblingEventTimeWindows.of(seconds(10))
    windows = scenario(tumbling, aggregate=COUNT, trigger=trigger)
    windows.feed("a", 1)
    assert values(windows.time(5_001)) == [1]
    windows.feed("a", 2)
    assert values(windows.watermark(9_999)) == [2]
    assert windows.is_empty()


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(WrongTypeError, match="inner"):
        ProcessingTimeoutTrigger.of(3, seconds(1))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="timeout"):
        ProcessingTimeoutTrigger.of(CountTrigger.of(3), 5)  # type: ignore[arg-type]
    keyed = am.StreamExecutionEnvironment().from_collection([1]).key_by(int)
    sessions = keyed.window(EventTimeSessionWindows.with_gap(seconds(1)))
    with pytest.raises(InvalidArgumentError, match="has no on_merge"):
        sessions.trigger(three_or(5)).aggregate(am.count())


def test_inside_spark_it_is_refused_for_there_is_no_live_clock() -> None:
    from aiomailbox.connectors.spark.inside.applied import _check_operator

    windows = (
        am.StreamExecutionEnvironment()
        .from_collection([1])
        .key_by(int)
        .window(am.GlobalWindows.create())
        .trigger(PurgingTrigger.of(three_or(5)))
        .aggregate(am.count())
    )
    item = windows._origins[0].transformation
    with pytest.raises(UsageError, match=r"waits for wall-clock time .Purging"):
        _check_operator(item, item.factory())
