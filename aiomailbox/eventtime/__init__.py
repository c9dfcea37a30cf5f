"""Event time: watermarks, idleness, the valve, timers."""

from __future__ import annotations

from aiomailbox.eventtime.manual_time import ManualProcessingTimeService
from aiomailbox.eventtime.processing_time import (
    Pending,
    ProcessingTimeCallback,
    ProcessingTimeService,
    TimerHandle,
)
from aiomailbox.eventtime.timer_queue import Timer, TimerQueue
from aiomailbox.eventtime.timers import (
    InternalTimerService,
    KeyContext,
    TimerSnapshot,
    Triggerable,
)
from aiomailbox.eventtime.valve import StatusWatermarkValve, ValveOutput

__all__ = [
    "InternalTimerService",
    "KeyContext",
    "ManualProcessingTimeService",
    "Pending",
    "ProcessingTimeCallback",
    "ProcessingTimeService",
    "StatusWatermarkValve",
    "Timer",
    "TimerHandle",
    "TimerQueue",
    "TimerSnapshot",
    "Triggerable",
    "ValveOutput",
]
