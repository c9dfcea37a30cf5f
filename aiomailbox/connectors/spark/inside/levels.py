"""Which stage runs which tasks of a job (pure).

Theory of operation: a stage is one level of the job graph, and its partitions are the
subtasks of the level's vertices. So the stages of a job are a chain, however its graph
branches, and Spark computes each of them once an action. What goes to a later level
than the next one, and the results, are passed on by the stages between.
"""

from __future__ import annotations

from typing import NamedTuple

from aiomailbox.graph.job_graph import Edge, JobGraph, JobVertex
from aiomailbox.graph.wiring import consumers_of
from aiomailbox.ids import VertexId

__all__ = ["JobLevels", "Place", "Target"]


class Place(NamedTuple):
    """One task of a stage."""

    vertex: JobVertex
    subtask_index: int


class Target(NamedTuple):
    """Where an edge leads.

    Attributes:
        number: The edge's number in the job.
        level: Of its consumer.
        base: The partition of the consumer's subtask 0 at that level.
        subtasks: For each of the producer's nominal subtasks, its consumers.
    """

    number: int
    level: int
    base: int
    subtasks: list[list[int]]


class JobLevels:
    """The levels of a job.

    Args:
        graph: The job.

    Attributes:
        vertices: Per level its vertices; the first has those without an input.
        targets: Per edge, by its ``id``, where it leads.
        edges: All exchanges, by their numbers.
    """

    def __init__(self, graph: JobGraph) -> None:
        depth: dict[VertexId, int] = {}
        for vertex in graph.vertices:
            feeding = [edge for united in vertex.in_edges for edge in united]
            depth[vertex.id] = max(
                (depth[graph.vertex_of(edge.source).id] + 1 for edge in feeding),
                default=0,
            )
        self.vertices: list[list[JobVertex]] = [
            [vertex for vertex in graph.vertices if depth[vertex.id] == level]
            for level in range(max(depth.values(), default=-1) + 1)
        ]
        self.edges: list[Edge] = []
        self.targets: dict[int, Target] = {}
        for vertex in graph.vertices:
            for edge in vertex.out_edges:
                consumer = graph.vertex_of(edge.target)
                level = depth[consumer.id]
                target = Target(
                    len(self.edges),
                    level,
                    self._base(level, consumer),
                    [
                        consumers_of(
                            edge.partitioner,
                            index,
                            vertex.parallelism,
                            consumer.parallelism,
                        )
                        for index in range(vertex.parallelism)
                    ],
                )
                self.edges.append(edge)
                self.targets[id(edge)] = target

    def __len__(self) -> int:
        return len(self.vertices)

    def width(self, level: int) -> int:
        """Return how many partitions a stage has; of the first, as many as Spark says."""
        return sum(vertex.parallelism for vertex in self.vertices[level])

    def place(self, level: int, partition: int) -> Place:
        """Return the task that a partition of a level is."""
        for vertex in self.vertices[level]:
            if partition < vertex.parallelism:
                return Place(vertex, partition)
            partition -= vertex.parallelism
        raise IndexError(f"level {level} has {self.width(level)} partitions")

    def partition(self, target: Target, subtask: int, level: int) -> int:
        """Return to which partition of stage ``level`` a row for a subtask goes."""
        if target.level == level:
            return target.base + subtask
        return (target.base + subtask) % self.width(level)

    def _base(self, level: int, vertex: JobVertex) -> int:
        before = self.vertices[level]
        return sum(each.parallelism for each in before[: before.index(vertex)])
