"""Which windows become one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.durations import millis
from aiomailbox.errors import IllegalStateError
from aiomailbox.operators.aggregates.functions import count
from aiomailbox.testing import OneInputHarness
from aiomailbox.windowing.assigners import EventTimeSessionWindows
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.functions import ProcessWindowFunction
from aiomailbox.windowing.merging import MergingWindowSet
from aiomailbox.windowing.time_window import (
    MergedWindows,
    TimeWindow,
    merge_windows,
)
from aiomailbox.windowing.triggers import EventTimeTrigger

WINDOWS = st.builds(
    lambda start, length: TimeWindow(start, start + length),
    st.integers(-50, 50),
    st.integers(0, 10),
)


def merged(*windows: tuple[int, int]) -> list[Any]:
    found = merge_windows(TimeWindow(*window) for window in windows)
    return [(tuple(result), [tuple(w) for w in group]) for result, group in found]


def test_windows_that_touch_are_merged() -> None:
    """SEM-66."""
    assert merged((0, 1), (1, 2), (2, 3), (4, 5), (5, 6)) == [
        ((0, 3), [(0, 1), (1, 2), (2, 3)]),
        ((4, 6), [(4, 5), (5, 6)]),
    ]


def test_windows_that_hold_each_other_are_merged_and_lone_ones_not() -> None:
    """SEM-67."""
    assert merged((1, 1), (0, 2), (4, 7), (5, 6)) == [
        ((0, 2), [(0, 2), (1, 1)]),
        ((4, 7), [(4, 7), (5, 6)]),
    ]
    assert merged((0, 0)) == merged((0, 1)) == []


@given(st.lists(WINDOWS))
def test_merged_windows_are_apart_and_cover_the_same(windows: list[TimeWindow]) -> None:
    merges = merge_windows(windows)
    alone = set(windows).difference(*(set(merge.merged) for merge in merges))
    results = sorted([merge.result for merge in merges] + list(alone))
    for earlier, later in itertools.pairwise(results):
        assert earlier.end < later.start
    for merge in merges:
        assert merge.result.start == min(window.start for window in merge.merged)
        assert merge.result.end == max(window.end for window in merge.merged)


@given(st.lists(WINDOWS))
def test_a_set_holds_the_merge_of_all_windows_in_any_order(
    windows: list[TimeWindow],
) -> None:
    held = MergingWindowSet(EventTimeSessionWindows(1), {})
    states: dict[TimeWindow, set[TimeWindow]] = {}

    def on_merge(result: Any, group: Any, state: Any, others: Any) -> None:
        states[state] = states.get(state, set()).union(*(states.pop(o) for o in others))

    for window in windows:
        actual = held.add(window, on_merge)
        state = held.mapping.get(actual)
        assert state is not None
        states.setdefault(state, set()).add(window)
        assert actual.start <= window.start
        assert window.end <= actual.end
    merges = {merge.result: set(merge.merged) for merge in merge_windows(windows)}
    together = {window for group in merges.values() for window in group}
    alone = {window: {window} for window in set(windows) - together}
    found = {window: states[state] for window, state in held.mapping.items()}
    assert found == merges | alone


def test_an_equal_window_keeps_the_state_where_it_is() -> None:
    held = MergingWindowSet(EventTimeSessionWindows(1), {})
    calls: list[Any] = []
    held.add(TimeWindow(0, 5), lambda *call: calls.append(call))
    held.add(TimeWindow(3, 8), lambda *call: calls.append(call))
    assert len(calls) == 1
    for within in (TimeWindow(0, 8), TimeWindow(1, 2)):
        held.add(within, lambda *call: calls.append(call))
    assert len(calls) == 1
    assert held.mapping.get(TimeWindow(0, 8)) == TimeWindow(0, 5)


class Scripted(EventTimeSessionWindows):
    """An assigner of a user: merges as it is told, also what the new window is not in."""

    def __init__(self, *merges: MergedWindows) -> None:
        super().__init__(1)
        self.merges = list(merges)

    def merge(self, windows: Any) -> list[MergedWindows]:
        return self.merges


def test_windows_may_merge_without_the_new_one_and_an_equal_one_brings_its_state() -> (
    None
):
    a, b, new, both = (TimeWindow(*span) for span in [(0, 1), (5, 6), (20, 21), (0, 6)])
    calls: list[Any] = []
    held = MergingWindowSet(Scripted(MergedWindows(both, [a, b])), {a: a, b: b})
    assert held.add(new, lambda *call: calls.append(call)) == new
    assert held.mapping == {both: a, new: new}
    assert calls == [(both, [a, b], a, [b])]
    held = MergingWindowSet(Scripted(MergedWindows(both, [a, b])), {a: a, b: b})
    assert held.add(b, lambda *call: calls.append(call)) == both
    assert held.mapping == {both: a}
    assert calls[1:] == [(both, [a, b], a, [b])]


def test_a_window_that_is_not_in_use_cannot_be_retired() -> None:
    held = MergingWindowSet(EventTimeSessionWindows(1), {})
    with pytest.raises(IllegalStateError, match="not in use"):
        held.retire(TimeWindow(0, 1))
    assert not held.mapping


class Lists(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: list[Any], out: Any) -> None:
        out.collect((tuple(context.window), sorted(elements)))


@pytest.mark.parametrize("is_incremental", [True, False])
@pytest.mark.parametrize("has_trigger", [True, False])
def test_a_record_whose_window_equals_a_merged_session_is_added_to_it(
    is_incremental: bool, has_trigger: bool
) -> None:
    """Flink begins the session anew: see decision 47."""
    gaps = EventTimeSessionWindows.with_dynamic_gap(lambda value: millis(value[0]))
    settings: dict[str, Any] = {"window_function": Lists()}
    if is_incremental:
        settings = {"aggregate": count()}
    if has_trigger:
        settings["trigger"] = EventTimeTrigger()
    operator = window_operator(lambda _: "k", gaps, **settings)
    with OneInputHarness(operator, keyed=True) as harness:
        for gap, stamp in [(10, 0), (10, 5), (15, 0), (3, 1)]:
            harness.process_element((gap, stamp), stamp)
        harness.process_watermark(14)
        (found,) = harness.values
    records = [(3, 1), (10, 0), (10, 5), (15, 0)]
    assert found == (4 if is_incremental else ((0, 15), records))
