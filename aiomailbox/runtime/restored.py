"""What each task goes on from, given what the tasks of an earlier graph had: pure.

Theory of operation: what was kept is sorted by operators, whichever tasks these were in,
spread over their present subtasks, and put together by present tasks. So chaining and
parallelism may be others than when it was kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aiomailbox.errors import StateError
from aiomailbox.eventtime import ValveSnapshot
from aiomailbox.graph import JobGraph
from aiomailbox.ids import OperatorId, VertexId
from aiomailbox.operators import OperatorSnapshot, redistribute
from aiomailbox.task import TaskSnapshot

__all__ = ["JobSnapshot", "RestoredTasks", "job_snapshot", "restored_tasks"]

# By vertex and subtask.
RestoredTasks = Mapping[tuple[VertexId, int], TaskSnapshot]
_Inputs = tuple[ValveSnapshot, ...]


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """All that a job goes on from, by the ids of operators.

    Attributes:
        operators: Per operator the snapshots of its subtasks, in order; None where one
            had nothing.
        inputs: Per operator that was the head of its tasks how far event time had come
            on the channels of each subtask.
        enumerators: Per source what its enumerator goes on from.
    """

    operators: Mapping[OperatorId, Sequence[OperatorSnapshot | None]] = field(
        default_factory=dict
    )
    inputs: Mapping[OperatorId, Sequence[_Inputs]] = field(default_factory=dict)
    enumerators: Mapping[OperatorId, OperatorSnapshot] = field(default_factory=dict)


def job_snapshot(
    vertices: Iterable[Sequence[TaskSnapshot]],
    enumerators: Mapping[OperatorId, OperatorSnapshot] | None = None,
) -> JobSnapshot:
    """Return what the tasks of a job kept, by operators.

    Args:
        vertices: Per vertex the snapshots of its subtasks, in order.
        enumerators: Per source what its enumerator kept.
    """
    operators: dict[OperatorId, list[OperatorSnapshot | None]] = {}
    inputs: dict[OperatorId, list[_Inputs]] = {}
    for tasks in vertices:
        for index, task in enumerate(tasks):
            for name, snapshot in task.operators.items():
                operators.setdefault(name, [None] * len(tasks))[index] = snapshot
            for name, times in task.inputs.items():
                inputs.setdefault(name, []).append(times)
    return JobSnapshot(operators, inputs, enumerators or {})


def restored_tasks(
    snapshot: JobSnapshot, graph: JobGraph, *, allow_unmatched: bool = False
) -> dict[tuple[VertexId, int], TaskSnapshot]:
    """Return what each task of a graph goes on from.

    Args:
        snapshot: What was kept, maybe of a graph that was chained in another way or had
            other numbers of subtasks.
        graph: What is to run.
        allow_unmatched: Whether state may be left that no operator of the graph has.

    Raises:
        StateError: If there is such state and it may not be left, or the state of an
            operator cannot be spread.

    Concept:
        Flink, ``StateAssignmentOperation``.
    """
    if not allow_unmatched:
        _check_matched(snapshot, graph)
    tasks: dict[tuple[VertexId, int], TaskSnapshot] = {}
    for vertex in graph.vertices:
        spread = {
            node.operator_id: redistribute(found, vertex.parallelism)
            for node in vertex.nodes
            if (found := snapshot.operators.get(node.operator_id)) is not None
        }
        head = vertex.head.operator_id
        times = _spread_times(snapshot.inputs.get(head, ()), vertex.parallelism)
        for index in range(vertex.parallelism):
            operators = {name: found[index] for name, found in spread.items()}
            inputs = {head: times[index]} if times else {}
            if operators or inputs:
                tasks[vertex.id, index] = TaskSnapshot(operators, inputs)
    return tasks


def _spread_times(former: Sequence[_Inputs], parallelism: int) -> list[_Inputs]:
    """Return how far inputs are; where there are other subtasks, the one behind counts."""
    if len(former) in {0, parallelism}:
        return [*former]
    together = tuple(
        ValveSnapshot(min(one.watermark for one in times))
        for times in zip(*former, strict=True)
    )
    return [together] * parallelism


def _check_matched(snapshot: JobSnapshot, graph: JobGraph) -> None:
    known = {node.operator_id for vertex in graph.vertices for node in vertex.nodes}
    lost = [
        name
        for name, found in snapshot.operators.items()
        if name not in known and any(one and not one.is_empty for one in found)
    ]
    if lost:
        raise StateError(
            f"there is state of {sorted(lost)}, and the job has no such operators: it "
            f"has {sorted(known)}. Give operators the uid that they had; state is lost "
            "only if that is allowed."
        )
