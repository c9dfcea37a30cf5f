"""Barriers that align until it takes too long, and overtake data from then on."""

from __future__ import annotations

import pytest

from aiomailbox.barriers.machine import AlignmentState
from aiomailbox.records.events import Alignment
from tests.barriers.inputs import Inputs, alternating

NEVER = 2**62


def pass_ms(inputs: Inputs, duration_ms: int) -> None:
    inputs.clock.advance(duration_ms / 1000)


def alignments(inputs: Inputs) -> list[Alignment]:
    return [barrier.alignment for barrier in inputs.barriers]


def test_an_unaligned_barrier_makes_the_announced_one_overtake() -> None:
    """SEM-164."""
    inputs = alternating(2)
    barrier = inputs.barrier(1)
    inputs.a(barrier, 0, 17)
    inputs.b(1, 1, barrier=barrier.as_unaligned())
    assert inputs.prioritized == [(0, 17)]
    assert inputs.triggered == [1]
    assert alignments(inputs) == [Alignment.UNALIGNED]
    inputs.b(1, 0, barrier=barrier.as_unaligned())
    assert inputs.triggered == [1]
    assert not inputs.handler.is_pending


def test_checkpoints_and_savepoints_take_turns_on_many_channels() -> None:
    """SEM-165."""
    inputs = alternating(123)
    for checkpoint_id in range(123):
        is_savepoint = bool(checkpoint_id % 2)
        alignment = None if is_savepoint else Alignment.UNALIGNED
        barrier = inputs.barrier(
            checkpoint_id, savepoint=is_savepoint, alignment=alignment
        )
        for index in range(123):
            inputs.b(checkpoint_id, index, barrier=barrier)
    assert inputs.triggered == list(range(123))
    assert inputs.blocked == set()


def test_a_barrier_that_is_read_too_late_is_unaligned_and_the_next_is_not() -> None:
    """SEM-166."""
    inputs = alternating(1, timeout_ms=100)
    first = inputs.barrier(1)
    inputs.a(first, 0, 1)
    pass_ms(inputs, 101)
    inputs.fire_timer(1)
    inputs.b(1, 0, barrier=first.as_unaligned())
    inputs.b(2, 0)
    assert alignments(inputs) == [Alignment.UNALIGNED, Alignment.ALIGNED]
    assert inputs.barriers[1].aligned_timeout_ms == 100


def test_barriers_in_time_are_aligned() -> None:
    """SEM-167."""
    inputs = alternating(2, timeout_ms=NEVER)
    inputs.b(1, 0)
    inputs.d(1, size=1000)
    assert inputs.triggered == []
    inputs.b(1, 1)
    assert alignments(inputs) == [Alignment.ALIGNED]


def test_announced_barriers_overtake_once_time_is_over() -> None:
    """SEM-168."""
    inputs = alternating(2, timeout_ms=10)
    barrier = inputs.barrier(1)
    inputs.a(barrier, 0, 2)
    pass_ms(inputs, 20)
    inputs.fire_timer(1)
    assert inputs.prioritized == [(0, 2)]
    inputs.a(barrier, 1, 1)
    assert inputs.prioritized == [(0, 2), (1, 1)]
    inputs.b(1, 0, barrier=barrier.as_unaligned())
    assert alignments(inputs) == [Alignment.UNALIGNED]
    for index, name in ((0, "a"), (0, "a"), (1, "b")):
        inputs.d(index, name)
    # Those of the first channel were overtaken, and kept where they were queued.
    assert inputs.persisted == ["b"]
    inputs.b(1, 1, barrier=barrier.as_unaligned())
    assert not inputs.handler.is_pending


def test_a_barrier_without_timeout_does_not_keep_others_from_timing_out() -> None:
    """SEM-169."""
    inputs = alternating(3, timeout_ms=10)
    patient = inputs.barrier(1, alignment=Alignment.FORCED_ALIGNED)
    barrier = inputs.barrier(1)
    inputs.b(1, 0, barrier=patient)
    pass_ms(inputs, 20)
    inputs.b(1, 1, barrier=barrier)
    assert alignments(inputs) == [Alignment.UNALIGNED]
    inputs.b(1, 2, barrier=barrier)
    assert inputs.triggered == [1]
    assert inputs.blocked == set()


def test_an_old_announcement_makes_the_first_barrier_trigger() -> None:
    """SEM-170."""
    inputs = alternating(2, timeout_ms=100)
    barrier = inputs.barrier(1)
    inputs.a(barrier, 0, 3)
    inputs.a(barrier, 1, 4)
    pass_ms(inputs, 400)
    inputs.b(1, 0, barrier=barrier)
    assert alignments(inputs) == [Alignment.UNALIGNED]
    # Its own announcement came true; the other one is still behind data.
    assert inputs.prioritized == [(1, 4)]
    inputs.b(1, 1, barrier=barrier.as_unaligned())
    assert inputs.triggered == [1]


def test_a_local_barrier_that_is_old_already_is_unaligned() -> None:
    """SEM-171."""
    inputs = alternating(2, timeout_ms=100)
    barrier = inputs.barrier(1)
    pass_ms(inputs, 101)
    inputs.b(1, 0, barrier=barrier)
    assert alignments(inputs) == [Alignment.UNALIGNED]


@pytest.mark.parametrize("by", ["announcement", "barrier"])
def test_what_comes_later_shows_that_time_is_over(by: str) -> None:
    """SEM-172."""
    inputs = alternating(3, timeout_ms=100)
    barrier = inputs.barrier(1)
    inputs.b(1, 0, barrier=barrier)
    assert inputs.triggered == []
    pass_ms(inputs, 101)
    if by == "barrier":
        inputs.b(1, 1, barrier=barrier)
    else:
        inputs.a(barrier, 1, 9)
        inputs.fire_timer(1)
        assert inputs.prioritized == [(1, 9)]
    assert alignments(inputs) == [Alignment.UNALIGNED]


def test_the_timer_alone_triggers() -> None:
    """SEM-173."""
    inputs = alternating(2, timeout_ms=100)
    pass_ms(inputs, 5)
    inputs.b(1, 0)
    assert inputs.timer is not None
    assert inputs.timer.delay_ms == 100
    pass_ms(inputs, 101)
    inputs.fire_timer(inputs.timer.checkpoint_id)
    assert alignments(inputs) == [Alignment.UNALIGNED]


def test_all_channels_are_resumed_after_time_was_over() -> None:
    """SEM-174."""
    inputs = alternating(3, timeout_ms=100)
    barrier = inputs.barrier(1)
    inputs.b(1, 0, barrier=barrier)
    pass_ms(inputs, 101)
    inputs.fire_timer(1)
    # This one was on its way, and blocks.
    inputs.b(1, 1, barrier=barrier)
    assert inputs.blocked == {0, 1}
    inputs.b(1, 2, barrier=barrier.as_unaligned())
    assert inputs.blocked == set()
    assert inputs.resumed == [0, 1]
    assert inputs.triggered == [1]


def test_the_timer_has_no_effect_on_a_complete_alignment() -> None:
    """SEM-175."""
    inputs = alternating(2, timeout_ms=100)
    inputs.b(1, 0)
    inputs.b(1, 1)
    pass_ms(inputs, 101)
    inputs.fire_timer(1)
    assert alignments(inputs) == [Alignment.ALIGNED]
    assert inputs.timer is None


def test_the_timer_has_no_effect_on_a_cancelled_alignment() -> None:
    """SEM-176."""
    inputs = alternating(2, timeout_ms=100)
    inputs.b(1, 0)
    inputs.x(1, 0)
    inputs.x(1, 1)
    pass_ms(inputs, 101)
    inputs.fire_timer(1)
    assert inputs.triggered == []
    assert inputs.aborted == [1]


def test_the_timer_comes_second_to_a_late_barrier() -> None:
    """SEM-178."""
    inputs = alternating(3, timeout_ms=100)
    barrier = inputs.barrier(1)
    inputs.b(1, 0, barrier=barrier)
    inputs.a(barrier, 2, 5)
    pass_ms(inputs, 101)
    inputs.b(1, 1, barrier=barrier)
    inputs.fire_timer(1)
    assert inputs.triggered == [1]
    assert inputs.prioritized == [(2, 5)]


def test_the_ends_of_the_other_channels_complete_what_timed_out() -> None:
    """SEM-179."""
    inputs = alternating(3, timeout_ms=100)
    inputs.b(1, 0)
    pass_ms(inputs, 101)
    inputs.e(1)
    assert alignments(inputs) == [Alignment.UNALIGNED]
    inputs.e(2)
    assert inputs.triggered == [1]
    assert not inputs.handler.is_pending
    assert inputs.resumed == [0]


def test_the_end_of_a_channel_starts_an_announced_alignment() -> None:
    """SEM-180."""
    inputs = alternating(3, timeout_ms=NEVER)
    barrier = inputs.barrier(1)
    inputs.a(barrier, 0, 1)
    assert inputs.handler.statistics is None
    inputs.e(1)
    assert inputs.handler.statistics is not None
    inputs.b(1, 0, barrier=barrier)
    inputs.b(1, 2, barrier=barrier)
    assert inputs.triggered == [1]


def test_each_new_checkpoint_resumes_the_channels_of_the_one_before() -> None:
    """SEM-181."""
    inputs = alternating(2)
    for checkpoint_id in range(4):
        inputs.b(checkpoint_id, checkpoint_id % 2, savepoint=checkpoint_id % 2 == 0)
        assert inputs.blocked == {checkpoint_id % 2}
    assert inputs.aborted == [0, 1, 2]
    assert inputs.handler.is_pending
    assert inputs.triggered == []


def test_an_old_savepoint_is_ignored_and_its_channel_resumed() -> None:
    """SEM-182."""
    inputs = alternating(2)
    inputs.b(10, 0)
    inputs.b(5, 1, savepoint=True)
    assert inputs.resumed == [1]
    assert inputs.blocked == {0}
    assert inputs.handler.latest_checkpoint_id == 10
    assert inputs.aborted == []


def test_an_alignment_is_measured_from_its_own_first_barrier() -> None:
    """SEM-183."""
    inputs = alternating(2, timeout_ms=NEVER)
    inputs.b(1, 0)
    pass_ms(inputs, 1000)
    inputs.b(2, 0)
    pass_ms(inputs, 1000)
    inputs.x(1, 1)
    pass_ms(inputs, 1000)
    inputs.b(2, 1)
    statistics = inputs.handler.statistics
    assert statistics is not None
    assert statistics.duration_ms == pytest.approx(2000)


def test_statistics_of_an_unaligned_checkpoint_come_with_its_last_barrier() -> None:
    """SEM-184."""
    inputs = alternating(2, timeout_ms=NEVER)
    made = inputs.barrier(1)
    pass_ms(inputs, 10)
    inputs.b(1, 0, barrier=made)
    inputs.d(1, size=1000)
    pass_ms(inputs, 6)
    inputs.d(1, size=1000)
    inputs.b(1, 1, barrier=made)
    first = inputs.handler.statistics
    assert first is not None
    assert first.start_delay_ms == 10
    assert first.duration_ms == pytest.approx(6)
    assert first.processed_bytes == 2000
    inputs.b(2, 0, savepoint=True)
    inputs.d(1, size=1000)
    inputs.b(2, 1, savepoint=True)
    second = inputs.handler.statistics
    assert second is not None
    assert second.processed_bytes == 1000
    overtaking = inputs.barrier(3, alignment=Alignment.UNALIGNED)
    inputs.b(3, 0, barrier=overtaking)
    third = inputs.handler.statistics
    assert third is not None
    assert inputs.triggered == [1, 2, 3]
    assert third.duration_ms is None
    inputs.d(0, size=1000)
    inputs.d(1, size=1000)
    pass_ms(inputs, 10)
    inputs.b(3, 1, barrier=overtaking)
    assert third.duration_ms == pytest.approx(10)
    assert third.processed_bytes == 2000


def test_after_each_checkpoint_alignment_is_tried_again() -> None:
    inputs = alternating(2, timeout_ms=100)
    machine = inputs.handler._machine  # type: ignore[union-attr]
    barrier = inputs.barrier(1)
    pass_ms(inputs, 101)
    inputs.b(1, 0, barrier=barrier)
    assert machine.state is AlignmentState.COLLECTING_UNALIGNED
    inputs.b(1, 1, barrier=barrier)
    assert machine.state is AlignmentState.WAITING_ALIGNED
