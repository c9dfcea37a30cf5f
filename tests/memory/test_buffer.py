"""Reference counts and slices."""

from __future__ import annotations

import pytest

from aiomailbox.errors import BufferRecycledError, InvalidArgumentError
from aiomailbox.memory.buffer import DataType, MemorySegment, NetworkBuffer


def _buffer(size_bytes: int = 8) -> tuple[NetworkBuffer, list[MemorySegment]]:
    returned: list[MemorySegment] = []
    segment = MemorySegment(size_bytes)
    segment.view[:] = bytes(range(size_bytes))
    return NetworkBuffer(segment, returned.append, size_bytes=size_bytes), returned


def test_the_recycler_runs_once_and_a_further_recycle_raises() -> None:
    """NET-07."""
    buffer, returned = _buffer()
    buffer.retain()
    buffer.recycle()
    assert returned == []
    buffer.recycle()
    assert len(returned) == 1
    with pytest.raises(BufferRecycledError):
        buffer.recycle()
    assert len(returned) == 1


def test_every_use_after_the_last_recycle_raises() -> None:
    buffer, _ = _buffer()
    window = buffer.read_only_slice(0, 4)
    buffer.recycle()
    uses = [
        buffer.readable,
        buffer.retain,
        lambda: buffer.read_only_slice(0, 4),
        lambda: buffer.segment,
        window.readable,
        window.recycle,
    ]
    for use in uses:
        with pytest.raises(BufferRecycledError):
            use()


def test_a_slice_shares_the_count_of_its_buffer_and_does_not_retain() -> None:
    """NET-08."""
    buffer, returned = _buffer()
    window = buffer.read_only_slice(2, 4)
    assert bytes(window.readable()) == bytes([2, 3, 4, 5])
    buffer.retain()
    window.recycle()
    assert returned == []
    window.recycle()
    assert len(returned) == 1


def test_a_slice_can_neither_be_written_nor_change_its_type() -> None:
    buffer, _ = _buffer()
    buffer.data_type = DataType.EVENT_BUFFER
    window = buffer.read_only_slice(0, 4)
    assert window.data_type is DataType.EVENT_BUFFER
    with pytest.raises(TypeError):
        window.readable()[0] = 1
    with pytest.raises(AttributeError):
        window.data_type = DataType.DATA_BUFFER  # type: ignore[misc]


def test_a_size_beyond_the_segment_is_refused() -> None:
    buffer, _ = _buffer()
    with pytest.raises(InvalidArgumentError, match="size_bytes"):
        buffer.size_bytes = 9
