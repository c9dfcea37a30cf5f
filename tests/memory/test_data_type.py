"""Kinds of buffers: the flags and bytes that travel."""

from __future__ import annotations

from aiomailbox.memory.buffer import DataType


def test_priority_and_announcement_exclude_each_other() -> None:
    assert not any(
        kind.has_priority and kind.requires_announcement for kind in DataType
    )


def test_a_type_is_a_buffer_or_an_event_but_never_both() -> None:
    for kind in DataType:
        expected = 0 if kind is DataType.NONE else 1
        assert kind.is_buffer + kind.is_event == expected


def test_only_barriers_recovery_and_aligned_watermarks_block_upstream() -> None:
    blocking = {kind.name for kind in DataType if kind.is_blocking_upstream}
    assert blocking == {
        "ALIGNED_CHECKPOINT_BARRIER",
        "TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER",
        "RECOVERY_COMPLETION",
        "ALIGNED_WATERMARK_EVENT",
    }
