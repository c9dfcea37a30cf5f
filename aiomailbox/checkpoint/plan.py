"""Which tasks a checkpoint triggers, waits for, and tells that it is complete.

Concept:
    Flink, ``DefaultCheckpointPlanCalculator`` and FLIP-147.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from aiomailbox.checkpoint.failures import FailureReason
from aiomailbox.ids import SubtaskId, VertexId

__all__ = ["CheckpointPlan", "SubtaskState", "plan_checkpoint"]


class SubtaskState(Enum):
    """What the coordinator has to know of a subtask."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """What one checkpoint does.

    Attributes:
        to_trigger: Get the barrier from the coordinator: nothing upstream runs.
        to_wait_for: Acknowledge it, and hear of its completion.
        finished: Have no state any more.
    """

    to_trigger: tuple[SubtaskId, ...]
    to_wait_for: tuple[SubtaskId, ...]
    finished: tuple[SubtaskId, ...]


def plan_checkpoint(
    states: Mapping[SubtaskId, SubtaskState],
    producers: Mapping[SubtaskId, Collection[SubtaskId]],
    *,
    after_tasks_finish: bool = True,
    with_union_state: Collection[VertexId] = (),
) -> CheckpointPlan | FailureReason:
    """Return the plan of a checkpoint, or why there can be none now.

    Args:
        states: Every subtask of the job, those of sources first.
        producers: For each subtask, those that it reads.
        after_tasks_finish: Whether finished subtasks are no hindrance.
        with_union_state: Vertices whose union state would be lost in part if only some
            of their subtasks had finished.

    Example:
        >>> source, sink = SubtaskId(VertexId(0), 0), SubtaskId(VertexId(1), 0)
        >>> states = {source: SubtaskState.RUNNING, sink: SubtaskState.RUNNING}
        >>> plan = plan_checkpoint(states, {sink: [source]})
        >>> plan.to_trigger
        (SubtaskId(vertex=0, subtask_index=0),)
    """
    if any(state is SubtaskState.STARTING for state in states.values()):
        return FailureReason.NOT_RUNNING
    finished = [
        task for task, state in states.items() if state is SubtaskState.FINISHED
    ]
    running = [task for task, state in states.items() if state is SubtaskState.RUNNING]
    if not running:
        return FailureReason.NOT_RUNNING
    if finished and not after_tasks_finish:
        return FailureReason.TASKS_FINISHED
    partly = {task.vertex for task in finished} & {task.vertex for task in running}
    if partly & set(with_union_state):
        return FailureReason.TASK_CLOSING
    is_running = set(running)
    to_trigger = [
        task for task in running if is_running.isdisjoint(producers.get(task, ()))
    ]
    return CheckpointPlan(tuple(to_trigger), tuple(running), tuple(finished))
