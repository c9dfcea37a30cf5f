"""Running jobs: tasks on this loop, job-wide services, the end of it all."""

from aiomailbox.runtime.backpressure import (
    BackpressureLevel,
    BackpressureReport,
    TaskPressure,
    VertexPressure,
    backpressure_of,
    find_bottleneck,
    report_backpressure,
)
from aiomailbox.runtime.config import IfFinished, JobConfig, JobLifecycle, JobState
from aiomailbox.runtime.coordinator import CheckpointCoordinator
from aiomailbox.runtime.deployment import Deployment, Embedded, new_embedded_job
from aiomailbox.runtime.diagnosis import Bottleneck
from aiomailbox.runtime.exchange_plan import AttemptPlan
from aiomailbox.runtime.failures import users_part
from aiomailbox.runtime.host import AttemptEvents, EmbeddedHost
from aiomailbox.runtime.job_snapshot import (
    SNAPSHOT_VERSION,
    CheckpointSummary,
    EdgeSummary,
    FailureSummary,
    JobMetrics,
    JobSnapshot,
    OperatorSummary,
    VertexSummary,
)
from aiomailbox.runtime.loop_watch import Stall
from aiomailbox.runtime.master import JobMaster, JobResult
from aiomailbox.runtime.observer import JobObserver, snapshot_after
from aiomailbox.runtime.services import CountingHandover, JobServices, PullHandover
from aiomailbox.runtime.stuck_watch import await_tree
from aiomailbox.runtime.views import (
    ChannelView,
    CheckpointView,
    CompletedCheckpoint,
    OperatorView,
    TaskView,
    place_of_savepoint,
    record_totals,
)

__all__ = [
    "SNAPSHOT_VERSION",
    "AttemptEvents",
    "AttemptPlan",
    "BackpressureLevel",
    "BackpressureReport",
    "Bottleneck",
    "ChannelView",
    "CheckpointCoordinator",
    "CheckpointSummary",
    "CheckpointView",
    "CompletedCheckpoint",
    "CountingHandover",
    "Deployment",
    "EdgeSummary",
    "Embedded",
    "EmbeddedHost",
    "FailureSummary",
    "IfFinished",
    "JobConfig",
    "JobLifecycle",
    "JobMaster",
    "JobMetrics",
    "JobObserver",
    "JobResult",
    "JobServices",
    "JobSnapshot",
    "JobState",
    "OperatorSummary",
    "OperatorView",
    "PullHandover",
    "Stall",
    "TaskPressure",
    "TaskView",
    "VertexPressure",
    "VertexSummary",
    "await_tree",
    "backpressure_of",
    "find_bottleneck",
    "new_embedded_job",
    "place_of_savepoint",
    "record_totals",
    "report_backpressure",
    "snapshot_after",
    "users_part",
]
