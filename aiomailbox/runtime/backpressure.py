"""What a job waits for, as a report: its tasks, its vertices, its bottleneck."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.runtime.bottleneck import (
    BackpressureLevel,
    TaskPressure,
    find_bottleneck,
)
from aiomailbox.runtime.builder import unique_names
from aiomailbox.runtime.views import TaskView

__all__ = [
    "BackpressureReport",
    "VertexPressure",
    "backpressure_of",
    "report_backpressure",
]


@dataclass(frozen=True, slots=True)
class VertexPressure:
    """The subtasks of one vertex of the job graph.

    Attributes:
        vertex: The vertex.
        name: Its name.
        subtasks: In the order of their indices; at least one.
    """

    vertex: int
    name: str
    subtasks: tuple[TaskPressure, ...]

    @property
    def busy_ms(self) -> float:
        """Of the busiest subtask."""
        return max(each.busy_ms for each in self.subtasks)

    @property
    def idle_ms(self) -> float:
        """Of the subtask that has least to wait for: the smallest."""
        return min(each.idle_ms for each in self.subtasks)

    @property
    def backpressured_ms(self) -> float:
        """Of the subtask that waits most for room."""
        return max(each.backpressured_ms for each in self.subtasks)

    @property
    def level(self) -> BackpressureLevel:
        """That of the subtask that waits most for room, as in Flink."""
        return BackpressureLevel.of(self.backpressured_ms)


@dataclass(frozen=True, slots=True)
class BackpressureReport:
    """Where a job waits, and for which task. Its text is a table.

    Attributes:
        vertices: The vertices whose tasks are known, sources first.
        bottleneck: The task that holds others up, None if there is none.

    Example:
        >>> tasks = [
        ...     TaskPressure("read (1/1)", 0, 0, 300.0, 0.0, 700.0),
        ...     TaskPressure("write (1/1)", 1, 0, 1000.0, 0.0, 0.0),
        ... ]
        >>> report = report_backpressure(tasks, {0: "read", 1: "write"}, [(0, 1)])
        >>> report.bottleneck.task, report["read"].level.value
        ('write (1/1)', 'HIGH')
        >>> print(report)
        task         level  busy  idle  backpressured
        read (1/1)   HIGH    300     0            700
        write (1/1)  OK     1000     0              0
        bottleneck: write (1/1)
    """

    vertices: tuple[VertexPressure, ...]
    bottleneck: TaskPressure | None

    def __getitem__(self, name: str) -> VertexPressure:
        """Return the vertex of a name.

        Raises:
            KeyError: If there is none.
        """
        for vertex in self.vertices:
            if vertex.name == name:
                return vertex
        raise KeyError(name)

    def __str__(self) -> str:
        tasks = [task for vertex in self.vertices for task in vertex.subtasks]
        width = max([len("task"), *(len(task.task) for task in tasks)])
        lines = [f"{'task':{width}}  level  busy  idle  backpressured"]
        lines += [
            f"{task.task:{width}}  {task.level.value:5}  {task.busy_ms:4.0f}  "
            f"{task.idle_ms:4.0f}  {task.backpressured_ms:13.0f}"
            for task in tasks
        ]
        found = self.bottleneck
        lines.append(f"bottleneck: {found.task if found is not None else 'none'}")
        return "\n".join(lines)


def report_backpressure(
    tasks: Iterable[TaskPressure],
    names: Mapping[int, str],
    edges: Sequence[tuple[int, int]],
) -> BackpressureReport:
    """Return the report on a job.

    Args:
        tasks: Its tasks, in any order.
        names: Of its vertices, sources first.
        edges: Pairs of vertices, from upstream to downstream.
    """
    by_vertex: dict[int, list[TaskPressure]] = {vertex: [] for vertex in names}
    for task in tasks:
        by_vertex[task.vertex].append(task)
    vertices = tuple(
        VertexPressure(
            vertex, names[vertex], tuple(sorted(found, key=lambda t: t.subtask_index))
        )
        for vertex, found in by_vertex.items()
        if found
    )
    ordered = [task for vertex in vertices for task in vertex.subtasks]
    return BackpressureReport(vertices, find_bottleneck(ordered, edges))


def backpressure_of(graph: JobGraph, views: Iterable[TaskView]) -> BackpressureReport:
    """Return the report on a job, from one look at its tasks, wherever they run."""
    names = unique_names([vertex.name for vertex in graph.vertices])
    return report_backpressure(
        [
            TaskPressure.of(view.name, view.vertex, view.subtask_index, view.metrics)
            for view in views
        ],
        {
            int(vertex.id): name
            for vertex, name in zip(graph.vertices, names, strict=True)
        },
        [
            (vertex.id, graph.vertex_of(edge.target).id)
            for vertex in graph.vertices
            for edge in vertex.out_edges
        ],
    )
