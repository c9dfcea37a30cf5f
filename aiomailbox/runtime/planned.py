"""What is known of a job's operators before any task is there."""

from __future__ import annotations

from collections.abc import Iterator

from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.metrics.declared import MetricValue
from aiomailbox.runtime.builder import unique_names
from aiomailbox.runtime.views import OperatorView

__all__ = ["planned_operators"]


def planned_operators(graph: JobGraph) -> Iterator[tuple[int, OperatorView]]:
    """Yield every operator with its vertex, and with the counts that it begins with.

    Args:
        graph: What is run; sources first.
    """
    for vertex in graph.vertices:
        names = unique_names([node.name for node in vertex.nodes])
        for node, name in zip(vertex.nodes, names, strict=True):
            counts: dict[str, MetricValue] = {"num_records_out": 0}
            if node.in_edges:
                counts["num_records_in"] = 0
            yield vertex.id, OperatorView(name, counts)
