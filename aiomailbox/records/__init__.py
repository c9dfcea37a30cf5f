"""What travels through a job: runs of records, control elements, events."""

from aiomailbox.records.elements import (
    MAX_TIMESTAMP,
    MAX_WATERMARK,
    MIN_TIMESTAMP,
    LatencyMarker,
    OutputTag,
    StreamRecord,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.events import (
    Alignment,
    CancelCheckpoint,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    RuntimeEvent,
    StopMode,
)
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun, Run

Control = Watermark | WatermarkStatus | LatencyMarker
Element = Run | Control

__all__ = [
    "MAX_TIMESTAMP",
    "MAX_WATERMARK",
    "MIN_TIMESTAMP",
    "RUN_LENGTH_MAX",
    "Alignment",
    "CancelCheckpoint",
    "CheckpointBarrier",
    "Control",
    "Element",
    "EndOfData",
    "EndOfPartition",
    "LatencyMarker",
    "ListRun",
    "OutputTag",
    "Run",
    "RuntimeEvent",
    "StopMode",
    "StreamRecord",
    "Watermark",
    "WatermarkStatus",
]
