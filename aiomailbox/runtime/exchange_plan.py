"""How many buffers the exchanges of a job need (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from aiomailbox.checkpoint.restored import RestoredTasks
from aiomailbox.graph.job_graph import Edge, JobGraph, consumers_of
from aiomailbox.ids import SubtaskId, TaskId, VertexId
from aiomailbox.runtime.config import JobConfig


class PoolSize(NamedTuple):
    """Permits of one partition's pool: what it must have, and may have at most."""

    required: int
    maximum: int


def pool_size(
    subpartitions: int, config: JobConfig, *, stays_here: bool = False
) -> PoolSize:
    """Return the permits for a partition of so many subpartitions.

    Args:
        subpartitions: How many.
        config: Says how many buffers there are for each, and for all.
        stays_here: Whether all consumers are on the producer's event loop. Nothing is on
            its way then, so no buffers float: more of them would only be cold in the
            processor's cache when they are taken.

    Concept:
        Flink, ``NettyShuffleUtils``: one buffer in the making per subpartition and one
        more; at most the channels' own plus the floating ones.

    Example:
        >>> pool_size(2, JobConfig())
        PoolSize(required=3, maximum=12)
        >>> pool_size(2, JobConfig(), stays_here=True)
        PoolSize(required=3, maximum=4)
    """
    required = subpartitions + 1
    floating = 0 if stays_here else config.floating_buffers
    most = subpartitions * config.buffers_per_channel + floating
    return PoolSize(required, max(required, most))


def total_segments(graph: JobGraph, config: JobConfig) -> int:
    """Return the permits that let every partition have its maximum; at least 1."""
    return max(
        1,
        sum(
            pool_size(len(targets), config).maximum + config.overdraft_buffers
            for vertex in graph.vertices
            for edge in vertex.out_edges
            for targets in producer_targets(edge)
        ),
    )


def producer_targets(edge: Edge) -> list[list[int]]:
    """Return, per producer subtask, the consumer subtasks that it sends to."""
    producers, consumers = edge.source.parallelism, edge.target.parallelism
    return [
        consumers_of(edge.partitioner, index, producers, consumers)
        for index in range(producers)
    ]


# What an attempt of a job, or of some of its tasks, resumes from.


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
