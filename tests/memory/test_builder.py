"""Builders and consumers of one segment."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import (
    BufferRecycledError,
    IllegalStateError,
)
from aiomailbox.memory.buffer import (
    BufferBuilder,
    BufferConsumer,
    DataType,
    MemorySegment,
    NetworkBuffer,
)


def _builder(size_bytes: int = 64) -> tuple[BufferBuilder, list[MemorySegment]]:
    returned: list[MemorySegment] = []
    return BufferBuilder(MemorySegment(size_bytes), returned.append), returned


def _ints(*values: int) -> bytes:
    return struct.pack(f">{len(values)}i", *values)


def _built(consumer: BufferConsumer) -> bytes:
    window = consumer.build()
    content = bytes(window.readable())
    window.recycle()
    return content


def test_committed_appends_are_built_as_one_slice() -> None:
    """NET-10."""
    builder, _ = _builder()
    consumer = builder.create_consumer()
    for part in (_ints(0, 1), _ints(2), _ints(3, 42)):
        assert builder.append_and_commit(part) == len(part)
    assert _built(consumer) == _ints(0, 1, 2, 3, 42)
    assert _built(consumer) == b""


def test_uncommitted_appends_are_invisible_until_commit() -> None:
    """NET-11."""
    builder, _ = _builder()
    consumer = builder.create_consumer()
    builder.append(b"ab")
    builder.append(b"cd")
    assert not consumer.is_data_available
    assert _built(consumer) == b""
    builder.commit()
    assert consumer.is_data_available
    assert _built(consumer) == b"abcd"


def test_what_does_not_fit_is_left_to_the_next_builder() -> None:
    """NET-12."""
    builder, _ = _builder(40)
    data = memoryview(_ints(*range(11)))
    assert builder.append(data) == 40
    assert builder.is_full
    assert builder.append(data[40:]) == 0


def test_a_second_consumer_is_refused() -> None:
    """NET-13."""
    builder, _ = _builder()
    builder.create_consumer()
    with pytest.raises(IllegalStateError, match="copy"):
        builder.create_consumer()


def test_a_late_consumer_begins_at_the_beginning_and_waits_for_a_commit() -> None:
    builder, _ = _builder()
    builder.append_and_commit(b"early")
    builder.append(b"late")
    consumer = builder.create_consumer()
    assert _built(consumer) == b"early"
    builder.commit()
    assert _built(consumer) == b"late"


def test_copies_begin_where_the_original_was_and_see_later_writes() -> None:
    """NET-14."""
    builder, _ = _builder()
    consumer = builder.create_consumer()
    before = consumer.copy()
    builder.append_and_commit(b"one")
    assert _built(consumer) == b"one"
    after = consumer.copy()
    builder.append_and_commit(b"two")
    assert _built(before) == b"onetwo"
    assert _built(consumer) == _built(after) == b"two"


def test_an_empty_builder_that_finished_is_empty_and_finished() -> None:
    """NET-16."""
    builder, _ = _builder()
    consumer = builder.create_consumer()
    assert builder.finish() == 0
    assert _built(consumer) == b""
    assert consumer.is_finished


def test_finish_is_idempotent_publishes_and_shows_at_once() -> None:
    """NET-17."""
    builder, _ = _builder()
    consumer = builder.create_consumer()
    builder.append(b"abc")
    assert builder.finish() == builder.finish() == 3
    assert consumer.is_finished
    assert consumer.written_bytes == 3
    with pytest.raises(IllegalStateError, match="finish"):
        builder.append(b"d")


def test_trim_keeps_what_is_written_and_can_grow_back_to_the_segment() -> None:
    """NET-18."""
    builder, _ = _builder(1000)
    builder.append(bytes(100))
    builder.trim(50)
    assert builder.capacity_bytes == 100
    assert builder.is_full
    builder.trim(5000)
    assert builder.capacity_bytes == 1000
    assert builder.writable_bytes == 900


@given(st.permutations(["builder", "consumer", "copy", "slice"]))
def test_the_segment_returns_once_when_the_last_of_all_lets_go(
    order: list[str],
) -> None:
    """NET-19."""
    builder, returned = _builder()
    consumer = builder.create_consumer()
    builder.append_and_commit(b"x")
    copy, window = consumer.copy(), consumer.build()
    closers = {
        "builder": builder.close,
        "consumer": consumer.close,
        "copy": copy.close,
        "slice": window.recycle,
    }
    for name in order:
        assert returned == []
        closers[name]()
    assert len(returned) == 1
    builder.close()
    consumer.close()
    assert len(returned) == 1
    with pytest.raises(BufferRecycledError):
        consumer.build()


def test_a_consumer_of_a_finished_buffer_reads_it_whole() -> None:
    segment = MemorySegment(8)
    segment.view[:5] = b"event"
    event = NetworkBuffer(segment, lambda _: None, DataType.EVENT_BUFFER, size_bytes=5)
    consumer = BufferConsumer.of_finished(event)
    assert consumer.is_finished
    assert consumer.data_type is DataType.EVENT_BUFFER
    assert _built(consumer) == b"event"


@given(st.lists(st.tuples(st.binary(max_size=9), st.booleans(), st.booleans())))
def test_built_slices_concatenate_to_what_was_committed(
    steps: list[tuple[bytes, bool, bool]],
) -> None:
    """NET-15."""
    builder, _ = _builder(64)
    consumer = builder.create_consumer()
    appended = built = b""
    for data, commits, builds in steps:
        appended += data[: builder.append(data)]
        if commits:
            builder.commit()
        if builds:
            built += _built(consumer)
        assert appended.startswith(built)
    builder.finish()
    assert built + _built(consumer) == appended
