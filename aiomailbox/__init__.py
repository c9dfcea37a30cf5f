"""Stateful stream processing that you can await: Flink's mailbox task on asyncio.

Importing this imports neither pyspark nor pyarrow: names that need an optional
dependency are looked up when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aiomailbox import connectors as _connectors
from aiomailbox.api.connected import (
    BroadcastConnectedStream,
    BroadcastStream,
    ConnectedStreams,
)
from aiomailbox.api.environment import StreamExecutionEnvironment
from aiomailbox.api.job import JobClient, OperatorWatermark
from aiomailbox.api.job_progress import progress
from aiomailbox.api.joined import (
    CoGroupedWindows,
    IntervalJoin,
    IntervalJoined,
    JoinedStreams,
    JoinedWindows,
)
from aiomailbox.api.partitioned import PartitionWindowedStream
from aiomailbox.api.pipeline import Pipeline, pipeline
from aiomailbox.api.sessions import Session
from aiomailbox.api.stream import DataStream, KeyedStream
from aiomailbox.api.windowed import WindowedStream
from aiomailbox.availability import Availability
from aiomailbox.checkpoint.savepoint import Savepoint
from aiomailbox.checkpoint.settings import (
    CheckpointConfig,
    CheckpointingMode,
    Retention,
)
from aiomailbox.collector import tune_collector
from aiomailbox.connectors.async_iterable import AsyncIterableSource
from aiomailbox.connectors.collection import CollectionSource
from aiomailbox.connectors.inbox import Answers, Inbox, Subscription
from aiomailbox.connectors.sinks import FunctionSink
from aiomailbox.durations import days, hours, millis, minutes, seconds
from aiomailbox.errors import (
    AioMailboxError,
    AsyncTimeoutError,
    BudgetExceededError,
    CancelTimeoutError,
    CheckpointFailedError,
    DamagedFileError,
    DeadlineExceededError,
    IllegalStateError,
    InvalidArgumentError,
    JobCancelledError,
    JobFailedError,
    JobFinishedError,
    MailboxClosedError,
    MissingExtraError,
    NoCheckpointError,
    RecordsRefusedError,
    RecordTypeError,
    RemoteTaskError,
    RetryLater,
    SinkError,
    SourceChangedError,
    SparkJobError,
    StateError,
    StopTask,
    StorageClaimedError,
    TargetExistsError,
    UnsupportedColumnError,
    UsageError,
    UserFunctionError,
    WorkerDiedError,
    WorldError,
    WrongTypeError,
)
from aiomailbox.eventtime.generators import WatermarkGenerator, WatermarkOutput
from aiomailbox.eventtime.strategy import WatermarkStrategy
from aiomailbox.mailbox.control import MailboxController, MailboxDefaultAction
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.mailbox.mail import Mail, MailOptions
from aiomailbox.mailbox.processor import MailboxProcessor
from aiomailbox.mailbox.task_mailbox import TaskMailbox
from aiomailbox.metrics.catalogue import HistogramValue, Merge, Metric, MetricKind
from aiomailbox.observe.running import run
from aiomailbox.operators.aggregates.functions import (
    aggregates,
    collect_list,
    commutative,
    count,
    max_,
    mean,
    min_,
    sum_,
)
from aiomailbox.operators.aggregates.ordered import (
    count_distinct,
    first,
    last,
    quantile,
    top_n,
)
from aiomailbox.operators.async_io.settings import AsyncCall, current_call
from aiomailbox.operators.async_state.function import (
    KeyedAsyncContext,
    KeyedAsyncProcessFunction,
)
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.operator import BlockCause, InputSelection
from aiomailbox.operators.core.resources import (
    CheckpointedFunction,
    FunctionStateContext,
)
from aiomailbox.operators.core.user_code import (
    CheckpointListener,
    DeadLetter,
    OnError,
    dead_letter,
    fail,
    skip,
)
from aiomailbox.operators.functions.contexts import (
    BroadcastContext,
    KeyedBroadcastContext,
    KeyedProcessContext,
    KeyedReadOnlyContext,
    ProcessContext,
    ReadOnlyContext,
    TimerService,
)
from aiomailbox.operators.functions.process import (
    BroadcastProcessFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
)
from aiomailbox.operators.joins.keyed import ProcessJoinContext, ProcessJoinFunction
from aiomailbox.operators.sinks.sink import (
    Committer,
    CommitterContext,
    Guarantee,
    Sink,
    SinkWriter,
)
from aiomailbox.operators.sources.source import (
    Boundedness,
    EnumeratorContext,
    InputStatus,
    ReaderContext,
    ReaderOutput,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
    StaticEnumerator,
)
from aiomailbox.operators.useful.patterns import Match, Pattern, pattern
from aiomailbox.policies import restart
from aiomailbox.policies.batch import Batch
from aiomailbox.policies.cache import Cache
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.policies.retry import Retry
from aiomailbox.records.events import Answer, OutputTag, Question
from aiomailbox.records.run import ListRun
from aiomailbox.runtime.bottleneck import (
    BackpressureLevel,
    BackpressureReport,
    Bottleneck,
    TaskPressure,
    VertexPressure,
)
from aiomailbox.runtime.config import JobConfig, JobSettings, JobState
from aiomailbox.runtime.held_loop import Stall
from aiomailbox.runtime.job_snapshot import (
    CheckpointSummary,
    EdgeSummary,
    FailureSummary,
    JobMetrics,
    JobSnapshot,
    OperatorSummary,
)
from aiomailbox.runtime.master import JobResult
from aiomailbox.runtime.processes.starter import Processes
from aiomailbox.runtime.views import CheckpointView, CompletedCheckpoint
from aiomailbox.state.backends import HeapStateBackend, RocksDBStateBackend
from aiomailbox.state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    StateVisibility,
    TtlUpdate,
    ValueStateDescriptor,
)
from aiomailbox.state.operator_state import ReadOnlyBroadcastState
from aiomailbox.state.serializers import ObjectSerializer, PickleSerializer
from aiomailbox.state.store import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from aiomailbox.state.table_store import KeyedStateStore
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from aiomailbox.windowing.evictors import (
    CountEvictor,
    DeltaEvictor,
    Evictor,
    TimeEvictor,
)
from aiomailbox.windowing.functions import (
    ProcessWindowContext,
    ProcessWindowFunction,
    WindowState,
)
from aiomailbox.windowing.operator import FailedWindow
from aiomailbox.windowing.spec import explain_window
from aiomailbox.windowing.time_window import GlobalWindow, TimeWindow
from aiomailbox.windowing.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeoutTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
    TriggerContext,
    TriggerResult,
)

# All that `__getattr__` gives, for checkers and editors.
if TYPE_CHECKING:
    from aiomailbox import observe as observe
    from aiomailbox.connectors.arrow import ArrowSource as ArrowSource
    from aiomailbox.connectors.file_sink import FileSink
    from aiomailbox.connectors.files.source import FileSource
    from aiomailbox.connectors.parquet import ParquetSink as ParquetSink
    from aiomailbox.connectors.redis_sink import RedisSink
    from aiomailbox.connectors.spark.result import SparkTableSink as SparkTableSink
    from aiomailbox.connectors.spark.source import SparkSource as SparkSource
    from aiomailbox.connectors.spark.streaming import (
        SparkStreamSource as SparkStreamSource,
    )
    from aiomailbox.connectors.sql.sink import SqlSink

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AioMailboxError",
    "Answer",
    "Answers",
    "AsyncCall",
    "AsyncIterableSource",
    "AsyncTimeoutError",
    "Availability",
    "BackpressureLevel",
    "BackpressureReport",
    "Batch",
    "BlockCause",
    "Bottleneck",
    "Boundedness",
    "BroadcastConnectedStream",
    "BroadcastContext",
    "BroadcastProcessFunction",
    "BroadcastStream",
    "BudgetExceededError",
    "Cache",
    "CancelTimeoutError",
    "CheckpointConfig",
    "CheckpointFailedError",
    "CheckpointListener",
    "CheckpointSummary",
    "CheckpointView",
    "CheckpointedFunction",
    "CheckpointingMode",
    "CoGroupedWindows",
    "CoProcessFunction",
    "CollectionSource",
    "Collector",
    "Committer",
    "CommitterContext",
    "CompletedCheckpoint",
    "ConnectedStreams",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountEvictor",
    "CountTrigger",
    "DamagedFileError",
    "DataStream",
    "DeadLetter",
    "DeadlineExceededError",
    "DeltaEvictor",
    "DeltaTrigger",
    "EdgeSummary",
    "EnumeratorContext",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "FailedWindow",
    "FailureSummary",
    "FileSink",
    "FileSource",
    "FunctionSink",
    "FunctionStateContext",
    "GlobalWindow",
    "GlobalWindows",
    "Guarantee",
    "HeapStateBackend",
    "HistogramValue",
    "IllegalStateError",
    "Inbox",
    "InputSelection",
    "InputStatus",
    "IntervalJoin",
    "IntervalJoined",
    "InvalidArgumentError",
    "JobCancelledError",
    "JobClient",
    "JobConfig",
    "JobFailedError",
    "JobFinishedError",
    "JobMetrics",
    "JobResult",
    "JobSettings",
    "JobSnapshot",
    "JobState",
    "JoinedStreams",
    "JoinedWindows",
    "KeyedAsyncContext",
    "KeyedAsyncProcessFunction",
    "KeyedBroadcastContext",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessContext",
    "KeyedProcessFunction",
    "KeyedReadOnlyContext",
    "KeyedStateStore",
    "KeyedStream",
    "ListRun",
    "ListState",
    "ListStateDescriptor",
    "Mail",
    "MailOptions",
    "MailboxClosedError",
    "MailboxController",
    "MailboxDefaultAction",
    "MailboxExecutor",
    "MailboxProcessor",
    "MapState",
    "MapStateDescriptor",
    "Match",
    "Merge",
    "Metric",
    "MetricKind",
    "MissingExtraError",
    "NeverTrigger",
    "NoCheckpointError",
    "ObjectSerializer",
    "OnError",
    "OperatorSummary",
    "OperatorWatermark",
    "OutputTag",
    "PartitionWindowedStream",
    "Pattern",
    "PickleSerializer",
    "Pipeline",
    "ProcessContext",
    "ProcessFunction",
    "ProcessJoinContext",
    "ProcessJoinFunction",
    "ProcessWindowContext",
    "ProcessWindowFunction",
    "Processes",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "ProcessingTimeoutTrigger",
    "PurgingTrigger",
    "Question",
    "RateLimit",
    "ReadOnlyBroadcastState",
    "ReadOnlyContext",
    "ReaderContext",
    "ReaderOutput",
    "RecordTypeError",
    "RecordsRefusedError",
    "RedisSink",
    "ReducingState",
    "ReducingStateDescriptor",
    "RemoteTaskError",
    "Retention",
    "Retry",
    "RetryLater",
    "RocksDBStateBackend",
    "RuntimeContext",
    "Savepoint",
    "Session",
    "Sink",
    "SinkError",
    "SinkWriter",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "Source",
    "SourceChangedError",
    "SourceReader",
    "SparkJobError",
    "Split",
    "SplitEnumerator",
    "SqlSink",
    "Stall",
    "StateDescriptor",
    "StateError",
    "StateTtlConfig",
    "StateVisibility",
    "StaticEnumerator",
    "StopTask",
    "StorageClaimedError",
    "StreamExecutionEnvironment",
    "Subscription",
    "TargetExistsError",
    "TaskMailbox",
    "TaskPressure",
    "TimeEvictor",
    "TimeWindow",
    "TimerService",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "TtlUpdate",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "UnsupportedColumnError",
    "UsageError",
    "UserFunctionError",
    "ValueState",
    "ValueStateDescriptor",
    "VertexPressure",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
    "WindowAssigner",
    "WindowState",
    "WindowedStream",
    "WorkerDiedError",
    "WorldError",
    "WrongTypeError",
    "__version__",
    "aggregates",
    "collect_list",
    "commutative",
    "count",
    "count_distinct",
    "current_call",
    "days",
    "dead_letter",
    "explain_window",
    "fail",
    "first",
    "hours",
    "last",
    "max_",
    "mean",
    "millis",
    "min_",
    "minutes",
    "pattern",
    "pipeline",
    "progress",
    "quantile",
    "restart",
    "run",
    "seconds",
    "skip",
    "sum_",
    "top_n",
    "tune_collector",
]

__version__ = "0.2.0.dev0"

# Public names behind an extra are not in __all__, so that a star import works bare.
_BEHIND_AN_EXTRA = (
    "ArrowSource",
    "ParquetSink",
    "SparkSource",
    "SparkStreamSource",
    "SparkTableSink",
)
# What only some programs need is imported when it is asked for.
_LATE = ("FileSink", "FileSource", "RedisSink", "SqlSink")


def __getattr__(name: str) -> Any:
    if name == "observe":
        return importlib.import_module("aiomailbox.observe")
    if name not in _BEHIND_AN_EXTRA and name not in _LATE:
        from aiomailbox.api.misnamed import no_such_export

        raise AttributeError(no_such_export(name, __dir__()))
    return getattr(_connectors, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_BEHIND_AN_EXTRA, "observe"})
