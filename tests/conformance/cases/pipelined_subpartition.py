"""Random emitting, flushing and polling: every result, notification and count."""

from __future__ import annotations

from typing import Any

from aiomailbox.errors import IllegalStateError
from aiomailbox.exchange.partition import ResultPartition
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.local_pool import NetworkBufferPool
from aiomailbox.records import BYTES_SERIALIZER, ElementCodec
from aiomailbox.records.element_codec import decode_event, encode_event
from aiomailbox.records.spanning import frame_record

FILE = "pipelined_subpartition"

JAVA = {IllegalStateError: "java.lang.IllegalStateException"}


class _Listener:
    """Writes down what one subpartition's reader is told."""

    def __init__(self, index: int, told: list[list[Any]]) -> None:
        self.index = index
        self.told = told

    def on_data_available(self) -> None:
        self.told.append(["data", self.index])

    def on_priority_event(self, sequence_number: int) -> None:
        self.told.append(["priority", self.index, sequence_number])


class _ChannelState:
    """Writes down which data in flight was kept."""

    def __init__(self, kept: list[dict[str, Any]]) -> None:
        self.kept = kept

    def add_output_data(
        self, checkpoint_id: int, subpartition_index: int, data: list[bytes]
    ) -> None:
        self._keep(checkpoint_id, subpartition_index, data)

    def expect_output_data(self, checkpoint_id: int, subpartition_index: int) -> None:
        pass

    def complete_output_data(
        self, checkpoint_id: int, subpartition_index: int, data: list[bytes]
    ) -> None:
        self._keep(checkpoint_id, subpartition_index, data)
        self.kept[-1]["error"] = None

    def fail_output_data(
        self, checkpoint_id: int, subpartition_index: int, error: BaseException
    ) -> None:
        self.kept.append(
            {
                "checkpoint_id": checkpoint_id,
                "subpartition": subpartition_index,
                "error": JAVA[type(error)],
            }
        )

    def _keep(
        self, checkpoint_id: int, subpartition_index: int, data: list[bytes]
    ) -> None:
        self.kept.append(
            {
                "checkpoint_id": checkpoint_id,
                "subpartition": subpartition_index,
                "inflight_buffers": [one.hex() for one in data],
            }
        )


class _Replay:
    """A partition whose readers are attached from the beginning."""

    def __init__(self, case: dict[str, Any]) -> None:
        count = case["num_subpartitions"]
        self.told: list[list[Any]] = []
        self.kept: list[dict[str, Any]] = []
        self.network = NetworkBufferPool(512, segment_size_bytes=case["segment_size"])
        codec = ElementCodec(BYTES_SERIALIZER)
        self.partition = ResultPartition(
            PartitionId(TaskId(VertexId(0), 0, 0), 0),
            self.network.create_local_pool(count + 1, subpartitions=count),
            count,
            remote_channels=range(count),
            codec=codec,
            small_buffers_max=0,
        )
        self.partition.keep_in_flight(_ChannelState(self.kept), codec)
        for index, subpartition in enumerate(self.partition.subpartitions):
            subpartition.attach(_Listener(index, self.told))

    def apply(self, step: dict[str, Any]) -> dict[str, Any]:
        self.told.clear()
        self.kept.clear()
        found: dict[str, Any] = {}
        try:
            found |= self._act(step) or {}
        except IllegalStateError as error:
            found["exception"] = JAVA[type(error)]
        if self.told:
            found["notifications"] = list(self.told)
        if self.kept:
            found["channel_state"] = list(self.kept)
        found["queued_and_backlog"] = [
            [subpartition.queued_buffers, subpartition.backlog]
            for subpartition in self.partition.subpartitions
        ]
        return found

    def _act(self, step: dict[str, Any]) -> dict[str, Any] | None:
        partition = self.partition
        match step["op"]:
            case "emit":
                framed = frame_record(bytes.fromhex(step["record"]))
                partition.emit_record(framed, step["subpartition"])
            case "broadcast":
                partition.broadcast_record(frame_record(bytes.fromhex(step["record"])))
            case "broadcast_event":
                event = decode_event(bytes.fromhex(step["event_bytes"]))
                assert encode_event(event).hex() == step["event_bytes"]
                assert event.is_priority == step["priority"]
                partition.broadcast_event(event)
            case "flush":
                partition.flush(step["subpartition"])
            case "flush_all":
                partition.flush_all()
            case "poll":
                return {"result": self._poll(step["subpartition"])}
            case "resume_consumption":
                partition.subpartitions[step["subpartition"]].resume_consumption()
            case _:
                assert step["op"] == "aligned_barrier_timeout"
                partition.time_out_barrier(step["checkpoint_id"])
        return None

    def _poll(self, index: int) -> dict[str, Any] | None:
        subpartition = self.partition.subpartitions[index]
        polled = subpartition.poll()
        if polled is None:
            return None
        buffer, backlog, next_data_type, sequence_number = polled
        found = {
            "bytes": buffer.readable().hex(),
            "data_type": buffer.data_type.name,
            "backlog": backlog,
            "next_data_type": next_data_type.name,
            "sequence_number": sequence_number,
        }
        if buffer.data_type.is_blocking_upstream:
            found["blocks_upstream"] = True
        buffer.recycle()
        return found


def run_case(case: dict[str, Any]) -> None:
    """Replay the operations, comparing everything that each of them brought about."""
    replay = _Replay(case)
    given = {
        "op",
        "subpartition",
        "record",
        "event",
        "event_bytes",
        "priority",
        "checkpoint_id",
        "message",
    }
    for number, step in enumerate(case["ops"]):
        expected = {name: value for name, value in step.items() if name not in given}
        assert replay.apply(step) == expected, f"step {number}: {step['op']}"
    replay.partition.release()
    assert replay.network.available_segments == 512
