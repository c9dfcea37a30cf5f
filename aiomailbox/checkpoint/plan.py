"""Which tasks a checkpoint triggers, waits for, and notifies of its completion.

Concept:
    Flink, ``DefaultCheckpointPlanCalculator`` and FLIP-147.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from aiomailbox.checkpoint.failures import FailureReason
from aiomailbox.checkpoint.handles import TaskHandle
from aiomailbox.ids import SubtaskId

__all__ = ["CheckpointPlan", "SubtaskState", "loses_union_state", "plan_checkpoint"]


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
        to_wait_for: Acknowledge it, and are notified of its completion.
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
) -> CheckpointPlan | FailureReason:
    """Return the plan of a checkpoint, or why there can be none now.

    Args:
        states: Every subtask of the job, those of sources first.
        producers: For each subtask, those that it reads.
        after_tasks_finish: Whether finished subtasks are no hindrance.

    Example:
        >>> from aiomailbox.ids import VertexId
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
    is_running = set(running)
    # A task with a producer that runs gets the barrier from it, and a second one would
    # be one too many.
    to_trigger = [
        task for task in running if is_running.isdisjoint(producers.get(task, ()))
    ]
    return CheckpointPlan(tuple(to_trigger), tuple(running), tuple(finished))


def loses_union_state(handles: Iterable[TaskHandle]) -> bool:
    """Say whether a checkpoint lets subtasks end whose state others would miss.

    A finished task is in no later checkpoint, nor is its part of union state. As
    long as such a subtask waits for a checkpoint to end with, it is in each of them.

    Concept:
        Flink, ``PartialFinishingNotSupportedByStateException``.
    """
    kept = list(handles)
    ending = {one.vertex for one in kept if one.is_finished and one.has_union_state}
    return not ending.isdisjoint(one.vertex for one in kept if not one.is_finished)
