"""Tasks: a chain of operators on a mailbox, with its inputs and outputs."""

from aiomailbox.task.chain import OperatorChain
from aiomailbox.task.environment import (
    OperatorPlan,
    OutgoingEdge,
    TaskCheckpointing,
    TaskEnvironment,
    TaskPlan,
)
from aiomailbox.task.in_flight import (
    CheckpointResponder,
    Prepared,
    TaskChannels,
    TaskSnapshot,
    TaskStatistics,
)
from aiomailbox.task.stream_task import (
    StreamTask,
    TaskLifecycle,
    TaskState,
    failure_of,
    place_of,
)
from aiomailbox.task.task_metrics import waits_of

__all__ = [
    "CheckpointResponder",
    "OperatorChain",
    "OperatorPlan",
    "OutgoingEdge",
    "Prepared",
    "StreamTask",
    "TaskChannels",
    "TaskCheckpointing",
    "TaskEnvironment",
    "TaskLifecycle",
    "TaskPlan",
    "TaskSnapshot",
    "TaskState",
    "TaskStatistics",
    "failure_of",
    "place_of",
    "waits_of",
]
