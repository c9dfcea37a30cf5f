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
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.deployment import Deployment, Embedded
from aiomailbox.runtime.handover import PullHandover
from aiomailbox.runtime.job import Job, JobResult
from aiomailbox.runtime.lifecycle import JobLifecycle, JobState

__all__ = [
    "BackpressureLevel",
    "BackpressureReport",
    "Deployment",
    "Embedded",
    "Job",
    "JobConfig",
    "JobLifecycle",
    "JobResult",
    "JobState",
    "PullHandover",
    "TaskPressure",
    "VertexPressure",
    "await_tree",
    "backpressure_of",
    "find_bottleneck",
    "report_backpressure",
]
