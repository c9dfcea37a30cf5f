"""What barriers say of themselves where no case was recorded."""

from __future__ import annotations

import pytest

from aiomailbox.exchange.frames import event_data_type
from aiomailbox.memory.buffer import DataType
from aiomailbox.records.events import NO_ALIGNED_TIMEOUT, Alignment, CheckpointBarrier


@pytest.mark.parametrize(
    ("timeout_ms", "expected"),
    [(-1, False), (0, False), (1, True), (NO_ALIGNED_TIMEOUT, False)],
)
def test_an_aligned_barrier_times_out_only_after_some_time(
    timeout_ms: int, expected: bool
) -> None:
    """Flink 2.3: ``CheckpointOptions.isTimeoutable``; 0 means unaligned at once."""
    barrier = CheckpointBarrier(1, 2, Alignment.ALIGNED, aligned_timeout_ms=timeout_ms)
    assert barrier.is_timeoutable is expected
    assert barrier.needs_channel_state is expected
    timeoutable = DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER
    assert (event_data_type(barrier) is timeoutable) is expected
