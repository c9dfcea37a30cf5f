"""Laws of subpartitions and partitions of bytes, beyond what Flink's cases replay."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import IllegalStateError, InvalidArgumentError
from aiomailbox.exchange.frames import BytesSubpartition, QueuedBuffer
from aiomailbox.exchange.partition import ResultPartition
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.buffer import BufferBuilder, DataType, MemorySegment
from aiomailbox.memory.local_pool import LocalBufferPool, NetworkBufferPool
from aiomailbox.records import BYTES_SERIALIZER, ElementCodec
from aiomailbox.records.events import (
    Alignment,
    CancelCheckpoint,
    CheckpointBarrier,
    EndOfData,
    StopMode,
)
from aiomailbox.records.spanning import RecordDeserializer, frame_record

ALIGNED = CheckpointBarrier(1, 0)
TIMEOUTABLE = CheckpointBarrier(1, 0, aligned_timeout_ms=500)
UNALIGNED = CheckpointBarrier(2, 0, Alignment.UNALIGNED)
CODEC = ElementCodec(BYTES_SERIALIZER)


def partition_of(
    count: int, pool: LocalBufferPool, small_buffers_max: int = 0
) -> ResultPartition:
    """A partition whose channels are all remote."""
    return ResultPartition(
        PartitionId(TaskId(VertexId(0), 0, 0), 0),
        pool,
        count,
        remote_channels=range(count),
        codec=CODEC,
        small_buffers_max=small_buffers_max,
    )


class Told:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.data = 0
        self.priority: list[int] = []

    def on_data_available(self) -> None:
        self.data += 1

    def on_priority_event(self, sequence_number: int) -> None:
        self.priority.append(sequence_number)


class Kept:
    """Remembers the sizes of what was kept, per call."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def add_output_data(
        self, checkpoint_id: int, subpartition_index: int, data: list[bytes]
    ) -> None:
        self.log.append(("add", checkpoint_id, [len(one) for one in data]))

    def expect_output_data(self, checkpoint_id: int, subpartition_index: int) -> None:
        self.log.append(("expect", checkpoint_id))

    def complete_output_data(
        self, checkpoint_id: int, subpartition_index: int, data: list[bytes]
    ) -> None:
        self.log.append(("done", checkpoint_id, [len(one) for one in data]))

    def fail_output_data(
        self, checkpoint_id: int, subpartition_index: int, error: BaseException
    ) -> None:
        self.log.append(("fail", checkpoint_id, type(error)))


class Harness:
    """A subpartition with a reader, and the segments that came back."""

    def __init__(self, **options: Any) -> None:
        self.told = Told()
        self.kept = Kept()
        self.returned = 0
        self.made = 0
        pool = NetworkBufferPool(2).create_local_pool(2)
        partition = partition_of(1, pool)
        partition.keep_in_flight(self.kept, CODEC)
        (subpartition,) = partition.subpartitions
        assert isinstance(subpartition, BytesSubpartition)
        self.subpartition = subpartition
        for name, value in options.items():
            setattr(subpartition, name, value)
        self.subpartition.attach(self.told)

    def _recycle(self, segment: MemorySegment) -> None:
        self.returned += 1

    def add(self, size_bytes: int, *, finished: bool = True) -> bool:
        self.made += 1
        builder = BufferBuilder(MemorySegment(2048), self._recycle)
        answer = self.subpartition.add(QueuedBuffer(builder.create_consumer()))
        builder.append_and_commit(bytes(size_bytes))
        if finished:
            builder.finish()
        builder.close()
        return answer

    def poll(self) -> tuple[int, int, bool] | None:
        """Size, backlog, and whether more is ready."""
        polled = self.subpartition.poll()
        if polled is None:
            return None
        size_bytes = polled.buffer.size_bytes
        polled.buffer.recycle()
        return size_bytes, polled.backlog, polled.next_data_type is not DataType.NONE

    def event(self, event: Any) -> None:
        overtaken = self.subpartition.in_flight() if event.is_priority else ()
        self.subpartition.add_event(event, overtaken=overtaken)

    def time_out(self, checkpoint_id: int) -> None:
        overtaken = self.subpartition.before_barrier(checkpoint_id)
        if overtaken is not None:
            self.subpartition.time_out_barrier(checkpoint_id, overtaken)


def test_an_empty_unfinished_buffer_is_nothing() -> None:
    queue = Harness()
    queue.add(0, finished=False)
    assert (queue.told.data, queue.poll()) == (0, None)


def test_empty_buffers_are_dropped_and_the_second_one_told() -> None:
    queue = Harness()
    queue.add(0)
    queue.add(0)
    assert (queue.told.data, queue.subpartition.backlog) == (1, 1)
    assert queue.poll() is None
    assert (queue.subpartition.backlog, queue.returned) == (0, 2)


def test_unfinished_bytes_can_be_taken_without_being_told() -> None:
    queue = Harness()
    queue.add(1024, finished=False)
    assert (queue.told.data, queue.subpartition.backlog) == (0, 0)
    assert queue.poll() == (1024, 0, False)


def test_a_buffer_that_was_read_from_is_written_on() -> None:
    queue = Harness()
    builder = BufferBuilder(MemorySegment(64), lambda segment: None)
    queue.subpartition.add(QueuedBuffer(builder.create_consumer()))
    for size_bytes in (1, 2, 3):
        builder.append_and_commit(bytes(size_bytes))
        assert queue.poll() == (size_bytes, 0, False)
    assert queue.subpartition.queued_buffers == 1


def test_finishing_a_buffer_tells_nobody_until_the_next_one_comes() -> None:
    queue = Harness()
    queue.add(5)
    assert (queue.told.data, queue.subpartition.is_available()) == (0, False)
    queue.add(0, finished=False)
    assert (queue.told.data, queue.subpartition.is_available()) == (1, True)


def test_a_second_buffer_tells_of_the_first() -> None:
    queue = Harness()
    queue.add(1025)
    queue.add(1024, finished=False)
    assert (queue.told.data, queue.subpartition.backlog) == (1, 1)
    assert queue.poll() == (1025, 0, False)
    assert queue.poll() == (1024, 0, False)


def test_a_flush_behind_a_finished_buffer_tells_nothing_new() -> None:
    queue = Harness()
    queue.add(1025)
    queue.add(1024, finished=False)
    queue.subpartition.flush()
    assert (queue.told.data, queue.subpartition.backlog) == (1, 2)
    assert queue.poll() == (1025, 1, True)


def test_flushing_twice_tells_once() -> None:
    queue = Harness()
    queue.add(1024, finished=False)
    queue.subpartition.flush()
    queue.subpartition.flush()
    assert (queue.told.data, queue.subpartition.backlog) == (1, 1)


def test_three_empty_buffers_and_one_with_bytes_tell_once() -> None:
    queue = Harness()
    for size_bytes in (0, 0, 0, 1024):
        queue.add(size_bytes)
    assert queue.told.data == 1
    assert queue.poll() == (1024, 0, False)


def test_flushing_nothing_does_nothing() -> None:
    queue = Harness()
    queue.subpartition.flush()
    assert queue.told.data == 0
    assert not queue.subpartition.is_available()


def test_an_event_is_available_without_credit() -> None:
    queue = Harness()
    queue.add(10)
    queue.event(CancelCheckpoint(1))
    queue.add(10, finished=False)
    assert queue.subpartition.backlog == 1
    assert not queue.subpartition.is_available(has_credit=False)
    assert queue.poll() == (10, 0, True)
    assert queue.subpartition.is_available(has_credit=False)
    assert queue.subpartition.bytes_total == 10


def test_an_unaligned_barrier_overtakes_and_the_overtaken_data_is_kept() -> None:
    queue = Harness()
    queue.add(1)
    queue.add(2)
    queue.event(CancelCheckpoint(1))
    queue.add(4)
    queue.event(UNALIGNED)
    assert queue.told.priority == [0]
    assert queue.kept.log == [("add", 2, [1, 2, 4])]
    sizes = [queue.poll() for _ in range(5)]
    assert [size and size[0] for size in sizes] == [38, 1, 2, 12, 4]


def test_nothing_is_told_or_taken_behind_an_aligned_barrier() -> None:
    queue = Harness()
    queue.event(ALIGNED)
    assert queue.poll() is not None
    told = queue.told.data
    queue.event(CancelCheckpoint(2))
    queue.add(7, finished=False)
    queue.subpartition.flush()
    assert (queue.told.data, queue.poll(), queue.subpartition.backlog) == (
        told,
        None,
        0,
    )
    queue.subpartition.resume_consumption()
    assert queue.subpartition.is_available(has_credit=False)
    queue.subpartition.tell_again()
    assert queue.told.data == told + 1


def test_a_single_flushed_buffer_is_available_after_resuming() -> None:
    queue = Harness()
    queue.event(ALIGNED)
    queue.poll()
    queue.add(7, finished=False)
    queue.subpartition.flush()
    queue.subpartition.resume_consumption()
    assert queue.subpartition.is_available()
    with pytest.raises(IllegalStateError, match="not blocked"):
        queue.subpartition.resume_consumption()


def test_release_returns_every_segment_and_is_idempotent() -> None:
    queue = Harness()
    queue.add(1)
    queue.add(2, finished=False)
    queue.subpartition.release()
    queue.subpartition.release()
    assert (queue.returned, queue.subpartition.buffers_total) == (2, 0)
    queue.event(ALIGNED)
    assert queue.subpartition.queued_buffers == 0
    with pytest.raises(IllegalStateError, match="released"):
        queue.subpartition.attach(queue.told)


def test_what_comes_after_the_end_is_closed() -> None:
    queue = Harness()
    queue.subpartition.finish()
    assert queue.told.data == 1
    assert not queue.add(3)
    assert queue.returned == 1


def test_a_wished_size_is_at_least_a_byte() -> None:
    """NET-106."""
    queue = Harness()
    queue.subpartition.set_buffer_bytes(42)
    assert queue.subpartition.buffer_bytes == 42
    with pytest.raises(InvalidArgumentError):
        queue.subpartition.set_buffer_bytes(0)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_barrier_that_is_taken_in_time_has_overtaken_nothing(count: int) -> None:
    queue = Harness()
    for _ in range(count):
        queue.add(5)
    queue.event(TIMEOUTABLE)
    for _ in range(count + 1):
        assert queue.poll() is not None
    assert queue.kept.log == [("expect", 1), ("done", 1, [])]
    assert queue.subpartition.is_blocked
    queue.time_out(1)
    assert len(queue.kept.log) == 2


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_barrier_that_times_out_overtakes(count: int) -> None:
    queue = Harness()
    for _ in range(count):
        queue.add(5)
    queue.event(TIMEOUTABLE)
    queue.time_out(1)
    assert queue.kept.log == [("expect", 1), ("done", 1, [5] * count)]
    assert queue.told.priority == [0]
    polled = queue.subpartition.poll()
    assert polled is not None
    assert polled.buffer.data_type is DataType.PRIORITIZED_EVENT_BUFFER
    assert not queue.subpartition.is_blocked


def test_a_second_barrier_that_may_time_out_fails_the_first() -> None:
    """NET-109."""
    queue = Harness()
    queue.event(TIMEOUTABLE)
    queue.event(CheckpointBarrier(2, 0, aligned_timeout_ms=500))
    assert queue.kept.log[1] == ("fail", 1, IllegalStateError)


def test_an_abort_and_a_release_end_the_expectation() -> None:
    """NET-110."""
    queue = Harness()
    queue.event(TIMEOUTABLE)
    queue.subpartition.abort_checkpoint(1, KeyError())
    queue.subpartition.abort_checkpoint(1, KeyError())
    queue.event(CheckpointBarrier(3, 0, aligned_timeout_ms=500))
    queue.subpartition.release()
    assert queue.kept.log[1:] == [
        ("fail", 1, KeyError),
        ("expect", 3),
        ("fail", 3, IllegalStateError),
    ]


def test_there_is_one_reader() -> None:
    with pytest.raises(IllegalStateError, match="view already"):
        Harness().subpartition.attach(Told())


def test_a_reader_without_own_buffers_gets_an_empty_finished_buffer() -> None:
    """NET-112."""
    queue = Harness(receiver_exclusive_buffers=0)
    queue.add(0)
    assert queue.poll() == (0, 0, False)


def make(
    count: int = 2, segments: int = 16, **options: Any
) -> tuple[ResultPartition, LocalBufferPool, NetworkBufferPool]:
    network = NetworkBufferPool(segments, segment_size_bytes=32)
    pool = network.create_local_pool(count + 1, subpartitions=count, **options)
    return partition_of(count, pool), pool, network


def drain(
    subpartition: BytesSubpartition, deserializer: RecordDeserializer | None = None
) -> list[bytes]:
    deserializer = deserializer or RecordDeserializer()
    found = []
    while (polled := subpartition.poll()) is not None:
        if polled.buffer.data_type.is_buffer:
            deserializer.set_next_buffer(polled.buffer.readable())
            while True:
                result, content = deserializer.next_record()
                if result.is_full_record:
                    found.append(bytes(content))
                if result.is_buffer_consumed:
                    break
        polled.buffer.recycle()
    return found


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["emit0", "emit1", "all", "flush", "event", "poll0", "poll1"]),
        st.binary(),
    )
)


@given(STEPS)
def test_each_channel_gets_its_records_in_order_and_all_memory_returns(
    steps: list[tuple[str, bytes]],
) -> None:
    """NET-78."""
    partition, _, network = make(2, 256)
    expected: list[list[bytes]] = [[], []]
    found: list[list[bytes]] = [[], []]
    deserializers = RecordDeserializer(), RecordDeserializer()

    def poll(channel: int) -> None:
        queue = partition.subpartitions[channel]
        found[channel] += drain(queue, deserializers[channel])

    for step, content in steps:
        if step == "all":
            partition.broadcast_record(frame_record(content))
            expected[0].append(content)
            expected[1].append(content)
        elif step == "flush":
            partition.flush_all()
        elif step == "event":
            partition.broadcast_event(CancelCheckpoint(1))
        elif step.startswith("poll"):
            poll(int(step[-1]))
        else:
            partition.emit_record(frame_record(content), int(step[-1]))
            expected[int(step[-1])].append(content)
    partition.finish()
    poll(0)
    poll(1)
    assert found == expected
    assert network.available_segments == 256


def test_only_events_need_no_pool() -> None:
    partition, _, network = make(4)
    before = network.available_segments
    partition.broadcast_event(EndOfData())
    assert network.available_segments == before
    assert [channel.queued_buffers for channel in partition.subpartitions] == [1] * 4


def test_a_broadcast_buffer_is_one_segment_for_all() -> None:
    partition, pool, _ = make(4)
    partition.broadcast_record(frame_record(b"abc"))
    assert pool.outstanding == 1
    assert pool.statistics().used_by_channel == (1, 0, 0, 0)
    partition.finish()
    for channel in partition.subpartitions:
        assert drain(channel) == [b"abc"]
    assert pool.outstanding == 0


def test_without_a_free_segment_the_wished_size_is_ignored() -> None:
    """NET-79."""
    partition, pool, _ = make(2, 3)
    for channel in partition.subpartitions:
        channel.set_buffer_bytes(8)
    partition.emit_record(frame_record(b""), 0)
    partition.emit_record(frame_record(bytes(4)), 1)
    assert pool.outstanding == 2
    partition.emit_record(frame_record(b""), 1)
    assert not partition.availability.available
    partition.emit_record(frame_record(b"sixteen  bytes.."), 0)
    assert pool.outstanding == 3
    assert partition.subpartitions[0].queued_buffers == 1


def test_with_free_segments_buffers_have_the_wished_size() -> None:
    partition, _, _ = make(1)
    partition.subpartitions[0].set_buffer_bytes(8)
    partition.emit_record(frame_record(b""), 0)
    partition.emit_record(frame_record(b"sixteen  bytes.."), 0)
    polled = partition.subpartitions[0].poll()
    assert polled is not None
    assert polled.buffer.size_bytes == 8


def test_what_one_record_needs_is_lent_beyond_the_pool() -> None:
    partition, _, _ = make(1, 2)
    partition.emit_record(frame_record(bytes(100)), 0)
    assert not partition.availability.available
    assert drain(partition.subpartitions[0]) == [bytes(100)]
    assert partition.availability.available


def test_a_pool_that_unfinished_buffers_could_use_up_is_refused() -> None:
    pool = NetworkBufferPool(4).create_local_pool(2, subpartitions=2)
    with pytest.raises(InvalidArgumentError, match="required_segments=3"):
        partition_of(2, pool)


def test_nothing_is_emitted_after_the_end() -> None:
    partition, _, _ = make(1)
    partition.finish()
    partition.finish()
    with pytest.raises(IllegalStateError, match="closed"):
        partition.emit_record(frame_record(b""), 0)
    with pytest.raises(IllegalStateError, match="closed"):
        partition.broadcast_event(EndOfData())


def test_the_partition_is_left_once_when_all_have_let_go() -> None:
    partition, _, _ = make(2)
    left: list[str] = []
    partition.on_consumed(lambda: left.append("left"))
    partition.finish()
    partition.drop_user()
    assert left == []
    partition.drop_user()
    assert left == ["left"]
    with pytest.raises(IllegalStateError, match="more often"):
        partition.drop_user()


def test_the_end_of_data_is_told_once_and_acknowledged_by_all() -> None:
    partition, _, _ = make(2)
    partition.notify_end_of_data(StopMode.DRAIN)
    partition.notify_end_of_data(StopMode.DRAIN)
    assert partition.subpartitions[0].queued_buffers == 1
    partition.acknowledge_all_data_processed(0)
    partition.acknowledge_all_data_processed(0)
    assert not partition.all_data_processed.available
    partition.acknowledge_all_data_processed(1)
    assert partition.all_data_processed.available


def test_a_failed_producer_leaves_nothing_behind() -> None:
    partition, _, network = make(2)
    partition.emit_record(frame_record(bytes(50)), 0)
    partition.broadcast_record(frame_record(b"abc"))
    partition.release(KeyError())
    assert network.available_segments == 16
    assert isinstance(partition.subpartitions[0].failure, KeyError)


def test_a_bounded_number_of_small_buffers_goes_beyond_the_pool() -> None:
    pool = NetworkBufferPool(8, segment_size_bytes=64).create_local_pool(2, 3)
    partition = partition_of(1, pool, small_buffers_max=2)
    [channel] = partition.subpartitions
    channel.set_buffer_bytes(8)
    for _ in range(6):
        partition.emit_record(frame_record(b"four"), 0)
    assert pool.outstanding == 5, "three of the pool, and two"
    assert channel.queued_buffers == 5, "the last has grown to take the sixth"
    partition.release()
    partition.close()
