"""Unaligned barriers: the first one triggers, and data before the others is kept."""

from __future__ import annotations

from tests.barriers.inputs import unaligned


def test_what_arrives_before_a_channels_barrier_is_kept() -> None:
    """SEM-155."""
    inputs = unaligned(3)
    for index in (0, 2, 0):
        inputs.d(index, "before")
    inputs.b(5, 1)
    assert inputs.triggered == [5]
    inputs.d(2, "c")
    inputs.d(0, "a")
    inputs.d(2, "cc")
    inputs.d(1, "behind")
    inputs.b(5, 2)
    inputs.d(1, "behind")
    inputs.d(0, "aa")
    inputs.d(2, "behind")
    inputs.d(1, "behind")
    inputs.b(5, 0)
    inputs.d(0, "after")
    assert inputs.persisted == ["c", "a", "cc", "aa"]
    assert inputs.triggered == [5]
    assert inputs.blocked == set()


def test_data_behind_the_first_barrier_is_not_kept() -> None:
    """SEM-156."""
    inputs = unaligned(3)
    inputs.b(3, 2)
    inputs.d(2, "behind")
    inputs.d(2, "behind")
    inputs.b(3, 0)
    inputs.b(3, 1)
    assert inputs.persisted == []


def test_barriers_in_a_row_keep_nothing() -> None:
    """SEM-157."""
    inputs = unaligned(3)
    for index in (0, 1, 2):
        inputs.b(1, index)
    assert inputs.triggered == [1]
    assert inputs.persisted == []
    assert not inputs.handler.is_pending


def test_channels_that_ended_keep_nothing() -> None:
    """SEM-158."""
    inputs = unaligned(4)
    inputs.e(2)
    inputs.e(1)
    inputs.d(3, "before")
    inputs.d(0, "before")
    inputs.b(3, 3)
    inputs.d(3, "behind")
    inputs.d(0, "a")
    inputs.b(3, 0)
    assert inputs.persisted == ["a"]
    inputs.e(0)
    inputs.b(5, 3)
    assert inputs.triggered == [3, 5]
    assert not inputs.handler.is_pending


def test_a_channel_keeps_data_until_its_end() -> None:
    """SEM-159."""
    inputs = unaligned(3)
    inputs.b(2, 2)
    inputs.b(2, 0)
    inputs.d(0, "behind")
    inputs.d(2, "behind")
    inputs.d(1, "b")
    inputs.e(2)
    assert inputs.handler.is_pending
    inputs.e(1)
    assert inputs.persisted == ["b"]
    assert not inputs.handler.is_pending


def test_a_newer_cancellation_drops_the_pending_checkpoint() -> None:
    """SEM-160."""
    inputs = unaligned(2)
    inputs.b(1, 0)
    inputs.x(2, 0)
    inputs.x(3, 0)
    inputs.x(3, 1)
    assert inputs.triggered == [1]
    assert inputs.aborted[-1] == 3
    assert inputs.persisted == []


def test_one_channel_starts_and_cancels() -> None:
    """SEM-162."""
    inputs = unaligned(1)
    inputs.b(1)
    inputs.b(2)
    inputs.x(4)
    assert inputs.triggered == [1, 2]
    assert inputs.aborted == [4]
    inputs.b(5)
    inputs.x(6)
    assert inputs.triggered == [1, 2, 5]
    assert inputs.aborted == [4, 6]


def test_data_of_all_channels_counts_between_first_and_last_barrier() -> None:
    """SEM-163."""
    inputs = unaligned(3)
    inputs.d(0)
    inputs.b(5, 1)
    for index in (2, 0, 2, 1):
        inputs.d(index)
    inputs.b(5, 2)
    for index in (1, 0):
        inputs.d(index)
    inputs.b(5, 0)
    inputs.d(0)
    statistics = inputs.handler.statistics
    assert statistics is not None
    assert statistics.processed_bytes == 600
