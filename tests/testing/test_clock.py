from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.testing import ManualClock


@given(st.lists(st.integers(0, 10**6), max_size=50))
def test_whole_milliseconds_add_up_exactly(steps_ms: list[int]) -> None:
    clock = ManualClock(datetime(1970, 1, 1, tzinfo=UTC))
    for step_ms in steps_ms:
        clock.advance(step_ms / 1000)
    assert clock.now_ms() == sum(steps_ms)


def test_both_times_move_together() -> None:
    clock = ManualClock(datetime(1970, 1, 1, tzinfo=UTC))
    clock.advance_to(2500)
    assert (clock.now_ms(), clock.monotonic()) == (2500, 2.5)


def test_time_is_never_turned_back() -> None:
    clock = ManualClock(datetime(1970, 1, 1, tzinfo=UTC))
    clock.advance(1)
    with pytest.raises(InvalidArgumentError, match="seconds"):
        clock.advance(-0.1)
    with pytest.raises(InvalidArgumentError, match="now_ms"):
        clock.advance_to(999)
    assert (clock.now_ms(), clock.monotonic()) == (1000, 1.0)


def test_a_naive_start_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="start"):
        ManualClock(datetime(2013, 1, 1))
