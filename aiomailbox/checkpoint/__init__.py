"""Checkpoints of a job: when they begin, whom they concern, and what becomes of them.

`CheckpointPlanner` takes every decision and does nothing; `CheckpointSettings` says how
often, and `CompletedCheckpoints` which of them are kept.
"""

from __future__ import annotations

from aiomailbox.checkpoint.failures import FailureCounter, FailureReason
from aiomailbox.checkpoint.plan import (
    CheckpointPlan,
    SubtaskState,
    plan_checkpoint,
)
from aiomailbox.checkpoint.planner import (
    Acknowledgement,
    CancelExpiry,
    CheckpointAction,
    CheckpointPlanner,
    DiscardCheckpoint,
    FailJob,
    FailRequest,
    Finalize,
    NotifyAborted,
    NotifyComplete,
    SetExpiry,
    SetPeriodicTimer,
    StartCheckpoint,
)
from aiomailbox.checkpoint.request import CheckpointRequest, RequestQueue
from aiomailbox.checkpoint.retention import CompletedCheckpoints
from aiomailbox.checkpoint.settings import CheckpointingMode, CheckpointSettings

__all__ = [
    "Acknowledgement",
    "CancelExpiry",
    "CheckpointAction",
    "CheckpointPlan",
    "CheckpointPlanner",
    "CheckpointRequest",
    "CheckpointSettings",
    "CheckpointingMode",
    "CompletedCheckpoints",
    "DiscardCheckpoint",
    "FailJob",
    "FailRequest",
    "FailureCounter",
    "FailureReason",
    "Finalize",
    "NotifyAborted",
    "NotifyComplete",
    "RequestQueue",
    "SetExpiry",
    "SetPeriodicTimer",
    "StartCheckpoint",
    "SubtaskState",
    "plan_checkpoint",
]
