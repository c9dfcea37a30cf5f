"""An output with consumers on this loop and elsewhere: one surface, two ways."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.errors import IllegalStateError, InvalidArgumentError, WrongTypeError
from aiomailbox.exchange.frames import BytesSubpartition, FrameEncoder
from aiomailbox.exchange.gate import (
    InputGate,
    LocalInputChannel,
    PartitionRegistry,
)
from aiomailbox.exchange.partition import ResultPartition
from aiomailbox.exchange.writer import (
    BroadcastPartitioner,
    RecordWriter,
    RescalePartitioner,
)
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.local_pool import NetworkBufferPool
from aiomailbox.records.element_codec import ElementCodec, decode_event
from aiomailbox.records.events import (
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    StopMode,
    Watermark,
)
from aiomailbox.records.run import ListRun
from aiomailbox.records.run_columns import PythonSerializer
from aiomailbox.records.spanning import RecordDeserializer

PARTITION_ID = PartitionId(TaskId(VertexId(0), 0, 0), 0)


class Output:
    """A partition of three channels, the last two of them elsewhere."""

    def __init__(
        self,
        listener: Any,
        count: int = 3,
        remote: tuple[int, ...] = (1, 2),
        segments: int = 16,
        segment_size_bytes: int = 64,
    ) -> None:
        self.memory = NetworkBufferPool(segments, segment_size_bytes=segment_size_bytes)
        self.pool = self.memory.create_local_pool(
            count + 1, segments, owner="producer", subpartitions=count
        )
        self.codec = ElementCodec(PythonSerializer())
        self.partition = ResultPartition(
            PARTITION_ID, self.pool, count, remote_channels=remote, codec=self.codec
        )
        self.registry = PartitionRegistry()
        self.registry.register(self.partition)
        self.views = {
            channel: self.registry.create_bytes_view(
                PARTITION_ID, channel, listener, receiver_exclusive_buffers=2
            )
            for channel in remote
        }
        self.readers = {channel: RecordDeserializer() for channel in remote}
        self.gates = {
            channel: InputGate(
                [LocalInputChannel(self.registry, PARTITION_ID, channel)]
            )
            for channel in range(count)
            if channel not in remote
        }
        for gate in self.gates.values():
            gate.request_partitions()

    def read(self, channel: int) -> list[Any]:
        """What a consumer elsewhere can take: values, control elements, events."""
        taken: list[Any] = []
        while (polled := self.views[channel].poll()) is not None:
            content = polled.buffer.readable()
            if polled.buffer.data_type.is_event:
                taken.append(decode_event(content))
            else:
                for record in self.readers[channel].records(content):
                    element = self.codec.decode(record)
                    taken += (
                        element.values if isinstance(element, ListRun) else [element]
                    )
            polled.buffer.recycle()
        return taken

    def release(self) -> None:
        for view in self.views.values():
            view.release()
        for gate in self.gates.values():
            gate.close()


@pytest.fixture
def output(listener: Any) -> Output:
    return Output(listener)


async def test_each_consumer_gets_its_records_in_order(
    output: Output, drain: Any
) -> None:
    partition = output.partition
    for number in range(40):
        partition.emit_run(ListRun([(number, "x" * number)], [number]), number % 3)
    assert partition.has_unflushed_data
    partition.flush_all()
    assert not partition.has_unflushed_data
    found = [drain(output.gates[0]), output.read(1), output.read(2)]
    for channel, values in enumerate(found):
        assert values == [(n, "x" * n) for n in range(channel, 40, 3)]
    assert [each.records_total for each in partition.statistics()] == [14, 13, 13]
    output.release()
    partition.release()
    assert output.memory.available_segments == 16


async def test_what_is_left_unflushed_is_reported_by_each_emit(output: Output) -> None:
    assert output.partition.emit_run(ListRun([1]), 1)
    assert output.read(1) == [1]
    assert output.partition.emit_control(Watermark(3), 1)
    output.partition.flush(1)
    assert not output.partition.has_unflushed_data
    assert not output.partition.emit_run(ListRun([]), 1)
    output.partition.release()


async def test_the_end_reaches_all_and_the_last_user_drops_it(
    output: Output, drain: Any
) -> None:
    partition = output.partition
    partition.broadcast_control(Watermark(9))
    barrier = CheckpointBarrier(1, 0)
    partition.broadcast_event(barrier)
    partition.notify_end_of_data(StopMode.DRAIN)
    partition.finish()
    expected = [Watermark(9), barrier]
    end = [EndOfData(StopMode.DRAIN), EndOfPartition()]
    assert drain(output.gates[0]) == expected
    output.gates[0].resume_consumption(0)
    assert drain(output.gates[0]) == end
    output.gates[0].acknowledge_all_data_processed(0)
    for channel in (1, 2):
        assert output.read(channel) == expected
        output.views[channel].resume_consumption()
        assert output.read(channel) == end
        assert not partition.all_data_processed.available
        output.views[channel].acknowledge_all_data_processed()
        assert PARTITION_ID in output.registry
        output.views[channel].release()
    assert partition.all_data_processed.available
    assert PARTITION_ID not in output.registry
    assert partition.is_released
    assert output.memory.available_segments == 16
    assert output.pool.outstanding == 0


async def test_resuming_tells_of_what_came_meanwhile(
    output: Output, listener: Any
) -> None:
    output.partition.broadcast_event(CheckpointBarrier(1, 0))
    assert len(output.read(1)) == len(output.read(2)) == 1
    output.partition.emit_run(ListRun([1]), 1)
    output.partition.flush_all()
    told = listener.data
    output.views[1].resume_consumption()
    assert listener.data == told + 1
    output.views[2].resume_consumption()
    assert listener.data == told + 1
    with pytest.raises(IllegalStateError, match="not blocked"):
        output.views[1].resume_consumption()
    output.partition.release()


async def test_one_pool_holds_both_back(output: Output, drain: Any) -> None:
    partition = output.partition
    assert partition.availability is output.pool.availability
    emitted = 0
    while partition.availability.available and emitted < 40:
        partition.emit_run(ListRun([bytes(60)]), 1)
        emitted += 1
    assert not partition.availability.available
    assert partition.emit_run(ListRun(["fits always"]), 0)
    partition.flush_all()
    assert drain(output.gates[0]) == ["fits always"]
    assert output.read(1) == [bytes(60)] * emitted
    assert partition.availability.available
    await partition.writable()
    partition.release()


async def test_a_broadcast_is_encoded_once(output: Output, drain: Any) -> None:
    writer = RecordWriter(output.partition, BroadcastPartitioner())
    writer.emit_run(ListRun(["a", "b"]))
    writer.emit_control(Watermark(1))
    writer.emit_run(ListRun(["c"]))
    # One segment for both of the channels that lead elsewhere, one permit for the other.
    assert output.pool.outstanding == 2
    writer.flush_all()
    writer.close()
    expected = ["a", "b", Watermark(1), "c"]
    assert drain(output.gates[0]) == output.read(1) == output.read(2) == expected
    output.partition.release()


async def test_a_watermark_does_not_finish_the_channels_own_buffers(
    listener: Any,
) -> None:
    output = Output(listener, 2, (0, 1), segment_size_bytes=256)
    writer = RecordWriter(output.partition, RescalePartitioner())
    for number in range(4):
        writer.emit_run(ListRun([2 * number, 2 * number + 1]))
        writer.emit_control(Watermark(number))
    assert sum(one.queued_buffers for one in output.partition.statistics()) == 2
    writer.flush_all()
    writer.close()
    assert output.read(0) == [
        0,
        Watermark(0),
        2,
        Watermark(1),
        4,
        Watermark(2),
        6,
        Watermark(3),
    ]
    output.partition.release()


async def test_a_consumer_that_has_gone_costs_no_encoding(output: Output) -> None:
    output.views[1].release()
    unserializable = ListRun([object()])
    assert not output.partition.emit_run(unserializable, 1)
    with pytest.raises(WrongTypeError):
        output.partition.emit_run(unserializable, 2)
    assert output.read(2) == []
    output.partition.release()


async def test_a_channel_is_read_on_its_own_side_only(
    output: Output, listener: Any
) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"0 is not among the channels \[1, 2\]"
    ):
        output.registry.create_bytes_view(
            PARTITION_ID, 0, listener, receiver_exclusive_buffers=2
        )
    with pytest.raises(
        InvalidArgumentError, match=r"1 is not among the channels \[0\]"
    ):
        output.partition.create_view(1, listener)
    with pytest.raises(IllegalStateError, match="has a view already"):
        output.registry.create_bytes_view(
            PARTITION_ID, 1, listener, receiver_exclusive_buffers=0
        )
    # Whoever was refused has changed nothing for the one who reads.
    subpartition = output.partition.subpartitions[1]
    assert isinstance(subpartition, BytesSubpartition)
    assert subpartition.receiver_exclusive_buffers == 2
    output.partition.release()


async def test_a_failure_is_known_to_every_view(output: Output) -> None:
    failure = RuntimeError("operator failed")
    output.partition.emit_run(ListRun([1, 2]), 1)
    output.registry.release(PARTITION_ID, failure)
    for view in output.views.values():
        assert view.is_released
        assert view.failure is failure
    assert output.memory.available_segments == 16


@pytest.mark.parametrize("remote", [(3,), (-1, 0)])
def test_channels_elsewhere_have_to_be_there(
    listener: Any, remote: tuple[int, ...]
) -> None:
    with pytest.raises(InvalidArgumentError, match="remote_channels"):
        Output(listener, 3, remote)


@pytest.mark.parametrize("size", [1, 50, 3_000, 100_000])
def test_frames_are_not_much_larger_than_wished(size: int) -> None:
    encoder = FrameEncoder(ElementCodec(PythonSerializer()), frame_bytes_wished=2_000)
    run = ListRun(["x" * size] * 300)
    sizes = [(len(frame), count) for frame, count in encoder.frames(run)]
    assert sum(count for _, count in sizes) == 300
    assert all(bytes_ <= 8_000 or count == 1 for bytes_, count in sizes)


async def test_who_waits_for_its_end_is_called_once_when_both_parts_are_released(
    output: Output,
) -> None:
    seen: list[list[bool]] = []
    views = output.views.values()
    output.partition.on_consumed(
        lambda: seen.append([view.is_released for view in views])
    )
    output.partition.release()
    output.partition.release()
    assert seen == [[True, True]]
