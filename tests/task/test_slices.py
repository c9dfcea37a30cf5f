"""Laws of how long a slice is."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from aiomailbox.records.run import RUN_LENGTH_MAX
from aiomailbox.task.outputs import (
    COSTLY_ROW_SLICES,
    MIXED_SLICES,
    ROW_SLICES,
    SliceForm,
    SliceSize,
)
from aiomailbox.testing import ManualClock


def measured(size: SliceSize, clock: ManualClock, seconds: float, count: int) -> int:
    started = size.start()
    clock.advance(seconds)
    size.stop(started, count)
    return size.records


def test_a_slow_slice_makes_the_next_one_fit_at_once() -> None:
    clock = ManualClock()
    size = SliceSize(clock)
    while size.records < RUN_LENGTH_MAX:
        measured(size, clock, 0.0, size.records)
    assert measured(size, clock, 0.01, RUN_LENGTH_MAX) == 102
    assert measured(size, clock, 1.02, 102) == 1


def test_a_slice_is_never_empty() -> None:
    clock = ManualClock()
    assert measured(SliceSize(clock), clock, 60.0, 1) == 1


def test_the_first_record_is_tried_alone_and_growing_takes_its_time() -> None:
    clock = ManualClock()
    size = SliceSize(clock)
    lengths = [size.records]
    for _ in range(9):
        cost_s = size.records * 0.000_003_9
        lengths.append(measured(size, clock, cost_s, size.records))
    assert lengths == [1, 2, 4, 8, 16, 32, 64, 128, 256, 256]


def test_one_cheap_record_does_not_promise_a_thousand() -> None:
    clock = ManualClock()
    size = SliceSize(clock)
    measured(size, clock, 0.005, 1)
    assert measured(size, clock, 0.0, 1) == 2


def test_records_that_take_no_time_allow_the_longest_slice() -> None:
    clock = ManualClock()
    size = SliceSize(clock)
    for _ in range(20):
        measured(size, clock, 0.0, size.records)
    assert size.records == RUN_LENGTH_MAX


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, RUN_LENGTH_MAX))))
def test_a_slice_is_always_between_one_record_and_a_run(
    slices: list[tuple[float, int]],
) -> None:
    clock = ManualClock()
    size = SliceSize(clock)
    for seconds, count in slices:
        before = size.records
        after = measured(size, clock, seconds, count)
        assert 1 <= after <= min(2 * before, RUN_LENGTH_MAX)


def test_no_slice_is_longer_than_was_asked_for_also_if_records_are_awaited() -> None:
    """Who chooses its input record by record must be asked after each."""
    clock = ManualClock()
    size = SliceSize(clock, form=SliceForm(records_max=1))
    for awaited in (True, False, True):
        started = size.start()
        size.stop(started, 1, awaited_from=started if awaited else None)
        assert size.records == 1


def after(costs: int, fixed_s: float, record_s: float, form: SliceForm) -> list[int]:
    """Return how long slices are that cost something, and more for each record."""
    clock = ManualClock()
    size = SliceSize(clock, form=form)
    lengths = []
    for _ in range(costs):
        lengths.append(size.records)
        measured(size, clock, fixed_s + size.records * record_s, size.records)
    return lengths


def test_what_a_slice_costs_however_short_it_is_does_not_make_it_shorter() -> None:
    lengths = after(15, 0.003, 0.000_000_01, COSTLY_ROW_SLICES)
    assert lengths[:11] == [2**power for power in range(11)]
    lengths = after(9, 0.003, 0.000_000_01, MIXED_SLICES)
    assert lengths == [2**power for power in range(6, 15)]


@pytest.mark.parametrize("form", [COSTLY_ROW_SLICES, MIXED_SLICES])
def test_what_comes_on_top_of_fixed_costs_fits_into_a_slice(form: SliceForm) -> None:
    *_, last = after(30, 0.003, 0.000_01, form)
    assert 100 * form.stretch <= last <= 100 * form.stretch + form.records_min


def test_fixed_costs_that_grow_do_not_keep_slices_short() -> None:
    clock = ManualClock()
    size = SliceSize(clock, form=COSTLY_ROW_SLICES)
    for _ in range(20):
        measured(size, clock, 0.0003, size.records)
    lengths = []
    for _ in range(40):
        measured(size, clock, 0.01, size.records)
        lengths.append(size.records)
    assert min(lengths) == 1
    assert lengths[-1] == RUN_LENGTH_MAX


def test_a_server_that_answers_now_soon_now_late_does_not_keep_slices_short() -> None:
    """Nobody waits for the loop meanwhile, and a shorter slice would wait as long."""
    clock = ManualClock()
    size = SliceSize(clock, form=COSTLY_ROW_SLICES)
    for number in range(40):
        started = size.start()
        since = size.start()
        clock.advance(0.005 * (1 + number % 2))
        size.stop(started, size.records, awaited_from=since)
    assert size.records >= RUN_LENGTH_MAX // 2


def test_what_is_done_before_a_server_is_asked_fits_into_a_slice() -> None:
    """However late it answers: that alone leaves the loop to others."""
    clock = ManualClock()
    size = SliceSize(clock, form=COSTLY_ROW_SLICES)
    lengths = []
    for _ in range(40):
        lengths.append(size.records)
        started = size.start()
        clock.advance(0.000_1 * size.records)
        since = size.start()
        clock.advance(0.2)
        size.stop(started, size.records, awaited_from=since)
    assert max(lengths) <= 16
    assert lengths[-1] >= 9


def test_slow_records_of_columns_are_few_in_a_slice() -> None:
    assert set(after(30, 0.0, 0.02, COSTLY_ROW_SLICES)) == {1, 2}
    assert set(after(30, 0.0, 0.2, MIXED_SLICES)) == {64, 128}


def test_without_fixed_costs_a_slow_record_stays_alone() -> None:
    assert set(after(30, 0.0, 0.02, ROW_SLICES)) == {1}
