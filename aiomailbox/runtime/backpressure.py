"""What a job waits for, as a report: its tasks, its vertices, its bottleneck."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.metrics.catalogue import MetricValue
from aiomailbox.runtime.builder import unique_names
from aiomailbox.runtime.views import TaskView

# Which task holds the others up: a pure function of their numbers and the graph.
#
# Theory of operation: a task without room in its outputs waits for those that read
# them. So the waiting runs upstream from the slowest task, and ends at it: it is busy,
# it does not wait itself, and what feeds it directly does. Nothing here touches a task;
# the numbers may come from another process.


# Flink's: up to a tenth of the time is fine, above a half is high.
_LOW_ABOVE_MS: Final = 100.0


_HIGH_ABOVE_MS: Final = 500.0


# A task that holds others up has hardly time for anything else.
_BUSY_ABOVE_MS: Final = 500.0


class BackpressureLevel(enum.Enum):
    """How much of its time a task waits for room in its outputs.

    Concept:
        Flink, ``JobVertexBackPressureInfo.VertexBackPressureLevel``.

    Example:
        >>> [BackpressureLevel.of(ms).value for ms in (100, 101, 500, 501)]
        ['OK', 'LOW', 'LOW', 'HIGH']
    """

    OK = "OK"
    LOW = "LOW"
    HIGH = "HIGH"

    @classmethod
    def of(cls, backpressured_ms: float) -> BackpressureLevel:
        """Return the level for so many milliseconds of a second."""
        if backpressured_ms > _HIGH_ABOVE_MS:
            return cls.HIGH
        return cls.LOW if backpressured_ms > _LOW_ABOVE_MS else cls.OK


@dataclass(frozen=True, slots=True)
class TaskPressure:
    """How one task spends its time: milliseconds of each second lately.

    Attributes:
        task: The task's name.
        vertex: The vertex of the job graph that it runs a subtask of.
        subtask_index: The subtask, from 0.
        busy_ms: Processing, or awaiting something inside of it.
        idle_ms: Waiting for input.
        backpressured_ms: Waiting for room in its outputs, soft and hard.
    """

    task: str
    vertex: int
    subtask_index: int
    busy_ms: float
    idle_ms: float
    backpressured_ms: float

    @classmethod
    def of(
        cls,
        task: str,
        vertex: int,
        subtask_index: int,
        metrics: Mapping[str, MetricValue],
    ) -> TaskPressure:
        """Return the numbers in the metrics of a task; missing ones are 0."""

        def read(name: str) -> float:
            value = metrics.get(f"{name}_time_ms_per_second")
            return float(value) if isinstance(value, int | float) else 0.0

        return cls(
            task,
            vertex,
            subtask_index,
            read("busy"),
            read("idle"),
            read("backpressured"),
        )

    @property
    def level(self) -> BackpressureLevel:
        """How much it waits for room."""
        return BackpressureLevel.of(self.backpressured_ms)


def find_bottleneck(
    tasks: Iterable[TaskPressure], edges: Iterable[tuple[int, int]]
) -> TaskPressure | None:
    """Return the task that holds others up.

    It is busy and does not wait for room, and a task of a vertex right before it does.
    Of several the most downstream one is named; of those the busiest one; of those the
    first one.

    Args:
        tasks: All tasks of a job.
        edges: Pairs of vertices, from upstream to downstream; without a cycle.

    Returns:
        The task, or None: then nothing waits, or for something outside of the job.
    """
    known = list(tasks)
    pairs = list(edges)
    waiting = {task.vertex for task in known if task.level is not BackpressureLevel.OK}
    held_up = {below for above, below in pairs if above in waiting}
    depth = _depths(pairs)
    found = [
        task
        for task in known
        if task.vertex in held_up
        # An operator that waits itself is not the reason why others wait.
        and task.busy_ms > _BUSY_ABOVE_MS
        and task.level is BackpressureLevel.OK
    ]
    # `max` keeps the first one of equals.
    return max(
        found,
        key=lambda task: (depth[task.vertex], task.busy_ms),
        default=None,
    )


def _depths(edges: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return how many edges lie before each vertex at most."""
    above: dict[int, set[int]] = {}
    for source, target in edges:
        above.setdefault(target, set()).add(source)
        above.setdefault(source, set())
    depth = {vertex: 0 for vertex, sources in above.items() if not sources}
    # In each round at least one vertex has all before it known, unless in a cycle.
    while len(depth) < len(above):
        ready = [
            vertex
            for vertex, sources in above.items()
            if vertex not in depth and sources <= depth.keys()
        ]
        if not ready:
            break
        for vertex in ready:
            depth[vertex] = 1 + max(depth[source] for source in above[vertex])
    return {vertex: depth.get(vertex, 0) for vertex in above}


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
