"""What one attempt of a job runs, and what it goes on from."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiomailbox.checkpoint import RestoredTasks
from aiomailbox.ids import TaskId, VertexId

__all__ = ["AttemptPlan"]


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """The facts about one attempt.

    Attributes:
        number: From 0; it only grows, so that what an older attempt still says can be
            told from what this one says.
        restored: What subtasks go on from; the others begin anew.

    Example:
        >>> AttemptPlan(2).task_id(VertexId(1), 0)
        TaskId(vertex=1, subtask_index=0, attempt=2)
    """

    number: int = 0
    restored: RestoredTasks = field(default_factory=dict)

    def task_id(self, vertex: VertexId, subtask_index: int) -> TaskId:
        """Return the name of a subtask's attempt, also of a remote one."""
        return TaskId(vertex, subtask_index, self.number)
