"""Which task holds the others up: a pure function of their numbers and the graph.

Theory of operation: a task without room in its outputs waits for those that read them. So
the waiting runs upstream from the slowest task, and ends at it: it is busy, it does not
wait itself, and what feeds it directly does. Nothing here touches a task; the numbers may
come from another process.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiomailbox.metrics.declared import MetricValue

__all__ = ["BackpressureLevel", "TaskPressure", "find_bottleneck"]

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
        """Return what the metrics of a task say; what they do not name is 0."""

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
