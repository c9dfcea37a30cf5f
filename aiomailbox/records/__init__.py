"""What travels through a job: runs of records, control elements, events, their bytes."""

from aiomailbox.records.basic_serializers import (
    BOOLEAN_SERIALIZER,
    BYTE_SERIALIZER,
    BYTES_SERIALIZER,
    DOUBLE_SERIALIZER,
    FLOAT_SERIALIZER,
    INT_SERIALIZER,
    LONG_SERIALIZER,
    SHORT_SERIALIZER,
    STRING_SERIALIZER,
    SingletonSerializer,
)
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.composite_serializers import (
    ListSerializer,
    MapSerializer,
    NullableSerializer,
    SerializedTimer,
    TimerSerializer,
    TimeWindowSerializer,
    TupleSerializer,
)
from aiomailbox.records.element_codec import ElementCodec, StreamElement
from aiomailbox.records.elements import (
    MAX_TIMESTAMP,
    MAX_WATERMARK,
    MIN_TIMESTAMP,
    InternalWatermark,
    LatencyMarker,
    OutputTag,
    RecordAttributes,
    StreamRecord,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.event_codec import decode_event, encode_event
from aiomailbox.records.events import (
    NO_ALIGNED_TIMEOUT,
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
from aiomailbox.records.mapping import map_all
from aiomailbox.records.python_types import (
    PythonTypes,
)
from aiomailbox.records.questions import Answer, Question
from aiomailbox.records.record_classes import RecordClass, RecordClasses
from aiomailbox.records.run import (
    COLUMN_RUN_LENGTH_MAX,
    RUN_LENGTH_MAX,
    ListRun,
    Run,
    SelectableRun,
    take_records,
)
from aiomailbox.records.run_form import RunForm
from aiomailbox.records.type_serializer import TypeSerializer

Control = Watermark | WatermarkStatus | LatencyMarker
Element = Run | Control

__all__ = [
    "BOOLEAN_SERIALIZER",
    "BYTES_SERIALIZER",
    "BYTE_SERIALIZER",
    "COLUMN_RUN_LENGTH_MAX",
    "DOUBLE_SERIALIZER",
    "FLOAT_SERIALIZER",
    "INT_SERIALIZER",
    "LONG_SERIALIZER",
    "MAX_TIMESTAMP",
    "MAX_WATERMARK",
    "MIN_TIMESTAMP",
    "NO_ALIGNED_TIMEOUT",
    "RUN_LENGTH_MAX",
    "SHORT_SERIALIZER",
    "STRING_SERIALIZER",
    "Alignment",
    "Answer",
    "ByteReader",
    "CancelCheckpoint",
    "CheckpointBarrier",
    "Control",
    "Element",
    "ElementCodec",
    "EndOfData",
    "EndOfInputChannelState",
    "EndOfOutputChannelState",
    "EndOfPartition",
    "EndOfSegment",
    "EndOfSuperstep",
    "EventAnnouncement",
    "InternalWatermark",
    "LatencyMarker",
    "ListRun",
    "ListSerializer",
    "MapSerializer",
    "NullableSerializer",
    "OutputTag",
    "PythonTypes",
    "Question",
    "RecordAttributes",
    "RecordClass",
    "RecordClasses",
    "RecoveryMetadata",
    "Run",
    "RunForm",
    "RuntimeEvent",
    "SelectableRun",
    "SerializedTimer",
    "SingletonSerializer",
    "SnapshotType",
    "StopMode",
    "StreamElement",
    "StreamRecord",
    "SubtaskConnection",
    "TimeWindowSerializer",
    "TimerSerializer",
    "TupleSerializer",
    "TypeSerializer",
    "Watermark",
    "WatermarkEvent",
    "WatermarkStatus",
    "decode_event",
    "encode_event",
    "map_all",
    "take_records",
]
