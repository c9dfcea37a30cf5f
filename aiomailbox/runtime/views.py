"""One look at a task: its state, its numbers, where its code stands.

A view is a value: it can be taken in one process and looked at in another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiomailbox.metrics import MetricValue
from aiomailbox.supervision import frames_of
from aiomailbox.task import StreamTask

__all__ = ["OperatorView", "TaskView", "view_of"]


@dataclass(frozen=True, slots=True)
class OperatorView:
    """The metrics of one operator of a task.

    Attributes:
        name: The operator's name, unique in its task.
        metrics: What it measured so far.
    """

    name: str
    metrics: dict[str, MetricValue]


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
    """

    name: str
    vertex: int
    subtask_index: int
    state: str
    metrics: dict[str, MetricValue]
    operators: list[OperatorView]
    stack: list[str]


def view_of(task: StreamTask, *, with_stack: bool = False) -> TaskView:
    """Return what can be seen of a task now.

    Args:
        task: A task of this loop, at any time of its life.
        with_stack: Whether to look where its code stands.
    """
    task_id = task.environment.task_id
    return TaskView(
        task.name,
        task_id.vertex,
        task_id.subtask_index,
        task.lifecycle.state.value,
        task.metrics(),
        [
            OperatorView(group.name, group.snapshot())
            for group in task.environment.metrics.children
        ],
        _stack(task) if with_stack else [],
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
