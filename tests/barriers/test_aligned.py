"""Aligned barriers: each channel waits for the others."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from aiomailbox.barriers.machine import (
    CancelAlignmentTimer,
    ResumeChannel,
    SetAlignmentTimer,
    TakeSnapshot,
)
from tests.barriers.inputs import aligned


def test_one_channel_triggers_each_barrier_at_once() -> None:
    """SEM-141."""
    inputs = aligned(1)
    for step in "ddd1dddd23dd456d":
        inputs.d() if step == "d" else inputs.b(int(step))
        assert inputs.blocked == set()
    inputs.e(0)
    assert inputs.triggered == [1, 2, 3, 4, 5, 6]
    assert inputs.aborted == []
    statistics = inputs.handler.statistics
    assert statistics is not None
    assert statistics.duration_ms == 0


def test_channels_are_blocked_until_all_barriers_are_there() -> None:
    """SEM-142."""
    inputs = aligned(3)
    inputs.b(1, 1)
    assert inputs.blocked == {1}
    inputs.b(1, 2)
    assert inputs.blocked == {1, 2}
    inputs.d(0)
    assert inputs.triggered == []
    inputs.b(1, 0)
    assert inputs.triggered == [1]
    assert inputs.blocked == set()
    assert inputs.resumed == [1, 2, 0]
    for checkpoint_id in (2, 3, 4):
        for index in (0, 1, 2):
            inputs.b(checkpoint_id, index)
    assert inputs.triggered == [1, 2, 3, 4]


def test_the_snapshot_is_triggered_before_any_channel_is_read_on() -> None:
    inputs = aligned(2)
    inputs.b(1, 0)
    inputs.b(1, 1)
    kinds = [type(action) for action in inputs.actions]
    assert kinds.index(TakeSnapshot) < kinds.index(ResumeChannel)


def test_an_alignment_without_a_timeout_has_nothing_to_do_with_timers() -> None:
    inputs = aligned(2)
    inputs.b(1, 0)
    inputs.b(1, 1)
    inputs.b(2, 0)
    inputs.x(2, 0)
    assert (inputs.triggered, inputs.aborted) == ([1], [2])
    assert {type(action) for action in inputs.actions}.isdisjoint(
        (SetAlignmentTimer, CancelAlignmentTimer)
    )


def test_a_newer_checkpoint_subsumes_the_one_that_is_pending() -> None:
    """SEM-143."""
    inputs = aligned(3, after_end=False)
    for index in (0, 1, 2):
        inputs.b(1, index)
    inputs.b(2, 1)
    inputs.b(2, 0)
    assert inputs.blocked == {0, 1}
    inputs.b(3, 2)
    assert inputs.aborted == [2]
    assert inputs.reasons == ["SUBSUMED"]
    assert inputs.blocked == {2}
    inputs.b(3, 0)
    assert inputs.blocked == {0, 2}
    inputs.b(4, 1)
    assert inputs.aborted == [2, 3]
    assert inputs.blocked == {1}
    inputs.e(0)
    assert inputs.aborted == [2, 3, 4]
    assert inputs.reasons[-1] == "END_OF_STREAM"
    assert inputs.blocked == set()
    assert inputs.triggered == [1]


def test_statistics_cover_the_time_from_the_first_barrier_to_the_last() -> None:
    """SEM-144."""
    inputs = aligned(2)
    made = inputs.barrier(1)
    inputs.clock.advance(0.007)
    inputs.d(0)
    inputs.b(1, 0, barrier=made)
    for _ in range(3):
        inputs.d(1)
    inputs.clock.advance(0.010)
    statistics = inputs.handler.statistics
    assert statistics is not None
    assert statistics.duration_ms is None
    inputs.b(1, 1, barrier=made)
    inputs.d(0)
    assert statistics.start_delay_ms == 7
    assert statistics.duration_ms == pytest.approx(10)
    assert statistics.processed_bytes == 300


def test_a_newer_cancellation_drops_the_pending_checkpoint_silently() -> None:
    """SEM-145."""
    inputs = aligned(2)
    inputs.b(1, 0)
    inputs.x(3, 1)
    inputs.x(2, 0)
    inputs.x(3, 0)
    inputs.d(0)
    assert inputs.blocked == set()
    assert inputs.aborted == [3]


def test_channels_that_ended_are_not_waited_for() -> None:
    """SEM-146."""
    inputs = aligned(4)
    inputs.e(2)
    inputs.e(1)
    inputs.b(2, 3)
    inputs.b(2, 0)
    assert inputs.triggered == [2]
    inputs.b(3, 0)
    inputs.b(3, 3)
    inputs.e(0)
    inputs.b(4, 3)
    assert inputs.triggered == [2, 3, 4]
    assert inputs.aborted == []


def test_the_end_of_the_last_missing_channel_completes_an_alignment() -> None:
    """SEM-147."""
    inputs = aligned(3)
    inputs.b(2, 2)
    inputs.b(2, 0)
    assert inputs.blocked == {0, 2}
    inputs.e(1)
    assert inputs.triggered == [2]
    assert inputs.blocked == set()
    assert inputs.resumed == [2, 0]


def test_a_cancellation_on_the_only_channel_aborts_its_checkpoint() -> None:
    """SEM-148."""
    inputs = aligned(1)
    inputs.b(1)
    inputs.b(2)
    inputs.x(4)
    assert inputs.handler.latest_checkpoint_id == 4
    inputs.b(5)
    inputs.x(6)
    assert inputs.triggered == [1, 2, 5]
    assert inputs.aborted == [4, 6]
    assert inputs.reasons == ["CANCELLED", "CANCELLED"]


def test_barriers_of_a_cancelled_checkpoint_are_ignored_and_resumed() -> None:
    """SEM-149."""
    inputs = aligned(3)
    for index in (0, 1, 2):
        inputs.b(1, index)
    inputs.b(2, 0)
    inputs.b(2, 2)
    assert inputs.blocked == {0, 2}
    inputs.x(2, 1)
    assert inputs.blocked == set()
    for index in (1, 2, 0):
        inputs.b(3, index)
    inputs.x(4, 0)
    inputs.resumed.clear()
    inputs.b(4, 1)
    inputs.b(4, 2)
    assert inputs.blocked == set()
    assert inputs.resumed == [1, 2]
    for index in (0, 1, 2):
        inputs.b(5, index)
    inputs.b(6, 0)
    inputs.x(6, 1)
    inputs.x(6, 2)
    inputs.b(6, 1)
    assert inputs.blocked == set()
    assert inputs.triggered == [1, 3, 5]
    assert inputs.aborted == [2, 4, 6]


def test_a_late_barrier_of_an_aborted_checkpoint_blocks_nothing() -> None:
    """SEM-150."""
    inputs = aligned(3)
    inputs.b(1, 1)
    inputs.x(1, 0)
    assert inputs.aborted == [1]
    inputs.b(2, 1)
    inputs.b(1, 2)
    assert inputs.blocked == {1}
    inputs.b(2, 0)
    inputs.b(2, 2)
    assert inputs.triggered == [2]
    assert inputs.aborted == [1]


def test_a_cancellation_of_an_older_checkpoint_is_ignored() -> None:
    """SEM-151."""
    inputs = aligned(3)
    inputs.b(3, 1)
    inputs.b(3, 0)
    inputs.b(5, 2)
    assert inputs.aborted == [3]
    assert inputs.blocked == {2}
    inputs.x(3, 0)
    inputs.b(5, 0)
    inputs.b(5, 1)
    assert inputs.triggered == [5]
    assert inputs.aborted == [3]


def test_a_channel_that_ends_before_its_barrier_counts_as_arrived() -> None:
    """SEM-152."""
    inputs = aligned(3)
    inputs.b(1, 0)
    inputs.b(1, 1)
    inputs.e(2)
    assert inputs.triggered == [1]
    assert inputs.aborted == []
    assert not inputs.handler.is_pending


def test_a_barrier_and_the_end_of_its_channel_count_once() -> None:
    """SEM-153."""
    inputs = aligned(3)
    inputs.b(2, 0)
    inputs.b(2, 1)
    inputs.e(1)
    assert inputs.triggered == []
    inputs.b(2, 2)
    assert inputs.triggered == [2]
    # What has ended is not resumed.
    assert inputs.resumed == [0, 2]


def test_alignments_go_on_with_fewer_channels() -> None:
    """SEM-154."""
    inputs = aligned(3)
    inputs.e(2)
    inputs.b(6, 0)
    inputs.b(6, 1)
    inputs.e(1)
    inputs.b(7, 0)
    assert inputs.triggered == [6, 7]
    assert inputs.aborted == []


def test_a_barrier_that_stands_for_a_channel_blocks_nothing() -> None:
    """As when the coordinator triggers a task whose sources have finished."""
    inputs = aligned(3)
    inputs.e(0)
    for index in (1, 2):
        inputs.b(1, index, is_rpc=True)
    assert inputs.triggered == [1]
    assert inputs.resumed == []


events = st.lists(
    st.tuples(st.sampled_from("bxe"), st.integers(1, 4), st.integers(0, 2)),
    max_size=40,
)


@given(events)
def test_whatever_happens_a_blocked_channel_is_resumed_once(
    script: list[tuple[str, int, int]],
) -> None:
    """Blocked, resumed and ended balance; ids are triggered or aborted, in order."""
    inputs = aligned(3)
    waiting: set[int] = set()
    ended: set[int] = set()
    # A channel delivers its barriers in order, and none after its end.
    last = [0, 0, 0]
    for kind, checkpoint_id, index in script:
        if index in ended or index in waiting:
            continue
        inputs.resumed.clear()
        if kind == "e":
            ended.add(index)
            inputs.e(index)
        elif checkpoint_id <= last[index]:
            continue
        else:
            last[index] = checkpoint_id
            if kind == "b":
                waiting.add(index)
                inputs.b(checkpoint_id, index)
            else:
                inputs.x(checkpoint_id, index)
        for resumed in inputs.resumed:
            waiting.remove(resumed)
        assert inputs.blocked == waiting
    assert inputs.triggered == sorted(set(inputs.triggered))
    assert not set(inputs.triggered) & set(inputs.aborted)
    assert len(set(inputs.aborted)) == len(inputs.aborted)
    if len(ended) == 3:
        assert not waiting
