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
        number: The epoch: it only grows, so that what an older attempt still says can
            be told from what this one says.
        restored: What subtasks go on from; the others begin anew.
        restored_id: The checkpoint that they go on from, -1 for none.
        checkpoint_place: Where checkpoints are kept, a path or a URL; None for a job
            that takes none.

    Example:
        >>> AttemptPlan(2).task_id(VertexId(1), 0)
        TaskId(vertex=1, subtask_index=0, attempt=2)
    """

    number: int = 0
    restored: RestoredTasks = field(default_factory=dict)
    restored_id: int = -1
    checkpoint_place: str | None = None

    def task_id(self, vertex: VertexId, subtask_index: int) -> TaskId:
        """Return the name of a subtask's attempt, also of a remote one."""
        return TaskId(vertex, subtask_index, self.number)
