"""Flink's window scenarios, straight and with a restart at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aiomailbox.durations import seconds
from aiomailbox.errors import IllegalStateError
from aiomailbox.operators.aggregates.functions import count
from aiomailbox.records.events import MAX_TIMESTAMP, OutputTag
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    MergingWindowAssigner,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from aiomailbox.windowing.evictors import CountEvictor
from aiomailbox.windowing.functions import ProcessWindowFunction
from aiomailbox.windowing.time_window import MergedWindows, TimeWindow, merge_windows
from aiomailbox.windowing.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    ProcessingTimeoutTrigger,
    PurgingTrigger,
)

Make = Callable[..., Any]


def feed_two_keys(run: Any) -> None:
    run.feed("key2", 3999, 3000)
    run.feed("key1", 20, 0, 999)
    run.feed("key2", 1998, 1999, 1000)


def test_tumbling_windows_emit_when_the_watermark_passes_their_end(
    scenario: Make, trigger: Any
) -> None:
    """SEM-69."""
    run = scenario(TumblingEventTimeWindows(3000), trigger=trigger)
    feed_two_keys(run)
    assert run.watermark(999) == run.watermark(1999) == []
    run.restart()
    assert sorted(run.watermark(2999)) == [(("key1", 3), 2999), (("key2", 3), 2999)]
    assert run.watermark(3999) == run.watermark(4999) == []
    assert run.watermark(5999) == [(("key2", 2), 5999)]
    assert run.watermark(6999) == run.watermark(7999) == []
    assert run.is_empty()


def test_sliding_windows_emit_each_record_in_all_its_windows(scenario: Make) -> None:
    """SEM-70."""
    run = scenario(SlidingEventTimeWindows(3000, 1000))
    feed_two_keys(run)
    assert run.watermark(999) == [(("key1", 3), 999)]
    assert sorted(run.watermark(1999)) == [(("key1", 3), 1999), (("key2", 3), 1999)]
    assert sorted(run.watermark(2999)) == [(("key1", 3), 2999), (("key2", 3), 2999)]
    run.restart()
    assert run.watermark(3999) == [(("key2", 5), 3999)]
    assert run.watermark(4999) == [(("key2", 2), 4999)]
    assert run.watermark(5999) == [(("key2", 2), 5999)]
    assert run.watermark(6999) == run.watermark(7999) == []
    assert run.is_empty()


def sessions(make: Make, function: ProcessWindowFunction, **options: Any) -> Any:
    options.setdefault("assigner", EventTimeSessionWindows(3000))
    assigner = options.pop("assigner")
    return make(
        assigner,
        reduce=lambda first, second: (first[0], first[1] + second[1]),
        window_function=function,
        **options,
    )


def test_sessions_end_when_their_key_is_silent(
    scenario: Make, sum_with_window: Any
) -> None:
    """SEM-71."""
    run = sessions(scenario, sum_with_window)
    for number, stamp in ((1, 0), (2, 1000), (3, 2500)):
        run.feed("key2", stamp, number=number)
    run.feed("key1", 10, number=1)
    run.feed("key1", 1000, number=2)
    run.restart()
    run.feed("key1", 2500, number=3)
    for number, stamp in ((4, 5501), (5, 6000), (5, 6000), (6, 6050)):
        run.feed("key2", stamp, number=number)
    assert sorted(run.watermark(12000)) == [
        (("key1", 6, 10, 5500), 5499),
        (("key2", 6, 0, 5500), 5499),
        (("key2", 20, 5501, 9050), 9049),
    ]
    run.feed("key2", 15000, number=10)
    run.feed("key2", 15000, number=20)
    assert run.watermark(17999) == [(("key2", 30, 15000, 18000), 17999)]
    assert run.is_empty()


def test_a_merged_session_adds_up_what_its_trigger_has_counted(
    scenario: Make, sum_with_window: Any
) -> None:
    """SEM-72."""
    run = sessions(scenario, sum_with_window, trigger=PurgingTrigger(CountTrigger(4)))
    for number, stamp in ((1, 0), (2, 1000), (3, 2500)):
        assert run.feed("key2", stamp, number=number) == []
    assert run.feed("key2", 3500, number=4) == [(("key2", 10, 0, 6500), 6499)]
    for number, stamp in ((1, 10), (2, 1000), (3, 2500)):
        assert run.feed("key1", stamp, number=number) == []
    for number, stamp in ((1, 6000), (2, 6500), (3, 7000)):
        assert run.feed("key1", stamp, number=number) == []
    assert run.feed("key1", 4500, number=10) == [(("key1", 22, 10, 10000), 9999)]


class PointSessions(EventTimeSessionWindows):
    """Records with the number 33 have no length of their own."""

    def assign(self, value: Any, timestamp: int | None, now_ms: int) -> list[Any]:
        if value[1] == 33:
            return [TimeWindow(timestamp, timestamp)]  # type: ignore[arg-type]
        return super().assign(value, timestamp, now_ms)


def test_windows_without_length_merge_with_those_they_touch(
    scenario: Make, sum_with_window: Any
) -> None:
    """SEM-73."""
    run = sessions(scenario, sum_with_window, assigner=PointSessions(3000))
    run.feed("key2", 0, number=1)
    run.feed("key2", 1000, 2500, number=33)
    run.feed("key1", 10, number=1)
    run.feed("key1", 1000, number=2)
    run.feed("key1", 2500, number=33)
    assert sorted(run.watermark(12000)) == [
        (("key1", 36, 10, 4000), 3999),
        (("key2", 67, 0, 3000), 2999),
    ]


def test_a_continuous_trigger_is_planned_by_the_first_record(scenario: Make) -> None:
    """SEM-74."""
    run = scenario(
        GlobalWindows.create(), trigger=ContinuousEventTimeTrigger.of(seconds(3))
    )
    run.feed("key1", 0)
    run.feed("key2", 3000, 3999)
    run.feed("key1", 20, 999)
    run.feed("key2", 1998, 1999, 1000)
    assert run.watermark(1000) == run.watermark(2000) == []
    assert run.watermark(3000) == [(("key1", 3), MAX_TIMESTAMP)]
    assert run.watermark(4000) == run.watermark(5000) == []
    assert sorted(run.watermark(6000)) == [
        (("key1", 3), MAX_TIMESTAMP),
        (("key2", 5), MAX_TIMESTAMP),
    ]
    assert run.watermark(7000) == run.watermark(8000) == []


def test_a_purging_count_starts_afresh_each_time(scenario: Make) -> None:
    """SEM-75."""
    run = scenario(GlobalWindows.create(), trigger=PurgingTrigger(CountTrigger(4)))
    assert run.feed("key2", 1000, 1001) == run.feed("key1", 1, 2, 3) == []
    run.restart()
    assert run.feed("key2", 1002, 1003) == [(("key2", 4), MAX_TIMESTAMP)]
    assert run.feed("key1", 4) == [(("key1", 4), MAX_TIMESTAMP)]
    assert run.feed("key2", 9, 9, 9) == []
    assert run.feed("key2", 9) == [(("key2", 4), MAX_TIMESTAMP)]


def test_processing_time_windows_tumble_with_the_clock(scenario: Make) -> None:
    """SEM-76."""
    run = scenario(TumblingProcessingTimeWindows(3000))
    run.time(3)
    run.feed("key2", 2**40, 7000, 7000)
    run.feed("key1", 7000, 7000)
    assert sorted(run.time(5000)) == [(("key1", 2), 2999), (("key2", 3), 2999)]
    run.feed("key1", 7000, 7000, 7000)
    assert run.time(7000) == [(("key1", 3), 5999)]
    assert run.is_empty()


def test_processing_time_windows_slide_with_the_clock(scenario: Make) -> None:
    """SEM-77."""
    run = scenario(SlidingProcessingTimeWindows(3000, 1000))
    run.time(3)
    run.feed("key2", 0)
    assert run.time(1000) == [(("key2", 1), 999)]
    run.feed("key2", 0, 0)
    assert run.time(2000) == [(("key2", 3), 1999)]
    run.feed("key1", 0, 0)
    assert sorted(run.time(3000)) == [(("key1", 2), 2999), (("key2", 3), 2999)]
    run.feed("key1", 0, 0, 0)
    assert sorted(run.time(7000), key=lambda out: (out[1], out[0])) == [
        (("key1", 5), 3999),
        (("key2", 2), 3999),
        (("key1", 5), 4999),
        (("key1", 3), 5999),
    ]


def test_processing_time_sessions_end_with_the_clock(scenario: Make) -> None:
    """SEM-78."""
    run = scenario(ProcessingTimeSessionWindows(3000))
    run.time(3)
    run.feed("key2", 0)
    run.time(1000)
    run.feed("key2", 0)
    assert run.time(5000) == [(("key2", 2), 3999)]
    run.feed("key2", 0, 0)
    run.feed("key1", 0, 0, 0)
    assert sorted(run.time(10000)) == [(("key1", 3), 7999), (("key2", 2), 7999)]
    assert run.is_empty()


def test_a_late_record_within_the_lateness_fires_a_purged_window_again(
    scenario: Make,
) -> None:
    """SEM-79."""
    run = scenario(
        TumblingEventTimeWindows(2000),
        trigger=PurgingTrigger(EventTimeTrigger()),
        allowed_lateness=seconds(0.5),
    )
    run.feed("k", 500)
    run.watermark(1500)
    run.feed("k", 1300)
    assert run.watermark(2300) == [(("k", 2), 1999)]
    assert run.feed("k", 1997) == [(("k", 1), 1999)]
    assert run.watermark(6000) == []
    assert run.feed("k", 1998) == []
    assert run.dropped == 1
    assert run.is_empty()


def test_a_late_record_within_the_lateness_is_added_and_fires_at_once(
    scenario: Make, trigger: Any
) -> None:
    """SEM-80."""
    run = scenario(
        TumblingEventTimeWindows(2000),
        trigger=trigger,
        allowed_lateness=seconds(0.5),
        late_tag=OutputTag("late"),
    )
    run.feed("k", 500)
    run.watermark(1500)
    run.feed("k", 1300)
    assert run.watermark(2300) == [(("k", 2), 1999)]
    assert run.feed("k", 1997) == [(("k", 3), 1999)]
    assert run.watermark(2498) == []
    assert run.feed("k", 1997) == [(("k", 4), 1999)]
    assert run.watermark(2499) == []
    assert run.is_empty()
    assert run.feed("k", 1998, 1999) == []
    assert run.late_records() == [(("k", 1), 1998), (("k", 1), 1999)]
    assert run.dropped == 0


def test_the_end_of_time_is_no_cleanup_time_that_has_passed(
    scenario: Make, trigger: Any
) -> None:
    """SEM-81."""
    run = scenario(
        TumblingEventTimeWindows(1000), trigger=trigger, allowed_lateness=seconds(2)
    )
    stamp = MAX_TIMESTAMP - 1750
    ((window),) = TumblingEventTimeWindows(1000).assign(None, stamp, 0)
    assert run.watermark(MAX_TIMESTAMP - 1500) == []
    expected = [(("k", 1), window.max_timestamp)]
    if window.max_timestamp <= MAX_TIMESTAMP - 1500:
        assert run.feed("k", stamp) == expected
        assert run.watermark(MAX_TIMESTAMP) == []
    else:
        assert run.feed("k", stamp) == []
        assert run.watermark(window.max_timestamp) == expected


def test_without_lateness_records_of_a_fired_window_are_dropped(
    scenario: Make, trigger: Any
) -> None:
    """SEM-82."""
    run = scenario(TumblingEventTimeWindows(2000), trigger=trigger)
    run.feed("k", 1000)
    run.watermark(1985)
    run.feed("k", 1980)
    assert run.watermark(1999) == [(("k", 2), 1999)]
    assert run.feed("k", 1998) == []
    assert run.dropped == 1
    run.feed("k", 2001)
    assert run.watermark(2999) == []
    assert run.watermark(3999) == [(("k", 1), 3999)]


def test_a_record_is_dropped_only_when_all_its_sliding_windows_are_over(
    scenario: Make,
) -> None:
    """SEM-83."""
    run = scenario(SlidingEventTimeWindows(3000, 1000))
    run.feed("key2", 1000)
    assert run.watermark(1999) == [(("key2", 1), 1999)]
    run.feed("key2", 2000)
    assert run.watermark(3000) == [(("key2", 2), 2999)]
    run.feed("key1", 3001)
    run.feed("key2", 2400, 2400)
    run.feed("key1", 3001)
    run.feed("key2", 3900)
    assert sorted(run.watermark(6000), key=lambda out: (out[1], out[0])) == [
        (("key1", 2), 3999),
        (("key2", 5), 3999),
        (("key1", 2), 4999),
        (("key2", 4), 4999),
        (("key1", 2), 5999),
        (("key2", 1), 5999),
    ]
    assert run.dropped == 0
    run.feed("key1", 3001)
    assert run.dropped == 1


def feed_late_sessions(run: Any) -> None:
    run.feed("k", 1000)
    run.watermark(1999)
    run.feed("k", 2000)
    assert run.watermark(4998) == []
    run.feed("k", 4500)
    run.feed("k", 8500)
    assert run.watermark(7400) == []
    run.feed("k", 7000)
    assert run.watermark(11501) == [(("k", 5, 1000, 11500), 11499)]
    run.feed("k", 11600)
    assert run.watermark(14600) == [(("k", 1, 11600, 14600), 14599)]


@pytest.mark.parametrize("purging", [False, True])
def test_without_lateness_a_late_record_does_not_revive_a_session(
    scenario: Make, sum_with_window: Any, purging: bool
) -> None:
    """SEM-84."""
    trigger = PurgingTrigger(EventTimeTrigger()) if purging else None
    run = sessions(scenario, sum_with_window, trigger=trigger)
    feed_late_sessions(run)
    assert run.feed("k", 10000, 10100) == []
    assert run.dropped == 2
    run.feed("k", 14500)
    assert run.watermark(20000) == [(("k", 1, 14500, 17500), 17499)]
    assert run.is_empty()


@pytest.mark.parametrize(
    ("lateness", "purging", "first", "second"),
    [
        (0.01, False, ("k", 2, 10000, 14600), ("k", 3, 10000, 17500)),
        (0.01, True, ("k", 1, 10000, 14600), ("k", 1, 10000, 17500)),
        (10, False, ("k", 7, 1000, 14600), ("k", 8, 1000, 17500)),
        (10, True, ("k", 1, 1000, 14600), ("k", 1, 1000, 17500)),
    ],
)
def test_a_late_record_merges_with_the_sessions_that_are_still_kept(
    scenario: Make,
    sum_with_window: Any,
    lateness: float,
    purging: bool,
    first: Any,
    second: Any,
) -> None:
    """SEM-85, SEM-86, SEM-87, SEM-88."""
    trigger = PurgingTrigger(EventTimeTrigger()) if purging else None
    run = sessions(
        scenario, sum_with_window, trigger=trigger, allowed_lateness=seconds(lateness)
    )
    feed_late_sessions(run)
    assert run.feed("k", 10000) == [(first, 14599)]
    assert run.feed("k", 14500) == []
    assert run.watermark(20000) == [(second, 17499)]
    assert run.watermark(40000) == []
    assert run.is_empty()


@pytest.mark.parametrize("as_list", [False, True])
def test_the_cleanup_emits_nothing_and_leaves_nothing(
    scenario: Make, trigger: Any, as_list: bool
) -> None:
    """SEM-89."""
    options: dict[str, Any] = {}
    if as_list:
        options["window_function"] = lambda key, window, elements: [
            (key, len(elements))
        ]
    run = scenario(
        TumblingEventTimeWindows(2000),
        trigger=trigger,
        allowed_lateness=seconds(0.001),
        **options,
    )
    run.feed("k", 1000)
    assert run.watermark(1599) == []
    assert run.watermark(1999) == [(("k", 1), 1999)]
    assert not run.is_empty()
    assert run.watermark(2000) == []
    assert run.is_empty()
    assert run.watermark(5000) == []


TRIGGERS: list[Callable[[], Any]] = [
    EventTimeTrigger,
    lambda: CountTrigger(9),
    lambda: PurgingTrigger(CountTrigger(9)),
    lambda: ProcessingTimeoutTrigger.of(CountTrigger(9), seconds(9)),
    lambda: DeltaTrigger.of(5, lambda one, other: other[1] - one[1]),
    lambda: ContinuousEventTimeTrigger.of(seconds(9)),
    lambda: ContinuousProcessingTimeTrigger.of(seconds(9)),
]


@pytest.mark.parametrize(
    ("new_trigger", "is_session"),
    [(new, is_session) for new in TRIGGERS for is_session in (False, new().can_merge)],
)
@pytest.mark.parametrize("evictor", [None, CountEvictor.of(9)])
def test_a_window_that_is_over_leaves_nothing_whatever_its_trigger_has_kept(
    scenario: Make, new_trigger: Callable[[], Any], evictor: Any, is_session: bool
) -> None:
    assigner: Any = TumblingEventTimeWindows(2000)
    if is_session:
        assigner = EventTimeSessionWindows(600)
    options = {} if evictor is None else {"evictor": evictor}
    run = scenario(assigner, trigger=new_trigger(), **options)
    # Two sessions, and one of both.
    for stamp in (100, 1100, 600):
        run.feed("k", stamp)
    assert not run.is_empty()
    run.watermark(1999)
    # A session that became part of another may have planned to fire: that is over, too.
    assert run.time(10_000) == []
    assert run.is_empty()


def test_the_cleanup_of_a_purged_window_does_not_call_the_function(
    scenario: Make,
) -> None:
    """SEM-90."""
    calls: list[Any] = []

    def record(key: Any, window: Any, elements: list[Any]) -> list[Any]:
        calls.append(elements)
        return []

    run = scenario(
        TumblingEventTimeWindows(2000),
        trigger=PurgingTrigger(EventTimeTrigger()),
        allowed_lateness=seconds(0.1),
        window_function=record,
    )
    run.feed("k", 1000)
    run.watermark(1999)
    assert len(calls) == 1
    run.watermark(2099)
    assert len(calls) == 1
    assert run.is_empty()


class Shrinking(MergingWindowAssigner):
    """Merges into a window that has been over for long."""

    is_event_time = True

    def assign(self, value: Any, timestamp: int | None, now_ms: int) -> list[Any]:
        assert timestamp is not None
        return [TimeWindow(timestamp, timestamp + 100)]

    def merge(self, windows: Any) -> list[MergedWindows]:
        return [
            MergedWindows(TimeWindow(0, 1), group.merged)
            for group in merge_windows(windows)
        ]


def test_a_merge_into_a_window_that_is_over_is_an_error(scenario: Make) -> None:
    """SEM-91."""
    run = scenario(Shrinking())
    run.watermark(50)
    run.feed("k", 60)
    with pytest.raises(IllegalStateError, match="must not become shorter") as caught:
        run.feed("k", 70)
    assert caught.value.__notes__ == ["in operator 'operator'"]


def test_a_record_behind_the_watermark_begins_a_session_that_is_not_over(
    scenario: Make,
) -> None:
    """SEM-92."""
    run = scenario(EventTimeSessionWindows(3000))
    run.watermark(1000)
    assert run.feed("k", 500) == []
    assert run.watermark(3498) == []
    assert run.watermark(3499) == [(("k", 1), 3499)]


def test_what_an_evictor_left_out_never_comes_back(scenario: Make) -> None:
    """SEM-93."""
    run = scenario(
        GlobalWindows.create(),
        trigger=CountTrigger.of(1),
        evictor=CountEvictor.of(2),
        window_function=lambda key, window, elements: [[n for _, n in elements]],
    )
    assert run.feed("k", 0, number=1) == [([1], MAX_TIMESTAMP)]
    assert run.feed("k", 0, number=2) == [([1, 2], MAX_TIMESTAMP)]
    assert run.feed("k", 0, number=3) == [([2, 3], MAX_TIMESTAMP)]


def test_records_in_gaps_are_neither_emitted_nor_late_nor_counted(
    scenario: Make,
) -> None:
    """SEM-64, the operator's part."""
    run = scenario(SlidingEventTimeWindows(3, 5))
    run.watermark(-1)
    assert run.feed("k", 4) == []
    assert run.dropped == 0
    assert run.is_empty()
    run.watermark(4)
    run.feed("k", 4)
    assert run.dropped == 1


def test_the_end_of_stream_trigger_fires_when_time_ends(scenario: Make) -> None:
    run = scenario(GlobalWindows.create_with_end_of_stream_trigger())
    run.feed("k", 1, 2, 3)
    assert run.watermark(10**12) == []
    assert run.watermark(MAX_TIMESTAMP) == [(("k", 3), MAX_TIMESTAMP)]


def test_a_record_in_a_gap_counts_as_late_only_after_the_lateness(
    scenario: Make, trigger: Any
) -> None:
    run = scenario(
        SlidingEventTimeWindows(3, 5), trigger=trigger, allowed_lateness=seconds(1)
    )
    run.watermark(500)
    run.feed("k", 4)
    assert run.dropped == 0
    run.watermark(1004)
    run.feed("k", 4)
    assert run.dropped == 1


def test_a_merged_session_has_one_timer(scenario: Make, general_trigger: Any) -> None:
    run = scenario(
        EventTimeSessionWindows(10),
        allowed_lateness=seconds(1),
        trigger=general_trigger,
    )
    run.feed("k", 1, 5, 9, 13)
    state = run.harness.snapshot()
    (timers,) = state.timers.values()
    (rows,) = timers.event.values()
    assert sorted(timestamp for timestamp, _, _ in rows) == [22, 1022]


@pytest.mark.parametrize(("before", "after"), [(5, 0), (5, 1), (0, 5), (1, 5)])
@pytest.mark.parametrize(
    ("windows", "folding"),
    [
        (TumblingEventTimeWindows(10), {}),
        (SlidingEventTimeWindows(10, 5), {}),
        (SlidingEventTimeWindows(10, 5), {"aggregate": count()}),
        (EventTimeSessionWindows(10), {}),
    ],
    ids=["tumbling", "sliding", "panes", "sessions"],
)
@pytest.mark.parametrize("has_fired", [True, False])
def test_windows_are_forgotten_also_if_lateness_changed_with_a_restart(
    scenario: Any,
    trigger: Any,
    windows: Any,
    folding: dict[str, Any],
    before: int,
    after: int,
    has_fired: bool,
) -> None:
    drive = scenario(
        windows, trigger=trigger, allowed_lateness=seconds(before), **folding
    )
    drive.feed("a", 1)
    if has_fired:
        assert drive.watermark(9 + 10)
    changed = scenario(
        windows, trigger=trigger, allowed_lateness=seconds(after), **folding
    )
    changed.harness.close()
    changed.harness = changed._open(drive.harness.snapshot())
    changed.watermark(1_000_000)
    assert changed.is_empty()
