"""Running jobs: tasks on this loop, job-wide services, the end of it all."""

from aiomailbox.runtime.attempt_plan import AttemptPlan
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
from aiomailbox.runtime.deployment import Deployment, Embedded, new_embedded_job
from aiomailbox.runtime.handover import PullHandover
from aiomailbox.runtime.host import AttemptEvents, EmbeddedHost
from aiomailbox.runtime.lifecycle import JobLifecycle, JobState
from aiomailbox.runtime.master import JobMaster, JobResult
from aiomailbox.runtime.planned import planned_operators
from aiomailbox.runtime.services import JobServices

__all__ = [
    "AttemptEvents",
    "AttemptPlan",
    "BackpressureLevel",
    "BackpressureReport",
    "CheckpointCoordinator",
    "CheckpointView",
    "CompletedCheckpoint",
    "Deployment",
    "Embedded",
    "EmbeddedHost",
    "JobConfig",
    "JobLifecycle",
    "JobMaster",
    "JobResult",
    "JobServices",
    "JobState",
    "PullHandover",
    "TaskPressure",
    "VertexPressure",
    "await_tree",
    "backpressure_of",
    "find_bottleneck",
    "new_embedded_job",
    "place_of_savepoint",
    "planned_operators",
    "report_backpressure",
]
