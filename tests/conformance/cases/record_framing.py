"""Records and events through a partition of bytes, read back to the end."""

from __future__ import annotations

from typing import Any

from aiomailbox.exchange.core.contract import PolledBytes
from aiomailbox.exchange.frames import BytesSubpartition
from aiomailbox.exchange.partition import ResultPartition
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.local_pool import NetworkBufferPool
from aiomailbox.records import BYTES_SERIALIZER, ElementCodec
from aiomailbox.records.element_codec import decode_event, encode_event
from aiomailbox.records.spanning import RecordDeserializer, frame_record

FILE = "record_framing"


def _emit(partition: ResultPartition, step: dict[str, Any]) -> None:
    match step["op"]:
        case "emit":
            framed = frame_record(bytes.fromhex(step["record"]))
            partition.emit_record(framed, step["subpartition"])
        case "broadcast":
            partition.broadcast_record(frame_record(bytes.fromhex(step["record"])))
        case "broadcast_event":
            event = decode_event(bytes.fromhex(step["event_bytes"]))
            assert encode_event(event).hex() == step["event_bytes"]
            partition.broadcast_event(event)
        case _:
            assert step["op"] == "finish"
            partition.finish()


def _completed(deserializer: RecordDeserializer, data: memoryview) -> list[str]:
    found = []
    deserializer.set_next_buffer(data)
    while True:
        result, content = deserializer.next_record()
        if result.is_full_record:
            found.append(content.hex())
        if result.is_buffer_consumed:
            return found


def _describe(
    subpartition: BytesSubpartition,
    polled: PolledBytes,
    deserializer: RecordDeserializer,
) -> dict[str, Any]:
    buffer = polled.buffer
    found: dict[str, Any] = {
        "bytes": buffer.readable().hex(),
        "data_type": buffer.data_type.name,
        "backlog": polled.backlog,
        "next_data_type": polled.next_data_type.name,
        "sequence_number": polled.sequence_number,
    }
    if buffer.data_type.is_buffer:
        found["records_completed"] = _completed(deserializer, buffer.readable())
    if subpartition.is_blocked:
        found["blocks_upstream"] = True
        subpartition.resume_consumption()
    buffer.recycle()
    return found


def run_case(case: dict[str, Any]) -> None:
    """Apply the operations, poll everything, and look that all memory came back."""
    network = NetworkBufferPool(512, segment_size_bytes=case["segment_size"])
    count = case["num_subpartitions"]
    pool = network.create_local_pool(count + 1, subpartitions=count)
    partition_id = PartitionId(TaskId(VertexId(0), 0, 0), 0)
    partition = ResultPartition(
        partition_id,
        pool,
        count,
        remote_channels=range(count),
        codec=ElementCodec(BYTES_SERIALIZER),
        small_buffers_max=0,
    )
    for step in case["ops"]:
        _emit(partition, step)
    for subpartition, expected in zip(
        partition.subpartitions, case["subpartitions"], strict=True
    ):
        deserializer = RecordDeserializer()
        found = []
        while (polled := subpartition.poll()) is not None:
            found.append(_describe(subpartition, polled, deserializer))
        assert found == expected
        assert not deserializer.has_unfinished_record
    partition.release()
    assert network.available_segments == 512
