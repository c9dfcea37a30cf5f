"""Buffers never wait, hold no more than they may, and keep watermarks in place."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import BufferFullError, InvalidArgumentError
from aiomailbox.operators.useful.operators import BufferOperator
from aiomailbox.records.events import StreamRecord, Watermark
from aiomailbox.testing import OneInputHarness


def full_and_released(harness: OneInputHarness, steps: list[int]) -> None:
    """Feed records, and watermarks as negative numbers, while the output is full."""
    harness.recorded.availability.reset()
    for step in steps:
        if step < 0:
            harness.process_watermark(-step)
        else:
            harness.process_element(step, step)
    release(harness)


def release(harness: OneInputHarness) -> None:
    harness.recorded.availability.set_available()
    harness.run_mail()


@given(values=st.lists(st.integers(0, 99)), size=st.integers(1, 5))
def test_the_newest_records_stay(values: list[int], size: int) -> None:
    with OneInputHarness(BufferOperator(size)) as harness:
        full_and_released(harness, values)
        assert harness.values == values[-size:]
        dropped = harness.context.metrics.snapshot()["records_dropped"]
        assert dropped == max(0, len(values) - size)


def test_one_too_many_makes_room_for_itself_with_latest() -> None:
    with OneInputHarness(BufferOperator(2, "latest")) as harness:
        full_and_released(harness, [1, 2, 3])
        assert harness.values == [3]


def test_one_too_many_fails_with_error() -> None:
    with (
        OneInputHarness(BufferOperator(2, "error")) as harness,
        pytest.raises(BufferFullError, match="of 2 records is full"),
    ):
        full_and_released(harness, [1, 2, 3])


def test_watermarks_keep_their_places_also_when_records_are_dropped() -> None:
    with OneInputHarness(BufferOperator(2)) as harness:
        full_and_released(harness, [1, -1, 2, -2, 3, -3, 4])
        assert harness.output == [
            Watermark(1),
            Watermark(2),
            StreamRecord(3, 3),
            Watermark(3),
            StreamRecord(4, 4),
        ]


@given(steps=st.lists(st.integers(-99, 99).filter(bool)), size=st.integers(1, 4))
def test_what_is_held_is_bounded_and_no_record_overtakes(
    steps: list[int], size: int
) -> None:
    operator = BufferOperator(size)
    with OneInputHarness(operator) as harness:
        harness.recorded.availability.reset()
        for step in steps:
            if step < 0:
                harness.process_watermark(-step)
            else:
                harness.process_element(step)
            assert len(operator._records) <= size
            assert len(operator._controls) <= size + 1


def test_what_waits_survives_a_restart() -> None:
    with OneInputHarness(BufferOperator(5)) as harness:
        harness.recorded.availability.reset()
        harness.process_run([1, 2])
        state = harness.snapshot()
    again = OneInputHarness(BufferOperator(5))
    again.restore(state)
    with again as harness:
        harness.run_mail()
        assert harness.values == [1, 2]


async def test_the_end_waits_for_what_is_held() -> None:
    async with OneInputHarness(BufferOperator(5)) as harness:
        harness.process_run([1, 2])
        await harness.run(harness.end_input)
        assert harness.values == [1, 2]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="policy"):
        BufferOperator(1, "newest")  # type: ignore[arg-type]


def test_nothing_is_shown_as_held_after_the_end() -> None:
    with OneInputHarness(BufferOperator(3)) as harness:
        harness.recorded.availability.reset()
        harness.process_run([1, 2])
        assert harness.context.metrics.snapshot()["buffered"] == 2
    assert harness.context.metrics.snapshot()["buffered"] == 0
