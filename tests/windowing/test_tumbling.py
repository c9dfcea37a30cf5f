"""Tumbling windows, the fast way and the general one."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.durations import seconds
from aiomailbox.errors import TimestampError, UserFunctionError
from aiomailbox.operators.aggregates.functions import (
    aggregates,
    collect_list,
    count,
    sum_,
)
from aiomailbox.operators.core.user_code import skip
from aiomailbox.records.events import MAX_TIMESTAMP, MIN_TIMESTAMP
from aiomailbox.testing import OneInputHarness, redistributed
from aiomailbox.windowing.assigners import TumblingEventTimeWindows, WindowAssigner
from aiomailbox.windowing.build import window_operator


def operator_for(assigner: WindowAssigner, **options: Any) -> Any:
    return window_operator(lambda record: record[0], assigner, **options)


@given(
    size=st.integers(1, 20),
    records=st.lists(st.tuples(st.sampled_from("abc"), st.integers(-50, 50))),
    cut=st.integers(0, 20),
)
def test_when_nothing_is_late_windows_are_a_group_by(
    size: int, records: list[tuple[str, int]], cut: int
) -> None:
    batch: dict[tuple[str, int], int] = defaultdict(int)
    for key, stamp in records:
        batch[key, stamp // size * size] += stamp

    def operator() -> Any:
        return operator_for(
            TumblingEventTimeWindows(size),
            aggregate=aggregates(total=sum_(lambda record: record[1])),
        )

    first = OneInputHarness(operator(), keyed=True)
    first.open()
    first.process_run(records[:cut], [stamp for _, stamp in records[:cut]])
    second = OneInputHarness(operator(), keyed=True)
    second.restore(first.snapshot())
    second.open()
    second.process_run(records[cut:], [stamp for _, stamp in records[cut:]])
    second.process_watermark(MAX_TIMESTAMP)
    found = {
        (row.key, round(row.window_start.timestamp() * 1000)): row.total
        for row in second.values
    }
    assert found == batch
    assert len(second.values) == len(batch)


def test_named_results_tell_key_and_window_in_utc(trigger: Any) -> None:
    operator = operator_for(
        TumblingEventTimeWindows.of(seconds(60)),
        aggregate=aggregates(n=count()),
        trigger=trigger,
    )
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([("k", 1), ("k", 2)], [60_000, 61_000])
        harness.process_watermark(119_999)
        (row,) = harness.values
    assert row._fields == ("key", "window_start", "window_end", "n")
    assert (row.key, row.n) == ("k", 2)
    assert row.window_start.isoformat() == "1970-01-01T00:01:00+00:00"
    assert row.window_end.isoformat() == "1970-01-01T00:02:00+00:00"


def test_without_a_key_results_name_none(trigger: Any) -> None:
    operator = window_operator(
        None,
        TumblingEventTimeWindows.of(seconds(60)),
        aggregate=aggregates(n=count()),
        trigger=trigger,
    )
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run(["a", "b"], [0, 1])
        harness.process_watermark(MAX_TIMESTAMP)
        (row,) = harness.values
    assert row._fields == ("window_start", "window_end", "n")
    assert row.n == 2


def test_all_results_of_a_watermark_are_one_run(trigger: Any) -> None:
    operator = operator_for(
        TumblingEventTimeWindows(10), aggregate=count(), trigger=trigger
    )
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([(key, 1) for key in "abcd"], [1, 11, 21, 22])
        harness.process_watermark(29)
        (run,) = harness.recorded.runs
    assert run.timestamps == [9, 19, 29, 29]


@pytest.mark.parametrize("stamps", [None, [5, MIN_TIMESTAMP]])
def test_a_record_without_event_time_is_an_error_that_names_the_operator(
    trigger: Any, stamps: list[int] | None
) -> None:
    operator = operator_for(
        TumblingEventTimeWindows(10), aggregate=count(), trigger=trigger
    )
    with OneInputHarness(operator, keyed=True, operator_name="per day") as harness:
        with pytest.raises(TimestampError) as caught:
            harness.process_run([("a", 1), ("b", 2)], stamps)
        assert caught.value.__notes__ == ["in operator 'per day'"]


def test_a_record_that_fails_leaves_no_trace_when_it_is_skipped(trigger: Any) -> None:
    operator = operator_for(
        TumblingEventTimeWindows(10),
        aggregate=sum_(lambda record: 1 // record[1]),
        trigger=trigger,
        on_error=skip,
    )
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([("a", 1), ("a", 0), ("b", 0), ("a", 1)], [1, 2, 3, 4])
        harness.process_watermark(9)
        assert harness.values == [2]
        assert harness.context.metrics.counter("skipped").value == 2


def test_a_record_that_fails_fails_the_operator_and_names_the_line(
    trigger: Any,
) -> None:
    operator = operator_for(
        TumblingEventTimeWindows(10),
        aggregate=sum_(lambda record: 1 // record[1]),
        trigger=trigger,
    )
    with (
        OneInputHarness(operator, keyed=True) as harness,
        pytest.raises(UserFunctionError, match=r"test_tumbling\.py"),
    ):
        harness.process_run([("a", 1), ("a", 0)], [1, 2])


def test_a_snapshot_does_not_change_with_what_comes_after_it(trigger: Any) -> None:
    def operator() -> Any:
        return operator_for(
            TumblingEventTimeWindows(10), aggregate=collect_list(), trigger=trigger
        )

    with OneInputHarness(operator(), keyed=True) as harness:
        harness.process_run([("a", 1)], [1])
        state = harness.snapshot()
        harness.process_run([("a", 2)], [2])
        harness.process_watermark(9)
        assert harness.values == [[("a", 1), ("a", 2)]]
    restored = OneInputHarness(operator(), keyed=True)
    restored.restore(state)
    with restored:
        restored.process_watermark(9)
        assert restored.values == [[("a", 1)]]


def test_the_state_of_two_subtasks_becomes_that_of_one_and_of_three(
    trigger: Any,
) -> None:
    def harness(parallelism: int, index: int) -> OneInputHarness:
        return OneInputHarness(
            operator_for(
                TumblingEventTimeWindows(10), aggregate=count(), trigger=trigger
            ),
            keyed=True,
            parallelism=parallelism,
            subtask_index=index,
        )

    # Key groups 81 and 22 of 128: the second and the first half.
    pieces = []
    for index, key in ((0, "b"), (1, "a")):
        with harness(2, index) as subtask:
            subtask.process_run([(key, 1), (key, 2)], [1, 2])
            pieces.append(subtask.snapshot())
    for parallelism, expected in ((1, [[2, 2]]), (3, [[2], [2], []])):
        found = []
        for index in range(parallelism):
            subtask = harness(parallelism, index)
            subtask.restore(redistributed(pieces, parallelism)[index])
            with subtask:
                subtask.process_watermark(9)
                found.append(subtask.values)
        assert found == expected
