"""Checkpoint barriers at a task: what they mean when there are several channels.

`CheckpointBarrierHandler` is for exactly once, aligned or not; `CheckpointBarrierTracker`
for at least once. Both are pure: they decide, and return `Action` values.
"""

from __future__ import annotations

from aiomailbox.barriers.actions import (
    Abort,
    Action,
    AlignmentCompleted,
    AlignmentFailed,
    CancelAlignmentTimer,
    ChannelInfo,
    DeclineReason,
    InitInputs,
    Prioritize,
    ResumeChannel,
    SetAlignmentTimer,
    StartPersisting,
    StopPersisting,
    Trigger,
)
from aiomailbox.barriers.handler import CheckpointBarrierHandler
from aiomailbox.barriers.machine import AlignmentMachine, AlignmentState
from aiomailbox.barriers.statistics import AlignmentMeter, AlignmentStatistics
from aiomailbox.barriers.tracker import CheckpointBarrierTracker

__all__ = [
    "Abort",
    "Action",
    "AlignmentCompleted",
    "AlignmentFailed",
    "AlignmentMachine",
    "AlignmentMeter",
    "AlignmentState",
    "AlignmentStatistics",
    "CancelAlignmentTimer",
    "ChannelInfo",
    "CheckpointBarrierHandler",
    "CheckpointBarrierTracker",
    "DeclineReason",
    "InitInputs",
    "Prioritize",
    "ResumeChannel",
    "SetAlignmentTimer",
    "StartPersisting",
    "StopPersisting",
    "Trigger",
]
