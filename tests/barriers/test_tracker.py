"""At least once: barriers are counted, and nothing waits."""

from __future__ import annotations

import pytest

from tests.barriers.inputs import tracker


def test_late_barriers_of_older_checkpoints_still_complete_them() -> None:
    """SEM-185."""
    inputs = tracker(3)
    script = (
        "2.0 2.1 2.2  3.0 3.1 4.0 4.1 3.2 4.2  5.0 5.1 5.2 "
        "6.0 6.1 7.0 7.1 8.0 9.0 10.0 7.2 8.1 8.2 9.1 9.2 10.1 10.2"
    )
    for step in script.split():
        checkpoint_id, index = step.split(".")
        inputs.b(int(checkpoint_id), int(index))
        assert inputs.blocked == set()
    assert inputs.triggered == [2, 3, 4, 5, 7, 8, 9, 10]
    assert inputs.aborted == []


def test_one_channel_triggers_and_aborts_at_once() -> None:
    """SEM-186."""
    inputs = tracker(1)
    inputs.b(1)
    inputs.b(2)
    inputs.x(4)
    inputs.b(5)
    inputs.x(6)
    assert inputs.triggered == [1, 2, 5]
    assert inputs.aborted == [4, 6]


def test_several_cancellations_abort_once() -> None:
    """SEM-187."""
    inputs = tracker(3)
    for index in (0, 1, 2):
        inputs.b(1, index)
    inputs.b(2, 0)
    inputs.x(2, 1)
    inputs.x(2, 2)
    for index in (1, 2, 0):
        inputs.b(3, index)
    for index in (2, 0, 1):
        inputs.x(4, index)
    for index in (0, 1, 2):
        inputs.b(5, index)
    inputs.x(6, 0)
    inputs.b(6, 1)
    inputs.x(6, 2)
    assert inputs.triggered == [1, 3, 5]
    assert inputs.aborted == [2, 4, 6]
    assert not inputs.handler.is_pending


def test_interleaved_cancellations_abort_each_checkpoint_once() -> None:
    """SEM-188."""
    inputs = tracker(3)
    inputs.b(1, 0)
    for index in (1, 2):
        inputs.x(2, index)
        inputs.x(1, index)
    inputs.x(2, 0)
    assert inputs.triggered == []
    assert inputs.aborted == [1, 2]


def test_the_end_of_a_channel_counts_for_all_that_are_pending() -> None:
    """SEM-189."""
    inputs = tracker(3)
    for step in ["1.0", "2.0", "2.1", "3.0", "4.0", "4.1", "5.1"]:
        checkpoint_id, index = step.split(".")
        inputs.b(int(checkpoint_id), int(index))
    inputs.e(2)
    assert inputs.triggered == [4]
    assert inputs.handler.open_channels == 2
    inputs.b(5, 0)
    assert inputs.triggered == [4, 5]


def test_a_barrier_and_the_end_of_its_channel_count_once() -> None:
    """SEM-190."""
    inputs = tracker(3)
    inputs.b(2, 0)
    inputs.b(2, 1)
    inputs.e(1)
    assert inputs.triggered == []
    inputs.b(2, 2)
    assert inputs.triggered == [2]
    inputs.e(2)
    inputs.b(7, 0)
    assert inputs.triggered == [2, 7]


def test_a_checkpoint_that_began_with_two_channels_is_complete_with_one() -> None:
    """SEM-191."""
    inputs = tracker(2)
    inputs.b(1, 0)
    inputs.e(0)
    inputs.b(1, 1)
    assert inputs.triggered == [1]


def test_an_alignment_is_measured_from_its_own_first_barrier() -> None:
    """SEM-192."""
    inputs = tracker(2)
    inputs.b(1, 0)
    inputs.clock.advance(1)
    inputs.b(2, 0)
    inputs.clock.advance(1)
    inputs.x(1, 1)
    inputs.clock.advance(1)
    inputs.b(2, 1)
    statistics = inputs.handler.statistics
    assert statistics is not None
    assert statistics.duration_ms == pytest.approx(2000)
    assert inputs.triggered == [2]


def test_too_many_incomplete_checkpoints_push_out_the_oldest() -> None:
    """SEM-193."""
    inputs = tracker(2)
    for checkpoint_id in range(1, 52):
        inputs.b(checkpoint_id, 0)
    inputs.b(1, 1)
    assert inputs.triggered == []
    inputs.b(2, 1)
    assert inputs.triggered == [2]


def test_without_checkpoints_after_the_end_a_channels_end_aborts_them() -> None:
    inputs = tracker(2, after_end=False)
    inputs.b(1, 0)
    inputs.b(2, 0)
    inputs.e(1)
    assert inputs.aborted == [1, 2]
    inputs.b(3, 0)
    assert inputs.triggered == [3]
