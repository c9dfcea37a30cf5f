"""Laws of how long a slice is."""

from __future__ import annotations

from hypothesis import given, strategies as st

from aiomailbox.records import RUN_LENGTH_MAX
from aiomailbox.task.slices import SliceSize
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
    size = SliceSize(clock, records_max=1)
    for awaited in (True, False, True):
        size.stop(size.start(), 1, awaited=awaited)
        assert size.records == 1
