"""How many buffers the exchanges of a job need (pure)."""

from __future__ import annotations

from typing import NamedTuple

from aiomailbox.graph.job_graph import Edge, JobGraph
from aiomailbox.graph.wiring import consumers_of
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
