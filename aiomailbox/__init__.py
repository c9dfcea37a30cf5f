"""Stateful stream processing that you can await: Flink's mailbox task on asyncio.

Importing this imports neither pyspark nor pyarrow: names that need an optional
dependency are looked up when they are first used.
"""

from __future__ import annotations

from typing import Any

from aiomailbox import connectors as _connectors
from aiomailbox.api import (
    BroadcastConnectedStream,
    BroadcastStream,
    ConnectedStreams,
    DataStream,
    IntervalJoin,
    IntervalJoined,
    JobClient,
    JobMetrics,
    JoinedStreams,
    JoinedWindows,
    KeyedStream,
    OperatorWatermark,
    Pipeline,
    Session,
    StreamExecutionEnvironment,
    WindowedStream,
    pipeline,
    run,
)
from aiomailbox.connectors import AsyncIterableSource, CollectionSource, FunctionSink
from aiomailbox.durations import days, hours, millis, minutes, seconds
from aiomailbox.errors import (
    AioMailboxError,
    JobCancelledError,
    JobFailedError,
    KeyTypeError,
    RecordTypeError,
    RetryLater,
    TimestampError,
    UsageError,
    UserFunctionError,
    WorldError,
)
from aiomailbox.eventtime import WatermarkStrategy
from aiomailbox.mailbox import (
    Mail,
    MailboxDefaultAction,
    MailboxExecutor,
    MailboxProcessor,
    MailOptions,
    TaskMailbox,
)
from aiomailbox.operators import (
    BroadcastProcessFunction,
    CoProcessFunction,
    DeadLetter,
    InputSelection,
    KeyedAsyncProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
    ProcessJoinFunction,
    aggregates,
    collect_list,
    count,
    dead_letter,
    fail,
    max_,
    mean,
    min_,
    skip,
    sum_,
    top_n,
)
from aiomailbox.policies import Batch, Cache, RateLimit, Retry
from aiomailbox.records import OutputTag
from aiomailbox.runtime import JobConfig, JobResult, JobState
from aiomailbox.state import (
    AggregateFunction,
    AggregatingStateDescriptor,
    HeapStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ObjectSerializer,
    PickleSerializer,
    ReducingStateDescriptor,
    RocksDBStateBackend,
    StateTtlConfig,
    ValueStateDescriptor,
)
from aiomailbox.windowing import (
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    DeltaEvictor,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    NeverTrigger,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    explain_window,
)

__all__ = [
    "AggregateFunction",
    "AggregatingStateDescriptor",
    "AioMailboxError",
    "AsyncIterableSource",
    "Batch",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastStream",
    "Cache",
    "CoProcessFunction",
    "CollectionSource",
    "ConnectedStreams",
    "ContinuousEventTimeTrigger",
    "CountEvictor",
    "CountTrigger",
    "DataStream",
    "DeadLetter",
    "DeltaEvictor",
    "DeltaTrigger",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "FunctionSink",
    "GlobalWindows",
    "HeapStateBackend",
    "InputSelection",
    "IntervalJoin",
    "IntervalJoined",
    "JobCancelledError",
    "JobClient",
    "JobConfig",
    "JobFailedError",
    "JobMetrics",
    "JobResult",
    "JobState",
    "JoinedStreams",
    "JoinedWindows",
    "KeyTypeError",
    "KeyedAsyncProcessFunction",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListStateDescriptor",
    "Mail",
    "MailOptions",
    "MailboxDefaultAction",
    "MailboxExecutor",
    "MailboxProcessor",
    "MapStateDescriptor",
    "NeverTrigger",
    "ObjectSerializer",
    "OperatorWatermark",
    "OutputTag",
    "PickleSerializer",
    "Pipeline",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "RateLimit",
    "RecordTypeError",
    "ReducingStateDescriptor",
    "Retry",
    "RetryLater",
    "RocksDBStateBackend",
    "Session",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "StateTtlConfig",
    "StreamExecutionEnvironment",
    "TaskMailbox",
    "TimeEvictor",
    "TimeWindow",
    "TimestampError",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "UsageError",
    "UserFunctionError",
    "ValueStateDescriptor",
    "WatermarkStrategy",
    "WindowedStream",
    "WorldError",
    "__version__",
    "aggregates",
    "collect_list",
    "count",
    "days",
    "dead_letter",
    "explain_window",
    "fail",
    "hours",
    "max_",
    "mean",
    "millis",
    "min_",
    "minutes",
    "pipeline",
    "run",
    "seconds",
    "skip",
    "sum_",
    "top_n",
]

__version__ = "0.1.0"

# Public names behind an extra are not in __all__, so that a star import works bare.
_BEHIND_AN_EXTRA = ("ParquetSink", "SparkSource")


def __getattr__(name: str) -> Any:
    if name not in _BEHIND_AN_EXTRA:
        raise AttributeError(f"module 'aiomailbox' has no attribute {name!r}")
    return getattr(_connectors, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_BEHIND_AN_EXTRA})
