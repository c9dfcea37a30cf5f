from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aiomailbox.errors import BufferRecycledError
from aiomailbox.exchange.core.contract import ObjectBuffer
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records.events import (
    Alignment,
    CheckpointBarrier,
    EndOfPartition,
    Watermark,
)
from aiomailbox.records.run import ListRun

Data = Callable[..., ObjectBuffer]


def append(buffer: ObjectBuffer, run: Any) -> None:
    buffer.append_run(run, len(run), run.size_bytes())


def test_a_permit_is_held_until_recycled_and_returned_once(
    pool: LocalBufferPool, data: Data
) -> None:
    buffer = data(3)
    assert pool.outstanding == 1
    buffer.recycle()
    assert pool.outstanding == 0
    with pytest.raises(BufferRecycledError, match="twice"):
        buffer.recycle()
    assert pool.outstanding == 0


def test_an_events_buffer_holds_no_permit_and_is_recycled_once(
    pool: LocalBufferPool,
) -> None:
    buffer = ObjectBuffer.for_event(EndOfPartition())
    assert (buffer.event, buffer.is_sealed) == (EndOfPartition(), True)
    assert pool.outstanding == 0
    buffer.recycle()
    with pytest.raises(BufferRecycledError):
        buffer.recycle()


def test_a_with_block_recycles_also_when_it_fails(
    pool: LocalBufferPool, data: Data
) -> None:
    with pytest.raises(ZeroDivisionError), data(1):
        raise ZeroDivisionError
    assert pool.outstanding == 0


def test_short_runs_become_one_and_the_emitted_lists_are_not_touched(
    data: Data,
) -> None:
    first, second, third = ListRun([1]), ListRun([2, 3]), ListRun([4])
    buffer = data(sealed=False)
    for run in (first, second, third):
        append(buffer, run)
    assert [run.values for run in buffer.elements] == [[1, 2, 3, 4]]
    assert (first.values, second.values, third.values) == ([1], [2, 3], [4])
    assert buffer.record_count == 4


def test_timestamps_travel_with_their_values(data: Data) -> None:
    first, second = ListRun(["a"], [1]), ListRun(["b"], [2])
    buffer = data(sealed=False)
    append(buffer, first)
    append(buffer, second)
    (run,) = buffer.elements
    assert (run.values, run.timestamps) == (["a", "b"], [1, 2])
    assert first.timestamps == [1]


def test_runs_with_and_without_timestamps_stay_apart(data: Data) -> None:
    buffer = data(sealed=False)
    append(buffer, ListRun(["a"], [1]))
    append(buffer, ListRun(["b"]))
    assert len(buffer.elements) == 2


def test_a_control_element_keeps_its_place_between_records(data: Data) -> None:
    buffer = data(sealed=False)
    append(buffer, ListRun([1]))
    buffer.append_control(Watermark(5))
    append(buffer, ListRun([2]))
    append(buffer, ListRun([3]))
    before, watermark, after = buffer.elements
    assert (before.values, watermark, after.values) == ([1], Watermark(5), [2, 3])


def test_a_long_run_is_handed_over_as_it_is(data: Data) -> None:
    run = ListRun(list(range(600)))
    buffer = data(sealed=False)
    append(buffer, run)
    append(buffer, ListRun([1]))
    assert buffer.elements[0] is run


def test_barriers_that_align_block_and_unaligned_ones_overtake() -> None:
    def kind(alignment: Alignment) -> tuple[bool, bool]:
        barrier = CheckpointBarrier(1, 0, alignment)
        return barrier.blocks_upstream, barrier.is_priority

    assert kind(Alignment.ALIGNED) == (True, False)
    assert kind(Alignment.FORCED_ALIGNED) == (True, False)
    assert kind(Alignment.AT_LEAST_ONCE) == (False, False)
    assert kind(Alignment.UNALIGNED) == (False, True)


def test_its_repr_says_what_is_inside(data: Data) -> None:
    assert "2 records" in repr(data(2))
    assert "unfinished" in repr(data(1, sealed=False))
    assert "EndOfPartition" in repr(ObjectBuffer.for_event(EndOfPartition()))
