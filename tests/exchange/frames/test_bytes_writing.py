"""How records and events are laid out in buffers of bytes, with Flink's numbers."""

from __future__ import annotations

from aiomailbox.exchange.partition import ResultPartition
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.local_pool import NetworkBufferPool
from aiomailbox.records import BYTES_SERIALIZER, ElementCodec
from aiomailbox.records.events import CancelCheckpoint
from aiomailbox.records.spanning import frame_record

EVENT = CancelCheckpoint(1)


def make(count: int, segments: int = 64) -> tuple[ResultPartition, NetworkBufferPool]:
    network = NetworkBufferPool(segments, segment_size_bytes=32)
    pool = network.create_local_pool(count + 1, subpartitions=count)
    partition_id = PartitionId(TaskId(VertexId(0), 0, 0), 0)
    partition = ResultPartition(
        partition_id,
        pool,
        count,
        remote_channels=range(count),
        codec=ElementCodec(BYTES_SERIALIZER),
    )
    return partition, network


def queues(partition: ResultPartition) -> list[int]:
    return [subpartition.queued_buffers for subpartition in partition.subpartitions]


def test_an_event_goes_last_behind_the_buffers_that_it_finishes() -> None:
    """NET-70: records of 16, 33 and 28 bytes, their lengths included."""
    partition, network = make(4)
    for channel, size_bytes in enumerate((16, 33, 28)):
        partition.emit_record(frame_record(bytes(size_bytes - 4)), channel)
    partition.broadcast_event(EVENT)
    assert 64 - network.available_segments >= 4
    assert queues(partition) == [2, 3, 2, 1]
    for subpartition in partition.subpartitions:
        last = None
        while (polled := subpartition.poll()) is not None:
            last = polled.buffer.data_type
            polled.buffer.recycle()
        assert last is not None
        assert last.is_event
    partition.release()


def test_broadcast_records_share_their_buffers_before_the_event() -> None:
    """NET-70, the broadcasting writer: 77 bytes are three buffers, for all."""
    partition, _ = make(4)
    for size_bytes in (16, 33, 28):
        partition.broadcast_record(frame_record(bytes(size_bytes - 4)))
    partition.broadcast_event(EVENT)
    assert queues(partition) == [4, 4, 4, 4]
    partition.release()


def test_a_broadcast_buffer_is_released_when_the_last_consumer_has_read_it() -> None:
    """NET-71, NET-72: whoever reads moves nobody else's position."""
    partition, network = make(3)
    partition.broadcast_record(frame_record(bytes(28)))
    partition.broadcast_event(EVENT)
    before = network.available_segments
    contents = []
    for index, subpartition in enumerate(partition.subpartitions):
        polled = subpartition.poll()
        assert polled is not None
        contents.append(bytes(polled.buffer.readable()))
        held = partition._producer.pool.outstanding
        polled.buffer.recycle()
        assert held == 1
        assert partition._producer.pool.outstanding == (1 if index < 2 else 0)
    assert contents == [frame_record(bytes(28))] * 3
    assert network.available_segments >= before
    partition.release()
    assert network.available_segments == 64


def test_broadcasting_takes_the_memory_of_one_channel() -> None:
    """NET-73: 64 bytes are two buffers, or two for each of four channels."""
    shared, _ = make(4)
    apart, _ = make(4)
    for _ in range(8):
        record = frame_record(bytes(4))
        shared.broadcast_record(record)
        for channel in range(4):
            apart.emit_record(record, channel)
    assert shared._producer.pool.outstanding == 2
    assert apart._producer.pool.outstanding == 8
    for partition in (shared, apart):
        partition.flush_all()
        for subpartition in partition.subpartitions:
            found = b""
            while (polled := subpartition.poll()) is not None:
                found += bytes(polled.buffer.readable())
                polled.buffer.recycle()
            assert found == frame_record(bytes(4)) * 8
        partition.release()


def test_buffers_that_go_on_with_a_record_say_how_much_of_it_they_hold() -> None:
    """NET-80: 90 bytes over buffers of 32."""
    partition, _ = make(1)
    partition.emit_record(frame_record(bytes(86)), 0)
    queued = [item.partial_record_bytes for item in partition.subpartitions[0]._buffers]
    assert queued == [0, 32, 26]
    partition.release()
