"""Event time: watermarks, idleness, the valve, timers."""

from __future__ import annotations

from aiomailbox.eventtime.alignment import (
    AlignedReader,
    AlignmentGroup,
    AlignmentGroups,
)
from aiomailbox.eventtime.assigner import AssignerSpec, TimestampAssigner
from aiomailbox.eventtime.combined import (
    CombinedWatermark,
    InputWatermarks,
    PartialWatermark,
)
from aiomailbox.eventtime.generators import (
    BoundedOutOfOrderness,
    NoWatermarks,
    WatermarkGenerator,
    check_before_end_of_time,
    follow_run,
)
from aiomailbox.eventtime.idleness import RelativeClock, WithIdleness
from aiomailbox.eventtime.manual_time import ManualProcessingTimeService
from aiomailbox.eventtime.multiplexer import WatermarkOutputMultiplexer
from aiomailbox.eventtime.output import OutputGuard, WatermarkOutput
from aiomailbox.eventtime.processing_time import (
    NoTimers,
    Pending,
    ProcessingTimeCallback,
    ProcessingTimeService,
    TimerHandle,
)
from aiomailbox.eventtime.strategy import AlignmentConfig, WatermarkStrategy
from aiomailbox.eventtime.timer_queue import Timer, TimerQueue
from aiomailbox.eventtime.timers import (
    InternalTimerService,
    KeyContext,
    LoadedTimers,
    Piece,
    Results,
    TimerSnapshot,
    Triggerable,
    event_timers,
)
from aiomailbox.eventtime.valve import (
    StatusWatermarkValve,
    ValveOutput,
    ValveSnapshot,
)

__all__ = [
    "AlignedReader",
    "AlignmentConfig",
    "AlignmentGroup",
    "AlignmentGroups",
    "AssignerSpec",
    "BoundedOutOfOrderness",
    "CombinedWatermark",
    "InputWatermarks",
    "InternalTimerService",
    "KeyContext",
    "LoadedTimers",
    "ManualProcessingTimeService",
    "NoTimers",
    "NoWatermarks",
    "OutputGuard",
    "PartialWatermark",
    "Pending",
    "Piece",
    "ProcessingTimeCallback",
    "ProcessingTimeService",
    "RelativeClock",
    "Results",
    "StatusWatermarkValve",
    "Timer",
    "TimerHandle",
    "TimerQueue",
    "TimerSnapshot",
    "TimestampAssigner",
    "Triggerable",
    "ValveOutput",
    "ValveSnapshot",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkOutputMultiplexer",
    "WatermarkStrategy",
    "WithIdleness",
    "check_before_end_of_time",
    "event_timers",
    "follow_run",
]
