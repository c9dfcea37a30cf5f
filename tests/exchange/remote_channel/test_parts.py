"""A large buffer is decoded in parts: order, credit, barriers that overtake, failures."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.errors import CorruptStreamError
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import (
    Alignment,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    StopMode,
    Watermark,
)
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun
from aiomailbox.records.spanning import RecordDeserializer

UNALIGNED = CheckpointBarrier(7, 0, Alignment.UNALIGNED)
# Two of them are a part, with some records to spare.
_RUN = RUN_LENGTH_MAX * 3 // 5
_RECORDS = list(range(6 * _RUN))


@pytest.fixture
def large(new_job: Any) -> Any:
    """A job of which one buffer of six runs has arrived."""
    job = new_job(segment_size_bytes=1 << 16).connect()
    for start in range(0, len(_RECORDS), _RUN):
        job.partition.emit_run(ListRun(_RECORDS[start : start + _RUN]), 1)
    job.partition.flush_all()
    job.pump()
    assert job.channel.credit().exclusive_free == 1, "there is one buffer"
    return job


async def test_a_part_is_as_long_as_what_is_processed_at_once(
    large: Any, content_of: Any
) -> None:
    lengths, numbers, free = [], [], []
    for _ in range(3):
        polled = large.channel.poll()
        lengths.append(len(content_of(polled.buffer)))
        numbers.append(polled.sequence_number)
        free.append(large.channel.credit().exclusive_free)
        assert large.channel.buffers_in_use == (1 if polled.more_available else 0)
    assert lengths == [2 * _RUN] * 3
    assert len(set(numbers)) == 1
    assert free == [1, 1, 2], "the credit goes back with the last part"
    assert large.channel.poll() is None
    statistics = large.channel.statistics()
    assert (statistics.buffers_total, statistics.records_total) == (1, len(_RECORDS))


async def test_all_parts_come_in_order_with_what_follows(large: Any) -> None:
    large.partition.emit_control(Watermark(5), 1)
    large.emit("last")
    large.partition.notify_end_of_data(StopMode.DRAIN)
    large.partition.finish()
    large.pump()
    ends = [EndOfData(StopMode.DRAIN), EndOfPartition()]
    assert large.read() == [*_RECORDS, Watermark(5), "last", *ends]
    assert large.gate.is_finished
    large.partition.create_view(0, large.link).release()
    large.assert_all_returned()


async def test_a_barrier_overtakes_the_parts_that_are_left(
    large: Any, content_of: Any
) -> None:
    _, first = large.gate.poll_next()
    taken = content_of(first)
    large.emit("behind")
    large.partition.broadcast_event(UNALIGNED)
    large.emit("after")
    large.pump()
    _, barrier = large.gate.poll_priority()
    assert content_of(barrier) == [UNALIGNED]
    kept = RecordDeserializer()
    values: list[Any] = []
    for data in large.channel.in_flight(7):
        for record in kept.records(data):
            values += large.codec.decode(record).values
    # What the barrier had overtaken at the producer is kept there.
    rest = _RECORDS[len(taken) :]
    assert values[: len(rest)] == rest
    assert "after" not in values
    assert large.read() == [*rest, "behind", "after"]
    large.gate.close()
    large.partition.release()
    large.assert_all_returned()


async def test_a_channel_that_is_closed_between_two_parts_returns_the_buffer(
    large: Any, content_of: Any
) -> None:
    content_of(large.gate.poll_next()[1])
    large.gate.close()
    assert large.channel.poll() is None
    large.partition.release()
    large.assert_all_returned()


async def test_a_part_that_cannot_be_read_fails_the_channel_and_returns_the_buffer(
    large: Any, content_of: Any
) -> None:
    codec = large.channel._reader._codec = _Counting(large.codec)
    content_of(large.gate.poll_next()[1])
    codec.is_broken = True
    for _ in range(2):
        with pytest.raises(CorruptStreamError, match="no element"):
            large.gate.poll_next()
    assert large.channel.credit().exclusive_free == 2
    large.gate.close()
    large.partition.release()
    large.assert_all_returned()


async def test_what_is_left_of_a_buffer_is_not_decoded(large: Any) -> None:
    codec = large.channel._reader._codec = _Counting(large.codec)
    large.gate.poll_next()[1].recycle()
    assert codec.records == 2 * _RUN
    large.gate.close()


class _Counting:
    """Counts the records that a codec reads, and can be broken."""

    def __init__(self, codec: ElementCodec) -> None:
        self._codec = codec
        self.records = 0
        self.is_broken = False

    def decode(self, data: memoryview) -> Any:
        if self.is_broken:
            raise CorruptStreamError("no element")
        element: Any = self._codec.decode(data)
        self.records += len(element)
        return element
