"""Segments: permits first, bytes on demand."""

from __future__ import annotations

import pytest

from aiomailbox.errors import IllegalStateError
from aiomailbox.memory.buffer import MemoryArena, MemorySegment
from aiomailbox.memory.local_pool import NetworkBufferPool


def test_a_freed_segment_is_a_state_error_and_not_an_index_error() -> None:
    """NET-04."""
    segment = MemorySegment(8)
    segment.view[0] = 1
    segment.free()
    segment.free()
    with pytest.raises(IllegalStateError, match="freed"):
        _ = segment.view


def test_segments_of_one_arena_do_not_overlap() -> None:
    arena = MemoryArena(2, 4)
    first, second = (MemorySegment(4, arena, index) for index in range(2))
    first.view[:] = b"aaaa"
    second.view[:] = b"bbbb"
    assert bytes(first.view) == b"aaaa"


def test_no_memory_is_mapped_while_segments_serve_as_permits_only() -> None:
    network = NetworkBufferPool(4)
    pool = network.create_local_pool(2)
    segment = pool.try_request()
    assert segment is not None
    assert not network.arena.is_mapped
    segment.view[0] = 1
    assert network.arena.is_mapped
