"""Which windows records belong to, and what assigners refuse."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.durations import millis, seconds
from aiomailbox.errors import (
    BadResultError,
    InvalidArgumentError,
    TimestampError,
    WrongTypeError,
)
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
    WindowStagger,
)
from aiomailbox.windowing.time_window import GLOBAL_WINDOW, TimeWindow
from aiomailbox.windowing.triggers import (
    EndOfStreamTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
)


def windows(assigner: WindowAssigner, timestamp: int, now: int = 0) -> list[Any]:
    return [tuple(window) for window in assigner.assign(None, timestamp, now)]


@pytest.mark.parametrize(
    ("offset", "timestamp", "start"),
    [
        (0, 0, 0),
        (0, 4999, 0),
        (0, 5000, 5000),
        (100, 100, 100),
        (100, 5099, 100),
        (100, 5100, 5100),
        (-100, 0, -100),
        (-100, 4899, -100),
        (-100, 4900, 4900),
        (1000, 5999, 1000),
        (1000, 6000, 6000),
        (0, -1, -5000),
        (0, -5000, -5000),
        (0, -5001, -10000),
        (100, -1, -4900),
        (-100, -100, -100),
        (-100, -101, -5100),
    ],
)
def test_tumbling_windows_begin_at_multiples_of_the_size_plus_offset(
    offset: int, timestamp: int, start: int
) -> None:
    """SEM-52, SEM-53, SEM-54, SEM-55, SEM-57."""
    assigner = TumblingEventTimeWindows(5000, offset)
    assert windows(assigner, timestamp) == [(start, start + 5000)]


def test_a_natural_stagger_begins_windows_when_the_first_record_arrives() -> None:
    """SEM-56."""
    shared = TumblingEventTimeWindows(5000, stagger=WindowStagger.NATURAL)
    assigner = shared.for_subtask(random.Random(1))
    assert windows(assigner, 150, now=150) == [(150, 5150)]
    assert windows(assigner, 5099, now=900) == [(150, 5150)]
    assert windows(assigner, 5300, now=900) == [(5150, 10150)]
    assert shared.offset_ms == 0, "other subtasks have a beginning of their own"


def test_a_random_stagger_shifts_all_windows_of_a_subtask_alike() -> None:
    shared = TumblingEventTimeWindows(5000, stagger=WindowStagger.RANDOM)
    assigner = shared.for_subtask(random.Random(1))
    ((start, end),) = windows(assigner, 7000)
    assert end - start == 5000
    assert windows(assigner, start) == windows(assigner, end - 1) == [(start, end)]


@pytest.mark.parametrize(
    ("size", "offset"), [(-1, 0), (10, 20), (10, -11), (10, 10), (0, 0)]
)
@pytest.mark.parametrize(
    "kind", [TumblingEventTimeWindows, TumblingProcessingTimeWindows]
)
def test_tumbling_windows_refuse_an_offset_that_reaches_the_size(
    kind: Any, size: int, offset: int
) -> None:
    """SEM-58."""
    with pytest.raises(InvalidArgumentError, match=r"abs\(offset\) < size"):
        kind.of(seconds(size), seconds(offset))


@pytest.mark.parametrize(
    ("offset", "timestamp", "last"),
    [
        (0, 0, 0),
        (0, 4999, 4000),
        (0, 5000, 5000),
        (100, 100, 100),
        (100, 5099, 4100),
        (100, 5100, 5100),
        (-100, 0, -100),
        (-100, 4900, 4900),
        (500, 100, -500),
        (500, 5499, 4500),
        (500, 5100, 4500),
    ],
)
def test_sliding_windows_begin_every_slide_and_come_latest_first(
    offset: int, timestamp: int, last: int
) -> None:
    """SEM-59, SEM-60, SEM-61, SEM-62."""
    assigner = SlidingEventTimeWindows(5000, 1000, offset)
    starts = [last - 1000 * back for back in range(5)]
    assert windows(assigner, timestamp) == [(start, start + 5000) for start in starts]


@pytest.mark.parametrize(
    "arguments", [(-2, 1), (2, -1), (20, 10, -11), (20, 10, 11), (0, 1)]
)
@pytest.mark.parametrize(
    "kind", [SlidingEventTimeWindows, SlidingProcessingTimeWindows]
)
def test_sliding_windows_refuse_an_offset_that_reaches_the_slide(
    kind: Any, arguments: tuple[int, ...]
) -> None:
    """SEM-63."""
    with pytest.raises(
        InvalidArgumentError, match=r"abs\(offset\) < slide and size > 0"
    ):
        kind.of(*map(seconds, arguments))


def test_records_in_the_gaps_between_sliding_windows_have_no_window() -> None:
    """SEM-64, the assigner's part."""
    assigner = SlidingEventTimeWindows(3, 5)
    assert windows(assigner, 7) == [(5, 8)]
    assert windows(assigner, 4) == []


def test_a_session_begins_with_its_record_and_ends_after_the_gap() -> None:
    """SEM-65."""
    assigner = EventTimeSessionWindows.with_gap(seconds(5))
    for timestamp in (0, 4999, 5000):
        assert windows(assigner, timestamp) == [(timestamp, timestamp + 5000)]


@pytest.mark.parametrize("gap", [0, seconds(-1)])
@pytest.mark.parametrize(
    "kind", [EventTimeSessionWindows, ProcessingTimeSessionWindows]
)
def test_a_session_refuses_a_gap_that_is_not_above_zero(kind: Any, gap: Any) -> None:
    """SEM-68."""
    with pytest.raises(InvalidArgumentError, match="is not positive"):
        kind.with_gap(gap)


def test_a_dynamic_gap_is_read_from_the_record() -> None:
    assigner = EventTimeSessionWindows.with_dynamic_gap(lambda value: value)
    assert assigner.assign(millis(7), 10, 0) == [TimeWindow(10, 17)]
    with pytest.raises(BadResultError, match=r"returned 2 .* a timedelta"):
        assigner.assign(2, 10, 0)
    with pytest.raises(BadResultError, match=r"returned 0 .* more than 0"):
        assigner.assign(0, 10, 0)


def test_a_dynamic_gap_is_not_async() -> None:
    async def gap(value: Any) -> float:
        return 1.0

    with pytest.raises(WrongTypeError, match="gap"):
        EventTimeSessionWindows.with_dynamic_gap(gap)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "assigner",
    [
        TumblingEventTimeWindows(5),
        SlidingEventTimeWindows(5, 5),
        EventTimeSessionWindows(5),
    ],
)
def test_event_time_windows_refuse_a_record_without_event_time(
    assigner: WindowAssigner,
) -> None:
    with pytest.raises(TimestampError, match="assign_timestamps_and_watermarks"):
        assigner.assign("record", None, 0)


@pytest.mark.parametrize(
    "assigner",
    [
        TumblingProcessingTimeWindows(5),
        SlidingProcessingTimeWindows(5, 5),
        ProcessingTimeSessionWindows(5),
    ],
)
def test_processing_time_windows_look_only_at_the_present(
    assigner: WindowAssigner,
) -> None:
    assert assigner.assign("record", None, 10) == [TimeWindow(10, 15)]
    assert assigner.assign("record", 99, 10) == [TimeWindow(10, 15)]
    assert assigner.needs_now


def test_the_global_window_holds_everything() -> None:
    assert GlobalWindows.create().assign("record", None, 0) == [GLOBAL_WINDOW]


def test_assigners_have_the_trigger_of_their_time() -> None:
    assert type(TumblingEventTimeWindows(1).default_trigger) is EventTimeTrigger
    assert (
        type(TumblingProcessingTimeWindows(1).default_trigger) is ProcessingTimeTrigger
    )
    assert type(GlobalWindows.create().default_trigger) is NeverTrigger
    end = GlobalWindows.create_with_end_of_stream_trigger()
    assert type(end.default_trigger) is EndOfStreamTrigger


def test_a_number_without_a_unit_is_asked_for_it() -> None:
    assert TumblingEventTimeWindows.of(timedelta(minutes=1)).size_ms == 60_000
    assert TumblingEventTimeWindows.of(seconds(1.5), seconds(-0.5)).offset_ms == -500
    for number in (3_600_000, 5, 0.5, -1):
        with pytest.raises(InvalidArgumentError, match="seconds or milliseconds meant"):
            TumblingEventTimeWindows.of(number)  # type: ignore[arg-type]
    assert TumblingEventTimeWindows.of(seconds(1), 0).offset_ms == 0  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError, match="size"):
        TumblingEventTimeWindows.of("1 min")  # type: ignore[arg-type]


@given(
    size=st.integers(1, 10**6),
    data=st.data(),
    timestamp=st.integers(-(10**12), 10**12),
)
def test_a_tumbling_window_holds_its_record_and_is_aligned(
    size: int, data: st.DataObject, timestamp: int
) -> None:
    offset = data.draw(st.integers(-size + 1, size - 1))
    ((start, end),) = windows(TumblingEventTimeWindows(size, offset), timestamp)
    assert start <= timestamp < end == start + size
    assert (start - offset) % size == 0


@given(
    size=st.integers(1, 50), slide=st.integers(1, 50), timestamp=st.integers(-500, 500)
)
def test_sliding_windows_are_all_the_aligned_ones_that_hold_the_record(
    size: int, slide: int, timestamp: int
) -> None:
    found = windows(SlidingEventTimeWindows(size, slide), timestamp)
    expected = [
        (start, start + size)
        for start in range(timestamp, timestamp - size, -1)
        if start % slide == 0
    ]
    assert found == expected
