"""One look at a task: its state, its numbers, where its code stands.

A view is a value: it can be taken in one process and looked at in another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiomailbox.metrics import MetricValue
from aiomailbox.operators import OpenCalls
from aiomailbox.supervision import frames_of
from aiomailbox.task import StreamTask, waits_of

__all__ = ["OperatorView", "TaskView", "view_of"]

# Of each operator; a worker sends them four times a second.
_CALLS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class OperatorView:
    """The metrics of one operator of a task.

    Attributes:
        name: The operator's name, unique in its task.
        metrics: What it measured so far.
        calls: The asynchronous calls that it has begun, the oldest of them; None if it
            makes none, or nobody asked for them.
    """

    name: str
    metrics: dict[str, MetricValue]
    calls: OpenCalls | None = None


@dataclass(frozen=True, slots=True)
class TaskView:
    """What can be seen of a task from outside.

    Attributes:
        name: The task's name.
        vertex: The vertex of the job graph that it runs a subtask of.
        subtask_index: The subtask, from 0.
        state: Where the task is in its life.
        metrics: Its own metrics.
        operators: Those of its operators.
        stack: Its mailbox and where its code stands, outermost await first; empty if
            nobody asked for it.
        waits: What it waits for and for how long, in words; empty as the stack, and while
            it works or waits for an operator.
    """

    name: str
    vertex: int
    subtask_index: int
    state: str
    metrics: dict[str, MetricValue]
    operators: list[OperatorView]
    stack: list[str]
    waits: list[str]


def view_of(task: StreamTask, *, with_stack: bool = False) -> TaskView:
    """Return what can be seen of a task now.

    Args:
        task: A task of this loop, at any time of its life.
        with_stack: Whether to look where its code stands.
    """
    task_id = task.environment.task_id
    chain = task.chain
    operators = [] if chain is None or not with_stack else chain.operators
    calls = {
        id(operator.context.metrics): operator.open_calls(_CALLS_MAX)
        for operator in operators
    }
    return TaskView(
        task.name,
        task_id.vertex,
        task_id.subtask_index,
        task.lifecycle.state.value,
        task.metrics(),
        [
            OperatorView(group.name, group.snapshot(), calls.get(id(group)))
            for group in task.environment.metrics.children
        ],
        _stack(task) if with_stack else [],
        waits_of(task.processor.metrics, task.plan) if with_stack else [],
    )


def _stack(task: StreamTask) -> list[str]:
    runner = task.runner
    frames = [] if runner is None or runner.done() else frames_of(runner)
    return [
        repr(task.processor),
        *(
            f"in {frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
            for frame in frames
        ),
    ]
