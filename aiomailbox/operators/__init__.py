"""Operators: what they are, what they may use, and the ones without keys."""

from __future__ import annotations

from aiomailbox.operators.aggregates.commutative import commutative, is_commutative
from aiomailbox.operators.aggregates.distinct import count_distinct
from aiomailbox.operators.aggregates.first_last import first, last
from aiomailbox.operators.aggregates.functions import (
    Aggregate,
    Reduced,
    aggregates,
    can_merge,
    check_aggregate,
    collect_list,
    count,
    fields_read,
    is_async_aggregate,
    max_,
    mean,
    min_,
    sum_,
    warn_of_text,
    with_expressions,
)
from aiomailbox.operators.aggregates.quantile import quantile
from aiomailbox.operators.aggregates.result_record import result_type
from aiomailbox.operators.aggregates.top_n import TopN, top_n
from aiomailbox.operators.aggregates.undoable import Undoable
from aiomailbox.operators.aggregates.undoing import undoable
from aiomailbox.operators.async_io import AsyncCall, AsyncMapOperator, current_call
from aiomailbox.operators.async_state import (
    KeyedAsyncContext,
    KeyedAsyncProcessFunction,
    KeyedAsyncProcessOperator,
)
from aiomailbox.operators.core.blocked import BlockCause, Blocked
from aiomailbox.operators.core.callables import (
    CallableKind,
    callable_kind,
    check_function,
    check_methods,
    check_sync_function,
    collected,
    describe,
    is_async_callable,
    refuse_called,
    refuse_coroutine,
    refuse_coroutines,
    refuse_generator,
    refuse_none,
    shortened,
)
from aiomailbox.operators.core.checkpointed import (
    CheckpointedFunction,
    FunctionStateContext,
)
from aiomailbox.operators.core.collector import Collector, Mark
from aiomailbox.operators.core.context import (
    Handover,
    Limiter,
    RuntimeContext,
)
from aiomailbox.operators.core.contract import (
    Input,
    Operator,
    Output,
    Pending,
    awaited,
    in_turn,
    then,
)
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.hooks import (
    call_hook,
    ends_program,
    is_foreign,
    naming_hook,
    owner_of,
)
from aiomailbox.operators.core.input_selection import InputSelectable, InputSelection
from aiomailbox.operators.core.interruption import RunInterruption
from aiomailbox.operators.core.locate import (
    caller_location,
    is_own_line,
    is_users,
    user_location,
    users_line,
)
from aiomailbox.operators.core.misnamed import STATE_OF_ELSEWHERE, Context
from aiomailbox.operators.core.mutations import MutationCheck
from aiomailbox.operators.core.on_error import (
    USER_ERRORS,
    DeadLetter,
    ErrorAction,
    OnError,
    check_on_error,
    dead_letter,
    fail,
    is_closing,
    raise_as,
    skip,
)
from aiomailbox.operators.core.open_calls import OpenCall, OpenCalls
from aiomailbox.operators.core.pieces import Pieces, done_after, in_pieces
from aiomailbox.operators.core.record_fields import RecordFields
from aiomailbox.operators.core.repeated import RepeatedWarnings
from aiomailbox.operators.core.resources import FunctionLife
from aiomailbox.operators.core.rows_note import RowsNote, noting
from aiomailbox.operators.core.selectors import (
    Expression,
    ExpressionSelector,
    FieldSelector,
    FieldsSelector,
    SelectorWhere,
    field_or_function,
    is_expression,
)
from aiomailbox.operators.core.two_input import TwoInputOperator
from aiomailbox.operators.core.watched import (
    WatchedOutput,
    collector_for,
    watched_input,
    watched_write,
)
from aiomailbox.operators.functions.broadcast import (
    BroadcastProcessFunction,
    BroadcastProcessOperator,
    KeyedBroadcastProcessFunction,
    KeyedBroadcastProcessOperator,
    check_descriptors,
)
from aiomailbox.operators.functions.broadcast_context import (
    BroadcastContext,
    KeyedBroadcastContext,
    KeyedReadOnlyContext,
    ReadOnlyContext,
)
from aiomailbox.operators.functions.calls import (
    check_function_object,
    check_process_method,
)
from aiomailbox.operators.functions.co import (
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessFunction,
    CoProcessOperator,
)
from aiomailbox.operators.functions.function_state import check_state_names
from aiomailbox.operators.functions.keyed import (
    KeyedProcessFunction,
    KeyedProcessOperator,
)
from aiomailbox.operators.functions.keyed_co import (
    KeyedCoProcessFunction,
    KeyedCoProcessOperator,
)
from aiomailbox.operators.functions.keyed_context import (
    KeyedProcessContext,
    TimeDomain,
    TimerService,
)
from aiomailbox.operators.functions.process import (
    ProcessFunction,
    ProcessOperator,
)
from aiomailbox.operators.functions.process_context import ProcessContext
from aiomailbox.operators.joins.as_of import AsOfJoinOperator
from aiomailbox.operators.joins.function import (
    ProcessJoinContext,
    ProcessJoinFunction,
    check_join_function,
    pair,
)
from aiomailbox.operators.joins.interval import IntervalJoinOperator
from aiomailbox.operators.joins.lookup import LookupJoinOperator
from aiomailbox.operators.keyed.key_reader import KeyCheck, KeyReader
from aiomailbox.operators.keyed.operators import (
    KeyedAggregateOperator,
    KeyedReduceOperator,
    KeySelector,
)
from aiomailbox.operators.keyed.stateful import Layered, StatefulOperator
from aiomailbox.operators.sinks.guarantee import Guarantee, guarantee_of
from aiomailbox.operators.sinks.operator import SinkOperator
from aiomailbox.operators.sinks.sink import (
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
)
from aiomailbox.operators.snapshots import (
    HeldElement,
    OperatorSnapshot,
    SnapshotDescription,
    StateDescription,
    decode_snapshot,
    decode_state,
    describe_snapshot,
    encode_snapshot,
    held_elements,
    redistribute,
    snapshot_chunks,
    with_held_elements,
)
from aiomailbox.operators.sources.operator import SourceMode, SourceOperator
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
    SplitOutput,
    StaticEnumerator,
    check_positions,
    describe_replay,
    is_replayable,
    record_count_of,
)
from aiomailbox.operators.stateless.async_operator import AsyncStatelessOperator
from aiomailbox.operators.stateless.fused_source import StageKind
from aiomailbox.operators.stateless.fusion import FusedOperator, fused
from aiomailbox.operators.stateless.operators import (
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    StatelessOperator,
    stateless,
)
from aiomailbox.operators.stateless.thread_operator import (
    ThreadOperator,
    check_run_in,
)
from aiomailbox.operators.stateless.timestamps import TimestampsAndWatermarksOperator
from aiomailbox.operators.useful import (
    BatchOperator,
    BufferOperator,
    BufferPolicy,
    DeduplicateOperator,
    Match,
    MatchOperator,
    Pattern,
    SampleOperator,
    WithLatestOperator,
    pattern,
)

__all__ = [
    "STATE_OF_ELSEWHERE",
    "USER_ERRORS",
    "Aggregate",
    "AsOfJoinOperator",
    "AsyncCall",
    "AsyncMapOperator",
    "AsyncStatelessOperator",
    "BatchOperator",
    "BlockCause",
    "Blocked",
    "Boundedness",
    "BroadcastContext",
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
    "Committer",
    "CommitterContext",
    "Context",
    "DeadLetter",
    "DeduplicateOperator",
    "EnumeratorContext",
    "ErrorAction",
    "Expression",
    "ExpressionSelector",
    "FieldSelector",
    "FieldsSelector",
    "FilterOperator",
    "FlatMapOperator",
    "FunctionLife",
    "FunctionStateContext",
    "FusedOperator",
    "Guarantee",
    "Handover",
    "HeldElement",
    "Input",
    "InputSelectable",
    "InputSelection",
    "InputStatus",
    "IntervalJoinOperator",
    "KeyCheck",
    "KeyReader",
    "KeySelector",
    "KeyedAggregateOperator",
    "KeyedAsyncContext",
    "KeyedAsyncProcessFunction",
    "KeyedAsyncProcessOperator",
    "KeyedBroadcastContext",
    "KeyedBroadcastProcessFunction",
    "KeyedBroadcastProcessOperator",
    "KeyedCoProcessFunction",
    "KeyedCoProcessOperator",
    "KeyedProcessContext",
    "KeyedProcessFunction",
    "KeyedProcessOperator",
    "KeyedReadOnlyContext",
    "KeyedReduceOperator",
    "Layered",
    "Limiter",
    "LookupJoinOperator",
    "MapOperator",
    "Mark",
    "Match",
    "MatchOperator",
    "MutationCheck",
    "OnError",
    "OpenCall",
    "OpenCalls",
    "Operator",
    "OperatorSnapshot",
    "Output",
    "Pattern",
    "Pending",
    "Pieces",
    "ProcessContext",
    "ProcessFunction",
    "ProcessJoinContext",
    "ProcessJoinFunction",
    "ProcessOperator",
    "ReadOnlyContext",
    "ReaderContext",
    "ReaderOutput",
    "RecordFailures",
    "RecordFields",
    "Reduced",
    "RepeatedWarnings",
    "RowsNote",
    "RunInterruption",
    "RuntimeContext",
    "SampleOperator",
    "SelectorWhere",
    "Sink",
    "SinkOperator",
    "SinkWriter",
    "SnapshotDescription",
    "Source",
    "SourceMode",
    "SourceOperator",
    "SourceReader",
    "Split",
    "SplitEnumerator",
    "SplitOutput",
    "StageKind",
    "StateDescription",
    "StatefulOperator",
    "StatelessOperator",
    "StaticEnumerator",
    "ThreadOperator",
    "TimeDomain",
    "TimerService",
    "TimestampsAndWatermarksOperator",
    "TopN",
    "TwoInputOperator",
    "Undoable",
    "WatchedOutput",
    "WithLatestOperator",
    "aggregates",
    "awaited",
    "call_hook",
    "callable_kind",
    "caller_location",
    "can_merge",
    "check_aggregate",
    "check_descriptors",
    "check_function",
    "check_function_object",
    "check_join_function",
    "check_methods",
    "check_on_error",
    "check_positions",
    "check_process_method",
    "check_run_in",
    "check_state_names",
    "check_sync_function",
    "collect_list",
    "collected",
    "collector_for",
    "commutative",
    "count",
    "count_distinct",
    "current_call",
    "dead_letter",
    "decode_snapshot",
    "decode_state",
    "describe",
    "describe_replay",
    "describe_snapshot",
    "done_after",
    "encode_snapshot",
    "ends_program",
    "fail",
    "field_or_function",
    "fields_read",
    "first",
    "fused",
    "guarantee_of",
    "held_elements",
    "in_pieces",
    "in_turn",
    "is_async_aggregate",
    "is_async_callable",
    "is_closing",
    "is_commutative",
    "is_expression",
    "is_foreign",
    "is_own_line",
    "is_replayable",
    "is_users",
    "last",
    "max_",
    "mean",
    "min_",
    "naming_hook",
    "noting",
    "owner_of",
    "pair",
    "pattern",
    "quantile",
    "raise_as",
    "record_count_of",
    "redistribute",
    "refuse_called",
    "refuse_coroutine",
    "refuse_coroutines",
    "refuse_generator",
    "refuse_none",
    "result_type",
    "shortened",
    "skip",
    "snapshot_chunks",
    "stateless",
    "sum_",
    "then",
    "top_n",
    "undoable",
    "user_location",
    "users_line",
    "warn_of_text",
    "watched_input",
    "watched_write",
    "with_expressions",
    "with_held_elements",
]
