"""When windows share panes, and what that leaves behind."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.durations import seconds
from aiomailbox.errors import WrongTypeError
from aiomailbox.operators.aggregates.functions import (
    aggregates,
    collect_list,
    commutative,
    count,
    sum_,
)
from aiomailbox.operators.core.user_code import skip
from aiomailbox.records.events import MAX_TIMESTAMP
from aiomailbox.state.descriptors import AggregateFunction
from aiomailbox.testing import OneInputHarness
from aiomailbox.windowing.aggregate import SlidingAggregateOperator
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
)
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.panes import PanedAggregateOperator, RunningMerge


def operator_for(size: int, slide: int, offset: int = 0, **options: Any) -> Any:
    if not {"reduce", "aggregate"} & set(options):
        options["aggregate"] = count()
    return window_operator(
        lambda record: record[0],
        SlidingEventTimeWindows(size, slide, offset),
        **options,
    )


@pytest.mark.parametrize(
    ("size", "slide"), [(10, 1), (20, 10), (10, 3), (7, 2), (60_000, 1000)]
)
def test_windows_that_overlap_much_share_panes(size: int, slide: int) -> None:
    assert isinstance(operator_for(size, slide), PanedAggregateOperator)


@pytest.mark.parametrize(
    ("size", "slide"),
    [
        (10, 10),
        (10, 20),
        (15, 10),
        (60_001, 1000),
    ],
    ids=["no overlap", "gaps", "little overlap", "panes of a millisecond"],
)
def test_windows_that_would_gain_nothing_do_not_share(size: int, slide: int) -> None:
    assert type(operator_for(size, slide)) is SlidingAggregateOperator


@pytest.mark.parametrize(
    "options",
    [
        {"aggregate": collect_list()},
        {"aggregate": aggregates(n=count(), all=collect_list())},
        {"reduce": lambda one, two: two},
    ],
)
def test_records_whose_order_may_matter_stay_in_order(options: Any) -> None:
    assert type(operator_for(10, 1, **options)) is SlidingAggregateOperator


@commutative
class NoMerge(AggregateFunction):
    """Counts, and inherits a merge that does nothing."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator


@pytest.mark.parametrize(
    "aggregate", [NoMerge(), aggregates(n=NoMerge(), m=count())], ids=["one", "part"]
)
def test_what_has_no_merge_of_its_own_is_not_merged(aggregate: Any) -> None:
    operator = operator_for(10, 1, aggregate=aggregate)
    assert type(operator) is SlidingAggregateOperator
    with pytest.raises(WrongTypeError, match="no method merge"):
        window_operator(len, EventTimeSessionWindows(5), aggregate=aggregate)


def test_a_late_record_costs_by_the_windows_that_it_changes() -> None:
    merged: list[int] = []

    @commutative
    class Merged(NoMerge):
        def merge(self, first: int, second: int) -> int:
            merged.append(second)
            return first + second

    operator = operator_for(10_000, 10, aggregate=Merged(), allowed_lateness=seconds(1))
    assert isinstance(operator, PanedAggregateOperator)
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([("a", 1)], [0])
        harness.process_watermark(19)
        merged.clear()
        harness.process_run([("a", 1)], [15])
        assert harness.values == [1, 1, 2]
        assert len(merged) < 20


def test_a_record_is_added_once_however_many_windows_it_is_in() -> None:
    seen = []
    operator = operator_for(
        10, 1, aggregate=sum_(lambda record: seen.append(record) or record[1])
    )
    with OneInputHarness(operator, keyed=True) as harness:
        # The first record of all is looked at once more, to see what it is.
        harness.process_run([("a", 1), ("a", 2), ("a", 4)], [0, 0, 3])
        harness.process_watermark(MAX_TIMESTAMP)
        assert sorted(harness.values) == sorted([3] * 3 + [7] * 7 + [4] * 3)
    assert len(seen) <= 4


def test_a_reduce_function_that_is_said_to_be_commutative_is_its_own_merge() -> None:
    operator = operator_for(
        3, 1, reduce=commutative(lambda one, two: ("a", one[1] + two[1]))
    )
    assert isinstance(operator, PanedAggregateOperator)
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([("a", 1), ("a", 2)], [0, 1])
        harness.process_watermark(MAX_TIMESTAMP)
        assert [value[1] for value in harness.values] == [1, 3, 3, 2]


def test_nothing_is_kept_of_windows_that_are_over() -> None:
    operator = operator_for(10, 2, allowed_lateness=seconds(0.005))
    with OneInputHarness(operator, keyed=True) as harness:
        for time in range(0, 10_000, 3):
            harness.process_run([("a", time)], [time])
            harness.process_watermark(time - 4)
        state = (operator._panes, operator._open, operator._fired)
        assert [len(windows.contents) for windows in state] <= [15, 15, 15]
        harness.process_watermark(20_000)
        assert not any(windows.contents for windows in state)


def test_after_a_restore_a_window_fires_again_only_for_keys_with_new_records() -> None:
    def operator() -> Any:
        return operator_for(6, 2, allowed_lateness=seconds(0.02))

    with OneInputHarness(operator(), keyed=True) as harness:
        harness.process_run([("a", 1), ("b", 1), ("a", 2)], [0, 0, 4])
        harness.process_watermark(5)
        assert sorted(harness.values) == [1, 1, 1, 1, 1, 2]
        state = harness.snapshot()
    restored = OneInputHarness(operator(), keyed=True)
    restored.restore(state)
    with restored:
        restored.process_run([("a", 3)], [1])
        assert sorted(restored.values) == [2, 2, 3]
        moved = restored.snapshot()
        restored.process_watermark(5)
        del restored.recorded.elements[3:]
        restored.process_watermark(9)
        assert restored.values[3:] == [1, 1]
    again = OneInputHarness(operator(), keyed=True)
    again.restore(moved)
    with again:
        again.process_watermark(9)
        assert again.values == [1, 1]


def test_a_record_that_fails_leaves_no_trace_late_or_not() -> None:
    operator = operator_for(
        6,
        2,
        aggregate=sum_(lambda record: 6 // record[1]),
        allowed_lateness=seconds(0.1),
        on_error=skip,
    )
    assert isinstance(operator, PanedAggregateOperator)
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([("a", 0), ("a", 1), ("a", 0)], [0, 1, 1])
        harness.process_watermark(1)
        assert harness.values == [6]
        harness.process_run([("a", 0)], [0])
        harness.process_watermark(MAX_TIMESTAMP)
        assert harness.values == [6, 6, 6]
        assert harness.context.metrics.counter("skipped").value == 3


def test_what_was_emitted_is_not_changed_by_later_windows() -> None:
    """Even if the result is the accumulator itself, and merging changes it."""

    @commutative
    class Seen:
        def create_accumulator(self) -> set[Any]:
            return set()

        def add(self, value: Any, accumulator: set[Any]) -> set[Any]:
            return accumulator | {value[1]}

        def get_result(self, accumulator: set[Any]) -> set[Any]:
            return accumulator

        def merge(self, first: set[Any], second: set[Any]) -> set[Any]:
            first |= second
            return first

    operator = operator_for(3, 1, aggregate=Seen())
    assert isinstance(operator, PanedAggregateOperator)
    with OneInputHarness(operator, keyed=True) as harness:
        for time in range(6):
            harness.process_run([("a", time)], [time])
            harness.process_watermark(time)
        harness.process_watermark(MAX_TIMESTAMP)
        assert harness.values == [
            {time for time in range(start, start + 3) if 0 <= time < 6}
            for start in range(-2, 6)
        ]


@given(
    panes_per_slide=st.integers(1, 4),
    panes_per_window=st.integers(4, 12),
    records=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60))),
    starts=st.sets(st.integers(-12, 60)),
)
def test_a_running_merge_gives_what_merging_each_window_anew_gives(
    panes_per_slide: int,
    panes_per_window: int,
    records: list[tuple[str, int]],
    starts: set[int],
) -> None:
    panes: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for key, pane in records:
        panes[pane * 5][key] += 1

    merged = RunningMerge(
        {
            start: {key: [n] for key, n in pane.items()}
            for start, pane in panes.items()
        }.get,
        count(),
        size=panes_per_window * 5,
        slide=panes_per_slide * 5,
        pane=5,
    )
    for start in sorted({at - at % panes_per_slide for at in starts}):
        expected: dict[str, list[int]] = {}
        for key, pane in records:
            if start <= pane < start + panes_per_window:
                expected.setdefault(key, [0])[0] += 1
        assert merged.take(start * 5) == expected


@pytest.mark.parametrize("taken", range(1, 9))
def test_what_comes_late_into_a_pane_is_in_all_windows_that_follow(taken: int) -> None:
    """Wherever it comes: the windows are those of panes that had it from the beginning."""
    shape: dict[str, int] = {"size": 4, "slide": 1, "pane": 1}
    ends = 9
    for late in range(ends + 4):
        panes = {pane: {"a": [1 << pane]} for pane in range(ends + 4)}
        merge = RunningMerge(panes.get, sum_(int), **shape)
        for start in range(taken):
            merge.take(start)
        panes[late]["a"] = [panes[late]["a"][0] + 1]
        merge.add(late, "a", [1])
        whole = RunningMerge(panes.get, sum_(int), **shape)
        for start in range(taken, ends):
            assert merge.take(start) == whole.take(start), (late, start)
