"""Segments: permits first, bytes on demand."""

from __future__ import annotations

import sys

import pytest

from aiomailbox.errors import IllegalStateError, InvalidArgumentError
from aiomailbox.memory.buffer import MemoryArena, MemorySegment
from aiomailbox.memory.local_pool import NetworkBufferPool


def test_a_freed_segment_is_a_state_error_and_not_an_index_error() -> None:
    """NET-04."""
    segment = MemorySegment(8)
    segment.put_int(0, 1)
    segment.free()
    segment.free()
    for offset in (0, 100):
        with pytest.raises(IllegalStateError, match="freed"):
            segment.get_int(offset)
        with pytest.raises(IllegalStateError, match="freed"):
            segment.put_int(offset, 1)


def test_the_last_offset_that_fits_is_legal_and_the_next_is_not() -> None:
    """NET-05."""
    segment = MemorySegment(16)
    segment.put_long(8, -2)
    assert segment.get_long(8) == -2
    for offset in (9, -1):
        with pytest.raises(IndexError):
            segment.put_long(offset, 1)
    with pytest.raises(IndexError):
        segment.wrap(10, 7)
    with pytest.raises(IndexError):
        segment.put(15, b"xy")


def test_byte_order_is_explicit_and_native_round_trips() -> None:
    """NET-06."""
    segment = MemorySegment(4)
    segment.put_int(0, 0x01020304)
    assert bytes(segment.view) == bytes([1, 2, 3, 4])
    segment.put_int(0, 0x01020304, "little")
    assert bytes(segment.view) == bytes([4, 3, 2, 1])
    segment.put_int(0, 0x01020304, "native")
    assert segment.get_int(0, "native") == segment.get_int(0, sys.byteorder)
    with pytest.raises(InvalidArgumentError, match="byte_order"):
        segment.get_int(0, "middle")  # type: ignore[arg-type]


def test_a_window_is_the_same_memory() -> None:
    segment = MemorySegment(4)
    segment.wrap(1, 2)[:] = b"ab"
    assert bytes(segment.view) == b"\0ab\0"


def test_segments_of_one_arena_do_not_overlap() -> None:
    arena = MemoryArena(2, 4)
    first, second = (MemorySegment(4, arena, index) for index in range(2))
    first.put(0, b"aaaa")
    second.put(0, b"bbbb")
    assert bytes(first.view) == b"aaaa"


def test_no_memory_is_mapped_while_segments_serve_as_permits_only() -> None:
    network = NetworkBufferPool(4)
    pool = network.create_local_pool(2)
    segment = pool.try_request()
    assert segment is not None
    assert not network.arena.is_mapped
    segment.put(0, b"x")
    assert network.arena.is_mapped
