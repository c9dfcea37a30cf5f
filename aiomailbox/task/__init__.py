"""Tasks: a chain of operators on a mailbox, with its inputs and outputs."""

from aiomailbox.task.chain import OperatorChain
from aiomailbox.task.channel_state import TaskChannels
from aiomailbox.task.checkpointing import CheckpointResponder, TaskStatistics
from aiomailbox.task.environment import TaskCheckpointing, TaskEnvironment
from aiomailbox.task.lifecycle import TaskLifecycle, TaskState
from aiomailbox.task.place import failure_of, place_of
from aiomailbox.task.plan import OperatorPlan, OutgoingEdge, TaskPlan
from aiomailbox.task.snapshot import Prepared, TaskSnapshot
from aiomailbox.task.stream_task import StreamTask
from aiomailbox.task.waits import waits_of

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
