"""Windows over keyed streams: assigners, triggers, evictors, and the operators."""

from __future__ import annotations

from aiomailbox.windowing.assigners import (
    GlobalWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
    WindowStagger,
)
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.co_group import (
    CoGroupFunction,
    JoinFunction,
    SidedKey,
    mark_first,
    mark_second,
)
from aiomailbox.windowing.continuous import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
)
from aiomailbox.windowing.evictors import (
    CountEvictor,
    DeltaEvictor,
    Evictor,
    TimeEvictor,
)
from aiomailbox.windowing.explain import WindowExplanation, explain_window
from aiomailbox.windowing.failures import FailedWindow
from aiomailbox.windowing.functions import (
    ProcessWindowContext,
    ProcessWindowFunction,
    WindowState,
)
from aiomailbox.windowing.merging import MergingWindowSet
from aiomailbox.windowing.open_sessions import FIRED, GONE, OPEN
from aiomailbox.windowing.open_windows import WindowRows
from aiomailbox.windowing.operator import WindowOperator
from aiomailbox.windowing.panes import PanedAggregateOperator
from aiomailbox.windowing.running_merge import RunningMerge
from aiomailbox.windowing.session_aggregate import SessionAggregateOperator
from aiomailbox.windowing.sessions import (
    EventTimeSessionWindows,
    MergingWindowAssigner,
    ProcessingTimeSessionWindows,
)
from aiomailbox.windowing.sliding import SlidingAggregateOperator
from aiomailbox.windowing.time_window import (
    GLOBAL_WINDOW,
    GlobalWindow,
    MergedWindows,
    TimeWindow,
    Window,
    merge_windows,
    window_start,
)
from aiomailbox.windowing.trigger import Trigger, TriggerContext, TriggerResult
from aiomailbox.windowing.triggers import (
    CountTrigger,
    DeltaTrigger,
    EndOfStreamTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
)
from aiomailbox.windowing.tumbling import (
    AggregateWindowsOperator,
    TumblingAggregateOperator,
)
from aiomailbox.windowing.window_join import WindowJoinOperator
from aiomailbox.windowing.window_spec import WindowSpec, key_function

__all__ = [
    "FIRED",
    "GLOBAL_WINDOW",
    "GONE",
    "OPEN",
    "AggregateWindowsOperator",
    "CoGroupFunction",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountEvictor",
    "CountTrigger",
    "DeltaEvictor",
    "DeltaTrigger",
    "EndOfStreamTrigger",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "FailedWindow",
    "GlobalWindow",
    "GlobalWindows",
    "JoinFunction",
    "MergedWindows",
    "MergingWindowAssigner",
    "MergingWindowSet",
    "NeverTrigger",
    "PanedAggregateOperator",
    "ProcessWindowContext",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "RunningMerge",
    "SessionAggregateOperator",
    "SidedKey",
    "SlidingAggregateOperator",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "TimeEvictor",
    "TimeWindow",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "TumblingAggregateOperator",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "Window",
    "WindowAssigner",
    "WindowExplanation",
    "WindowJoinOperator",
    "WindowOperator",
    "WindowRows",
    "WindowSpec",
    "WindowStagger",
    "WindowState",
    "explain_window",
    "key_function",
    "mark_first",
    "mark_second",
    "merge_windows",
    "window_operator",
    "window_start",
]
