"""Running jobs: tasks on this loop, job-wide services, the end of it all."""

from aiomailbox.runtime.await_tree import await_tree
from aiomailbox.runtime.backpressure import (
    BackpressureReport,
    VertexPressure,
    backpressure_of,
    report_backpressure,
)
from aiomailbox.runtime.bottleneck import (
    BackpressureLevel,
    TaskPressure,
    find_bottleneck,
)
from aiomailbox.runtime.checkpoint_views import (
    CheckpointView,
    CompletedCheckpoint,
    place_of_savepoint,
)
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.coordinator import CheckpointCoordinator
from aiomailbox.runtime.deployment import Deployment, Embedded
from aiomailbox.runtime.handover import PullHandover
from aiomailbox.runtime.lifecycle import JobLifecycle, JobState
from aiomailbox.runtime.master import JobMaster, JobResult
from aiomailbox.runtime.planned import planned_operators

__all__ = [
    "BackpressureLevel",
    "BackpressureReport",
    "CheckpointCoordinator",
    "CheckpointView",
    "CompletedCheckpoint",
    "Deployment",
    "Embedded",
    "JobConfig",
    "JobLifecycle",
    "JobMaster",
    "JobResult",
    "JobState",
    "PullHandover",
    "TaskPressure",
    "VertexPressure",
    "await_tree",
    "backpressure_of",
    "find_bottleneck",
    "place_of_savepoint",
    "planned_operators",
    "report_backpressure",
]
