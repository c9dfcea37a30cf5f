"""Operators: what they are, what they may use, and the ones without keys."""

from __future__ import annotations

from aiomailbox.operators.async_stateless import AsyncStatelessOperator
from aiomailbox.operators.callables import (
    CallableKind,
    callable_kind,
    check_function,
    check_sync_function,
    describe,
    is_async_callable,
)
from aiomailbox.operators.co_operator import (
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessFunction,
    CoProcessOperator,
)
from aiomailbox.operators.collector import Collector
from aiomailbox.operators.context import (
    Committables,
    Handover,
    Journal,
    Limiter,
    RuntimeContext,
)
from aiomailbox.operators.contract import Input, Operator, Output, Pending, then
from aiomailbox.operators.fused_source import StageKind
from aiomailbox.operators.fusion import FusedOperator, fuse
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
from aiomailbox.operators.selectors import FieldSelector, field_or_function
from aiomailbox.operators.sink import Committer, Sink, SinkWriter
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
from aiomailbox.operators.stateless import (
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    StatelessOperator,
    stateless,
)
from aiomailbox.operators.timestamps import TimestampsAndWatermarksOperator
from aiomailbox.operators.two_input import TwoInputOperator

__all__ = [
    "AsyncStatelessOperator",
    "Boundedness",
    "CallableKind",
    "CoFlatMapOperator",
    "CoMapOperator",
    "CoProcessFunction",
    "CoProcessOperator",
    "Collector",
    "Committables",
    "Committer",
    "DeadLetter",
    "ElementCalls",
    "EnumeratorContext",
    "ErrorAction",
    "FieldSelector",
    "FilterOperator",
    "FlatMapOperator",
    "FusedOperator",
    "Handover",
    "Input",
    "InputStatus",
    "Journal",
    "Limiter",
    "MapOperator",
    "OnError",
    "Operator",
    "Output",
    "Pending",
    "ProcessContext",
    "ProcessFunction",
    "ProcessOperator",
    "ReaderContext",
    "ReaderOutput",
    "RecordFailures",
    "RuntimeContext",
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
    "StatelessOperator",
    "StaticEnumerator",
    "TimestampsAndWatermarksOperator",
    "TwoInputOperator",
    "callable_kind",
    "check_function",
    "check_on_error",
    "check_process_method",
    "check_sync_function",
    "dead_letter",
    "describe",
    "fail",
    "field_or_function",
    "fuse",
    "is_async_callable",
    "skip",
    "stateless",
    "then",
    "user_location",
]
