"""Operators: what they are, what they may use, and the ones without keys."""

from __future__ import annotations

from aiomailbox.operators.aggregates import (
    Aggregate,
    aggregates,
    can_merge,
    check_aggregate,
    collect_list,
    count,
    is_async_aggregate,
    max_,
    mean,
    min_,
    sum_,
)
from aiomailbox.operators.as_of_join import AsOfJoinOperator
from aiomailbox.operators.async_io import AsyncMapOperator, LookupJoinOperator
from aiomailbox.operators.async_state import (
    KeyedAsyncContext,
    KeyedAsyncProcessFunction,
    KeyedAsyncProcessOperator,
)
from aiomailbox.operators.async_stateless import AsyncStatelessOperator
from aiomailbox.operators.broadcast import (
    BroadcastProcessFunction,
    BroadcastProcessOperator,
    KeyedBroadcastProcessFunction,
    KeyedBroadcastProcessOperator,
    check_descriptors,
)
from aiomailbox.operators.callables import (
    CallableKind,
    callable_kind,
    check_function,
    check_sync_function,
    describe,
    is_async_callable,
    refuse_coroutine,
    shortened,
)
from aiomailbox.operators.checkpointed import (
    CheckpointedFunction,
    FunctionStateContext,
)
from aiomailbox.operators.co_operator import (
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessFunction,
    CoProcessOperator,
)
from aiomailbox.operators.collector import Collector
from aiomailbox.operators.commutative import commutative, is_commutative
from aiomailbox.operators.context import (
    Committables,
    Handover,
    Journal,
    Limiter,
    RuntimeContext,
)
from aiomailbox.operators.contract import (
    Input,
    Operator,
    OperatorSnapshot,
    Output,
    Pending,
    then,
)
from aiomailbox.operators.function_state import check_state_names
from aiomailbox.operators.fused_source import StageKind
from aiomailbox.operators.fusion import FusedOperator, fuse
from aiomailbox.operators.hooks import is_foreign, naming_hook
from aiomailbox.operators.input_selection import InputSelectable, InputSelection
from aiomailbox.operators.interval_join import IntervalJoinOperator
from aiomailbox.operators.join_function import (
    ProcessJoinContext,
    ProcessJoinFunction,
    check_join_function,
    pair,
)
from aiomailbox.operators.key_reader import KeyCheck, KeyReader
from aiomailbox.operators.keyed import (
    KeyedAggregateOperator,
    KeyedReduceOperator,
    KeySelector,
)
from aiomailbox.operators.keyed_co_process import (
    KeyedCoProcessFunction,
    KeyedCoProcessOperator,
)
from aiomailbox.operators.keyed_context import (
    KeyedProcessContext,
    TimeDomain,
    TimerService,
)
from aiomailbox.operators.keyed_process import (
    KeyedProcessFunction,
    KeyedProcessOperator,
)
from aiomailbox.operators.locate import user_location
from aiomailbox.operators.on_error import (
    DeadLetter,
    ErrorAction,
    OnError,
    check_on_error,
    dead_letter,
    fail,
    skip,
)
from aiomailbox.operators.process import (
    ElementCalls,
    ProcessFunction,
    ProcessOperator,
    check_process_method,
)
from aiomailbox.operators.process_context import ProcessContext
from aiomailbox.operators.record_failures import RecordFailures
from aiomailbox.operators.record_fields import RecordFields
from aiomailbox.operators.resource import FunctionLife
from aiomailbox.operators.result_record import result_type
from aiomailbox.operators.selectors import FieldSelector, field_or_function
from aiomailbox.operators.sink import Committer, CommitterContext, Sink, SinkWriter
from aiomailbox.operators.sink_operator import SinkOperator, SinkState
from aiomailbox.operators.source import (
    Boundedness,
    EnumeratorContext,
    InputStatus,
    ReaderContext,
    ReaderOutput,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
    SplitOutput,
    StaticEnumerator,
)
from aiomailbox.operators.source_operator import SourceMode, SourceOperator
from aiomailbox.operators.stateful import StatefulOperator, StatefulSnapshot
from aiomailbox.operators.stateless import (
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    StatelessOperator,
    stateless,
)
from aiomailbox.operators.timestamps import TimestampsAndWatermarksOperator
from aiomailbox.operators.two_input import TwoInputOperator
from aiomailbox.operators.useful import (
    BatchOperator,
    BufferOperator,
    BufferPolicy,
    DeduplicateOperator,
    Match,
    MatchOperator,
    Pattern,
    SampleOperator,
    TopN,
    WithLatestOperator,
    count_distinct,
    first,
    last,
    pattern,
    quantile,
    top_n,
)

__all__ = [
    "Aggregate",
    "AsOfJoinOperator",
    "AsyncMapOperator",
    "AsyncStatelessOperator",
    "BatchOperator",
    "Boundedness",
    "BroadcastProcessFunction",
    "BroadcastProcessOperator",
    "BufferOperator",
    "BufferPolicy",
    "CallableKind",
    "CheckpointedFunction",
    "CoFlatMapOperator",
    "CoMapOperator",
    "CoProcessFunction",
    "CoProcessOperator",
    "Collector",
    "Committables",
    "Committer",
    "CommitterContext",
    "DeadLetter",
    "DeduplicateOperator",
    "ElementCalls",
    "EnumeratorContext",
    "ErrorAction",
    "FieldSelector",
    "FilterOperator",
    "FlatMapOperator",
    "FunctionLife",
    "FunctionStateContext",
    "FusedOperator",
    "Handover",
    "Input",
    "InputSelectable",
    "InputSelection",
    "InputStatus",
    "IntervalJoinOperator",
    "Journal",
    "KeyCheck",
    "KeyReader",
    "KeySelector",
    "KeyedAggregateOperator",
    "KeyedAsyncContext",
    "KeyedAsyncProcessFunction",
    "KeyedAsyncProcessOperator",
    "KeyedBroadcastProcessFunction",
    "KeyedBroadcastProcessOperator",
    "KeyedCoProcessFunction",
    "KeyedCoProcessOperator",
    "KeyedProcessContext",
    "KeyedProcessFunction",
    "KeyedProcessOperator",
    "KeyedReduceOperator",
    "Limiter",
    "LookupJoinOperator",
    "MapOperator",
    "Match",
    "MatchOperator",
    "OnError",
    "Operator",
    "OperatorSnapshot",
    "Output",
    "Pattern",
    "Pending",
    "ProcessContext",
    "ProcessFunction",
    "ProcessJoinContext",
    "ProcessJoinFunction",
    "ProcessOperator",
    "ReaderContext",
    "ReaderOutput",
    "RecordFailures",
    "RecordFields",
    "RuntimeContext",
    "SampleOperator",
    "Sink",
    "SinkOperator",
    "SinkState",
    "SinkWriter",
    "Source",
    "SourceMode",
    "SourceOperator",
    "SourceReader",
    "Split",
    "SplitEnumerator",
    "SplitOutput",
    "StageKind",
    "StatefulOperator",
    "StatefulSnapshot",
    "StatelessOperator",
    "StaticEnumerator",
    "TimeDomain",
    "TimerService",
    "TimestampsAndWatermarksOperator",
    "TopN",
    "TwoInputOperator",
    "WithLatestOperator",
    "aggregates",
    "callable_kind",
    "can_merge",
    "check_aggregate",
    "check_descriptors",
    "check_function",
    "check_join_function",
    "check_on_error",
    "check_process_method",
    "check_state_names",
    "check_sync_function",
    "collect_list",
    "commutative",
    "count",
    "count_distinct",
    "dead_letter",
    "describe",
    "fail",
    "field_or_function",
    "first",
    "fuse",
    "is_async_aggregate",
    "is_async_callable",
    "is_commutative",
    "is_foreign",
    "last",
    "max_",
    "mean",
    "min_",
    "naming_hook",
    "pair",
    "pattern",
    "quantile",
    "refuse_coroutine",
    "result_type",
    "shortened",
    "skip",
    "stateless",
    "sum_",
    "then",
    "top_n",
    "user_location",
]
