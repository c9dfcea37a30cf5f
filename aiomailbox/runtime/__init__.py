"""Running jobs: tasks on this loop, job-wide services, the end of it all."""

from aiomailbox.runtime.await_tree import await_tree
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.deployment import Deployment, Embedded
from aiomailbox.runtime.handover import PullHandover
from aiomailbox.runtime.job import Job, JobResult
from aiomailbox.runtime.lifecycle import JobLifecycle, JobState

__all__ = [
    "Deployment",
    "Embedded",
    "Job",
    "JobConfig",
    "JobLifecycle",
    "JobResult",
    "JobState",
    "PullHandover",
    "await_tree",
]
