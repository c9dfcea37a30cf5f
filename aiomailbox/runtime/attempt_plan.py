"""What an attempt of a job, or of some of its tasks, resumes from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from aiomailbox.checkpoint.restored import RestoredTasks
from aiomailbox.ids import SubtaskId, TaskId, VertexId

__all__ = ["AttemptPlan"]


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """The facts about one attempt.

    Attributes:
        number: The epoch of its tasks: it only grows, so that what an older attempt
            still says can be told from what this one says.
        restored: What subtasks resume from; the others begin anew.
        restored_id: The checkpoint that they resume from, -1 for none.
        checkpoint_place: Where checkpoints are kept, a path or a URL; None for a job
            that takes none.
        tasks: The tasks that begin; None for all of the job.
        epochs: Those of the other tasks, which run or have run.
        is_first: Whether no other tasks run: a new attempt of the whole job begins.
        lineage: Names the executions that go on from each other in that place; "" if
            none goes on from this one.

    Example:
        >>> AttemptPlan(2).task_id(VertexId(1), 0)
        TaskId(vertex=1, subtask_index=0, attempt=2)
    """

    number: int = 0
    restored: RestoredTasks = field(default_factory=dict)
    restored_id: int = -1
    checkpoint_place: str | None = None
    tasks: Collection[SubtaskId] | None = None
    epochs: Mapping[SubtaskId, int] = field(default_factory=dict)
    is_first: bool = True
    lineage: str = ""

    @property
    def beginning(self) -> Collection[SubtaskId] | None:
        """The tasks that take the place of earlier attempts; None for all."""
        return None if self.is_first else self.tasks

    def has(self, vertex: VertexId, subtask_index: int) -> bool:
        """Say whether a task begins."""
        return self.tasks is None or SubtaskId(vertex, subtask_index) in self.tasks

    def task_id(self, vertex: VertexId, subtask_index: int) -> TaskId:
        """Return the name of a subtask's attempt, also of a remote one."""
        epoch = self.number
        # Tasks that go on keep the number of their attempt: partitions are found by it.
        if self.tasks is not None and not self.has(vertex, subtask_index):
            epoch = self.epochs.get(SubtaskId(vertex, subtask_index), epoch)
        return TaskId(vertex, subtask_index, epoch)
