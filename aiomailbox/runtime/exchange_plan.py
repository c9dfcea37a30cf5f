"""How many buffers the exchanges of a job need (pure)."""

from __future__ import annotations

from typing import NamedTuple

from aiomailbox.graph import Edge, JobGraph, consumers_of
from aiomailbox.runtime.config import JobConfig


class PoolSize(NamedTuple):
    """Permits of one partition's pool: what it must have, and may have at most."""

    required: int
    maximum: int


def pool_size(subpartitions: int, config: JobConfig) -> PoolSize:
    """Return the permits for a partition of so many subpartitions.

    Concept:
        Flink, ``NettyShuffleUtils``: one buffer in the making per subpartition and one
        more; at most the channels' own plus the floating ones.

    Example:
        >>> pool_size(2, JobConfig())
        PoolSize(required=3, maximum=12)
    """
    required = subpartitions + 1
    most = subpartitions * config.buffers_per_channel + config.floating_buffers
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
