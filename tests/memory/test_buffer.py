"""Reference counts and slices."""

from __future__ import annotations

import pytest

from aiomailbox.errors import BufferRecycledError, InvalidArgumentError
from aiomailbox.memory.buffer import DataType, MemorySegment, NetworkBuffer


def _buffer(size_bytes: int = 8) -> tuple[NetworkBuffer, list[MemorySegment]]:
    returned: list[MemorySegment] = []
    segment = MemorySegment(size_bytes)
    segment.put(0, bytes(range(size_bytes)))
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
    assert window.is_recycled
    uses = [
        buffer.readable,
        buffer.retain,
        buffer.read_only_slice,
        lambda: buffer.segment,
        window.readable,
        window.retain,
        window.recycle,
    ]
    for use in uses:
        with pytest.raises(BufferRecycledError):
            use()


def test_a_slice_has_indices_of_its_own_and_shares_the_count() -> None:
    """NET-08."""
    buffer, returned = _buffer()
    window = buffer.read_only_slice(2, 4)
    assert buffer.reference_count == 1
    window.reader_index = 1
    assert buffer.reader_index == 0
    assert bytes(window.readable()) == bytes([3, 4, 5])
    window.retain()
    assert buffer.reference_count == 2
    window.recycle()
    window.recycle()
    assert len(returned) == 1


def test_offsets_of_nested_slices_add_up() -> None:
    """NET-09."""
    buffer, _ = _buffer()
    nested = buffer.read_only_slice(2, 5).read_only_slice(1)
    assert nested.segment_offset == 3
    assert bytes(nested.readable()) == bytes([3, 4, 5, 6])


def test_a_slice_can_neither_be_written_nor_change_its_type() -> None:
    buffer, _ = _buffer()
    buffer.data_type = DataType.EVENT_BUFFER
    window = buffer.read_only_slice(0, 4)
    assert window.data_type is DataType.EVENT_BUFFER
    with pytest.raises(TypeError):
        window.readable()[0] = 1
    with pytest.raises(AttributeError):
        window.data_type = DataType.DATA_BUFFER  # type: ignore[misc]


def test_a_window_that_leaves_its_parent_is_an_index_error() -> None:
    buffer, _ = _buffer()
    window = buffer.read_only_slice(2, 4)
    for index, length in ((-1, 2), (0, 9), (5, 4)):
        with pytest.raises(IndexError):
            buffer.read_only_slice(index, length)
    for index, length in ((-1, 2), (0, 5), (3, 2)):
        with pytest.raises(IndexError):
            window.read_only_slice(index, length)


def test_a_size_beyond_the_segment_is_refused() -> None:
    buffer, _ = _buffer()
    with pytest.raises(InvalidArgumentError, match="size_bytes"):
        buffer.size_bytes = 9
