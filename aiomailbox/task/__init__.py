"""Tasks: a chain of operators on a mailbox, with its inputs and outputs."""

from aiomailbox.task.chain import OperatorChain
from aiomailbox.task.environment import TaskEnvironment
from aiomailbox.task.lifecycle import TaskLifecycle, TaskState
from aiomailbox.task.place import place_of
from aiomailbox.task.plan import OperatorPlan, OutgoingEdge, TaskPlan
from aiomailbox.task.snapshot import TaskSnapshot
from aiomailbox.task.stream_task import StreamTask

__all__ = [
    "OperatorChain",
    "OperatorPlan",
    "OutgoingEdge",
    "StreamTask",
    "TaskEnvironment",
    "TaskLifecycle",
    "TaskPlan",
    "TaskSnapshot",
    "TaskState",
    "place_of",
]
