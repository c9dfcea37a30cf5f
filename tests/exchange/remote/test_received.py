"""Buffers that have arrived: order, priority, in-flight data, failures."""

from __future__ import annotations

import pytest

from aiomailbox.errors import CorruptStreamError, IllegalStateError
from aiomailbox.exchange.frames import event_buffer
from aiomailbox.exchange.remote.channel import (
    QUEUED_EVENT_BYTES_MAX,
    QUEUED_EVENTS_MAX,
    ReceivedBuffers,
)
from aiomailbox.exchange.remote.credit import ChannelBuffers
from aiomailbox.memory.buffer import DataType, MemorySegment, NetworkBuffer
from aiomailbox.memory.local_pool import NetworkBufferPool
from aiomailbox.records.element_codec import decode_event
from aiomailbox.records.events import (
    Alignment,
    CheckpointBarrier,
    EndOfData,
    EventAnnouncement,
    RuntimeEvent,
)

ALIGNED = CheckpointBarrier(7, 0)
TIMEOUTABLE = CheckpointBarrier(7, 0, aligned_timeout_ms=100)
UNALIGNED = CheckpointBarrier(7, 0, Alignment.UNALIGNED)


class Queue:
    """Received buffers with two own ones, and who was told what."""

    def __init__(self, first: int = 0) -> None:
        self.data = 0
        self.priority: list[int] = []
        self.recycled = 0
        self.next = first
        pool = NetworkBufferPool(8, segment_size_bytes=32).create_local_pool(4, 4)
        self.manager = ChannelBuffers(
            pool,
            [MemorySegment(32), MemorySegment(32)],
            on_credit=lambda: None,
            return_exclusive=lambda segments: None,
        )
        self.received = ReceivedBuffers(self.manager, self, first_sequence_number=first)

    def on_data_available(self) -> None:
        self.data += 1

    def on_priority_event(self, sequence_number: int) -> None:
        self.priority.append(sequence_number)

    def _recycle(self, segment: MemorySegment) -> None:
        self.recycled += 1

    def arrive(self, what: int | RuntimeEvent, backlog: int = 0) -> None:
        """Data of so many bytes, or an event."""
        if isinstance(what, RuntimeEvent):
            buffer = event_buffer(what, has_priority=what.is_priority)
        else:
            buffer = NetworkBuffer(MemorySegment(32), self._recycle, size_bytes=what)
        self.received.on_buffer(buffer, self.next, backlog)
        self.next = (self.next + 1) % 2**32

    def read(self) -> int | RuntimeEvent | None:
        item = self.received.poll()
        if item is None:
            return None
        try:
            if item.buffer.data_type.is_buffer:
                return item.buffer.size_bytes
            return decode_event(item.buffer.readable())
        finally:
            item.buffer.recycle()

    def in_flight(self, checkpoint_id: int = 7) -> list[int]:
        buffers = self.received.in_flight(checkpoint_id)
        sizes = [buffer.size_bytes for buffer in buffers]
        for buffer in buffers:
            buffer.recycle()
        return sizes


@pytest.mark.parametrize("first", [0, 2**32 - 3])
def test_an_unaligned_barrier_is_read_first(first: int) -> None:
    """NET-152, NET-153."""
    queue = Queue(first)
    for what in (1, 2, UNALIGNED, 3, 4):
        queue.arrive(what)
    assert queue.priority == [(first + 2) % 2**32]
    assert queue.in_flight() == [1, 2]
    assert [queue.read() for _ in range(2)] == [UNALIGNED, 1]
    assert queue.in_flight() == [2]
    assert [queue.read() for _ in range(4)] == [2, 3, 4, None]
    assert queue.recycled == 4


def test_a_barrier_that_may_time_out_is_announced_and_keeps_its_place() -> None:
    """NET-154, NET-155."""
    queue = Queue()
    for what in (1, 2, TIMEOUTABLE, 3):
        queue.arrive(what)
    assert queue.priority == [2]
    assert queue.in_flight() == [1, 2]
    assert queue.read() == EventAnnouncement(TIMEOUTABLE, 2)
    assert queue.read() == 1
    assert queue.in_flight() == [2]
    assert [queue.read() for _ in range(4)] == [2, TIMEOUTABLE, 3, None]
    assert queue.received.queued_bytes == 0


def test_an_announced_barrier_can_be_made_to_overtake_and_tells_again() -> None:
    """NET-157."""
    queue = Queue()
    for what in (1, TIMEOUTABLE, 3):
        queue.arrive(what)
    assert queue.read() == EventAnnouncement(TIMEOUTABLE, 1)
    queue.received.prioritize(1)
    assert queue.priority == [1, 1]
    # As it came: it has blocked its producer, which an unaligned one would not have.
    assert [queue.read() for _ in range(3)] == [TIMEOUTABLE, 1, 3]
    with pytest.raises(IllegalStateError, match="number 1"):
        queue.received.prioritize(1)


def test_without_a_barrier_all_data_is_in_flight_and_events_are_not() -> None:
    """NET-153."""
    queue = Queue()
    for what in (1, EndOfData(), 3):
        queue.arrive(what)
    assert queue.in_flight() == [1, 3]


def test_an_older_barrier_does_not_count_and_a_newer_one_supersedes() -> None:
    queue = Queue()
    for what in (1, ALIGNED, 3):
        queue.arrive(what)
    with pytest.raises(IllegalStateError, match="superseded"):
        queue.in_flight(6)
    assert queue.in_flight(7) == [1]
    assert queue.in_flight(8) == [1, 3]


def test_an_aligned_barrier_is_plain_data_to_the_reader() -> None:
    """NET-157."""
    queue = Queue()
    queue.arrive(ALIGNED)
    assert (queue.data, queue.priority) == (1, [])


def test_only_the_first_buffer_in_an_empty_queue_is_told() -> None:
    queue = Queue()
    queue.arrive(1)
    queue.arrive(2)
    assert queue.data == 1


def test_a_wrong_number_fails_the_reader_and_leaks_nothing() -> None:
    """NET-143."""
    queue = Queue()
    queue.arrive(1)
    queue.next = 29
    queue.arrive(2)
    assert queue.recycled == 1
    with pytest.raises(CorruptStreamError, match="29 arrived in place of 1"):
        queue.read()
    queue.arrive(3)
    queue.received.release()
    assert queue.recycled == 3


def test_an_event_that_is_none_fails_the_reader() -> None:
    queue = Queue()
    segment = MemorySegment(4)
    segment.view[:4] = (99).to_bytes(4, "big")
    bad = NetworkBuffer(segment, queue._recycle, DataType.EVENT_BUFFER, size_bytes=4)
    queue.received.on_buffer(bad, 0, 0)
    assert queue.recycled == 1
    with pytest.raises(CorruptStreamError, match="type 99"):
        queue.read()


def test_an_event_that_may_not_overtake_fails_the_reader() -> None:
    queue = Queue()
    queue.received.on_buffer(event_buffer(EndOfData(), has_priority=True), 0, 0)
    with pytest.raises(CorruptStreamError, match="cannot overtake"):
        queue.read()


@pytest.mark.parametrize("event", [EndOfData(), UNALIGNED, TIMEOUTABLE])
def test_events_that_nobody_reads_have_a_limit(event: RuntimeEvent) -> None:
    """They take no credit: a hostile producer could send them for ever."""
    queue = Queue()
    for _ in range(QUEUED_EVENTS_MAX + 200):
        queue.arrive(event)
    # An announcement may have come with the last one.
    assert QUEUED_EVENTS_MAX <= len(queue.received) <= QUEUED_EVENTS_MAX + 1
    with pytest.raises(CorruptStreamError, match="more of them than checkpoints"):
        queue.read()
    queue.received.release()
    assert queue.received.queued_bytes == 0


def test_events_that_nobody_reads_have_a_limit_of_bytes() -> None:
    queue = Queue()
    place = CheckpointBarrier(7, 0, location=b"x" * 60_000)
    for _ in range(QUEUED_EVENTS_MAX):
        queue.arrive(place)
    assert queue.received.queued_bytes < QUEUED_EVENT_BYTES_MAX + 64 * 1024
    with pytest.raises(CorruptStreamError, match="wait unread"):
        queue.read()


def test_events_that_are_read_count_no_more() -> None:
    queue = Queue()
    for what in (1, TIMEOUTABLE, EndOfData()):
        queue.arrive(what)
    queue.received.prioritize(1)
    while queue.read() is not None:
        pass
    # Were one of them still counted, the last would be refused.
    for _ in range(QUEUED_EVENTS_MAX):
        queue.arrive(EndOfData())
    assert queue.read() == EndOfData()
    queue.arrive(EndOfData())
    queue.arrive(EndOfData())
    with pytest.raises(CorruptStreamError, match="1024 events"):
        queue.read()


def test_the_first_failure_stays() -> None:
    queue = Queue()
    queue.received.fail(KeyError("first"))
    queue.received.fail(ValueError("second"))
    assert queue.data == 1
    with pytest.raises(KeyError):
        queue.read()


def test_the_backlog_asks_for_buffers() -> None:
    queue = Queue()
    queue.arrive(1, backlog=2)
    assert (queue.manager.available, queue.manager.required) == (4, 4)
    assert (len(queue.received), queue.manager.sender_backlog) == (1, 2)


def test_an_empty_buffer_gives_its_credit_back() -> None:
    queue = Queue()
    queue.received.on_empty_buffer(0, 0)
    assert queue.manager.take_credit() == 1
    assert len(queue.received) == 0
    queue.received.on_empty_buffer(0, 0)
    with pytest.raises(CorruptStreamError, match="in place of 1"):
        queue.read()


def test_what_arrives_after_release_is_recycled() -> None:
    queue = Queue()
    queue.arrive(1)
    queue.received.release()
    queue.arrive(2)
    assert queue.recycled == 2
    with pytest.raises(IllegalStateError, match="released"):
        queue.read()
