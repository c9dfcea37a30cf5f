"""The life of a task, as a table."""

from __future__ import annotations

from enum import Enum
from typing import Final

from aiomailbox.errors import IllegalStateError


class TaskState(Enum):
    """Where a task is in its life.

    Concept:
        Flink, ``ExecutionState`` and the phases of ``StreamTask``.
    """

    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    FINISHING = "finishing"
    CANCELLING = "cancelling"
    FINISHED = "finished"
    CANCELED = "canceled"
    FAILED = "failed"


_NEXT: Final[dict[TaskState, frozenset[TaskState]]] = {
    TaskState.CREATED: frozenset(
        {TaskState.RESTORING, TaskState.CANCELLING, TaskState.FAILED}
    ),
    TaskState.RESTORING: frozenset(
        {TaskState.RUNNING, TaskState.CANCELLING, TaskState.FAILED}
    ),
    TaskState.RUNNING: frozenset(
        {TaskState.FINISHING, TaskState.CANCELLING, TaskState.FAILED}
    ),
    TaskState.FINISHING: frozenset(
        {TaskState.FINISHED, TaskState.CANCELLING, TaskState.FAILED}
    ),
    TaskState.CANCELLING: frozenset({TaskState.CANCELED, TaskState.FAILED}),
    TaskState.FINISHED: frozenset(),
    TaskState.CANCELED: frozenset(),
    TaskState.FAILED: frozenset(),
}


class TaskLifecycle:
    """The state of one attempt of a task; it only moves along the table.

    Example:
        >>> life = TaskLifecycle()
        >>> life.advance(TaskState.RESTORING)
        >>> life.state.value, life.is_terminal
        ('restoring', False)
    """

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: TaskState = TaskState.CREATED

    @property
    def is_terminal(self) -> bool:
        """Whether the life is over."""
        return not _NEXT[self.state]

    @property
    def is_cancelling(self) -> bool:
        """Whether the end was asked for."""
        return self.state in {TaskState.CANCELLING, TaskState.CANCELED}

    def can_advance(self, target: TaskState) -> bool:
        """Say whether ``target`` may follow the present state."""
        return target in _NEXT[self.state]

    def advance(self, target: TaskState) -> None:
        """Move on to ``target``.

        Raises:
            IllegalStateError: If ``target`` cannot follow the present state.
        """
        if target not in _NEXT[self.state]:
            message = f"a task that is {self.state.value} cannot become {target.value}"
            raise IllegalStateError(message)
        self.state = target
