"""Runtime events: bytes, padded bytes, and how a buffer with one is treated."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.exchange.frames import event_data_type
from aiomailbox.records.element_codec import decode_event, encode_event
from aiomailbox.records.events import (
    Alignment,
    CancelCheckpoint,
    CheckpointBarrier,
    EndOfData,
    EndOfInputChannelState,
    EndOfOutputChannelState,
    EndOfPartition,
    EndOfSegment,
    EndOfSuperstep,
    EventAnnouncement,
    RecoveryMetadata,
    RuntimeEvent,
    SnapshotType,
    StopMode,
    SubtaskConnection,
    WatermarkEvent,
)

FILE = "events"
MODULE = "aiomailbox.exchange.frames"

PLAIN: dict[str, RuntimeEvent] = {
    "EndOfPartitionEvent": EndOfPartition(),
    "EndOfSegmentEvent": EndOfSegment(),
    "EndOfSuperstepEvent": EndOfSuperstep(),
    "EndOfInputChannelStateEvent": EndOfInputChannelState(),
    "EndOfOutputChannelStateEvent": EndOfOutputChannelState(),
}


def _barrier(case: dict[str, Any]) -> CheckpointBarrier:
    location = case.get("location_reference")
    return CheckpointBarrier(
        case.get("checkpoint_id", 0),
        case.get("timestamp", 0),
        Alignment(case["alignment"].lower()),
        SnapshotType(case["snapshot_type"].lower().replace("/", "_")),
        case["aligned_checkpoint_timeout"],
        None if location is None else bytes.fromhex(location),
    )


def _event(case: dict[str, Any]) -> RuntimeEvent:
    match case["event"]:
        case "CheckpointBarrier":
            return _barrier(case)
        case "CancelCheckpointMarker":
            return CancelCheckpoint(case["checkpoint_id"])
        case "EndOfData":
            return EndOfData(StopMode(case["mode"].lower()))
        case "EventAnnouncement":
            return EventAnnouncement(_event(case["announced"]), case["sequence_number"])
        case "SubtaskConnectionDescriptor":
            return SubtaskConnection(
                case["input_subtask_index"], case["output_subtask_index"]
            )
        case "RecoveryMetadata":
            return RecoveryMetadata(case["final_buffer_subpartition_id"])
        case "WatermarkEvent":
            return WatermarkEvent(case["identifier"], case["value"], case["is_aligned"])
        case _:
            return PLAIN[case["event"]]


def _check_predicates(barrier: CheckpointBarrier, case: dict[str, Any]) -> None:
    assert barrier.is_exactly_once == case["is_exactly_once"]
    assert (barrier.alignment is Alignment.UNALIGNED) == case["is_unaligned"]
    assert barrier.needs_alignment == case["needs_alignment"]
    assert barrier.is_timeoutable == case["is_timeoutable"]
    assert barrier.needs_channel_state == case["needs_channel_state"]


def run_case(case: dict[str, Any]) -> None:
    """Compare bytes, types and predicates; read both forms back."""
    if "exception" in case:
        with pytest.raises(InvalidArgumentError):
            _barrier(case)
        return
    event = _event(case)
    encoded, padded = encode_event(event), encode_event(event, padded=True)
    assert encoded.hex() == case["bytes"]
    assert padded.hex() == case["buffer_consumer_bytes"]
    assert decode_event(encoded) == decode_event(padded) == event
    assert event_data_type(event).name == case["buffer_data_type"]
    overtaking = event_data_type(event, has_priority=True)
    assert overtaking.name == case["buffer_data_type_if_priority"]
    if isinstance(event, CheckpointBarrier):
        _check_predicates(event, case)
