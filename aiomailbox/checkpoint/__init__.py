"""Checkpoints of a job: when they begin, which tasks take part, what becomes of them.

`CheckpointPlanner` takes every decision and does nothing; `CheckpointSettings` says how
often, and `CompletedCheckpoints` which of them are kept. `CheckpointWriter` writes what
tasks resume from, and `CheckpointStore` makes it count, and reads it again.
"""

from __future__ import annotations

from aiomailbox.checkpoint.catalog import (
    FoundCheckpoint,
    delete_checkpoint,
    find_checkpoints,
)
from aiomailbox.checkpoint.failures import FailureCounter, FailureReason
from aiomailbox.checkpoint.handles import PreparedData, TaskHandle
from aiomailbox.checkpoint.layout import job_directory
from aiomailbox.checkpoint.metadata import (
    CheckpointMetadata,
    OperatorInfo,
    VertexMetadata,
    describe_vertices,
)
from aiomailbox.checkpoint.plan import (
    CheckpointPlan,
    SubtaskState,
    loses_union_state,
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
from aiomailbox.checkpoint.reader import (
    CheckpointFiles,
    RestoredCommittables,
    RestoredJob,
)
from aiomailbox.checkpoint.request import CheckpointRequest, RequestQueue
from aiomailbox.checkpoint.restored import (
    JobSnapshot,
    RestoredTasks,
    finished_tasks,
    job_snapshot,
    received,
    restored_tasks,
    sent,
)
from aiomailbox.checkpoint.retention import CompletedCheckpoints
from aiomailbox.checkpoint.savepoint import Savepoint, SavepointOperator
from aiomailbox.checkpoint.settings import (
    MEMORY_THRESHOLD,
    CheckpointingMode,
    CheckpointSettings,
    Retention,
)
from aiomailbox.checkpoint.store import LATEST, CheckpointStore
from aiomailbox.checkpoint.task_bytes import decode_prepared
from aiomailbox.checkpoint.writer import CheckpointWriter

__all__ = [
    "LATEST",
    "MEMORY_THRESHOLD",
    "Acknowledgement",
    "CancelExpiry",
    "CheckpointAction",
    "CheckpointFiles",
    "CheckpointMetadata",
    "CheckpointPlan",
    "CheckpointPlanner",
    "CheckpointRequest",
    "CheckpointSettings",
    "CheckpointStore",
    "CheckpointWriter",
    "CheckpointingMode",
    "CompletedCheckpoints",
    "DiscardCheckpoint",
    "FailJob",
    "FailRequest",
    "FailureCounter",
    "FailureReason",
    "Finalize",
    "FoundCheckpoint",
    "JobSnapshot",
    "NotifyAborted",
    "NotifyComplete",
    "OperatorInfo",
    "PreparedData",
    "RequestQueue",
    "RestoredCommittables",
    "RestoredJob",
    "RestoredTasks",
    "Retention",
    "Savepoint",
    "SavepointOperator",
    "SetExpiry",
    "SetPeriodicTimer",
    "StartCheckpoint",
    "SubtaskState",
    "TaskHandle",
    "VertexMetadata",
    "decode_prepared",
    "delete_checkpoint",
    "describe_vertices",
    "find_checkpoints",
    "finished_tasks",
    "job_directory",
    "job_snapshot",
    "loses_union_state",
    "plan_checkpoint",
    "received",
    "restored_tasks",
    "sent",
]
