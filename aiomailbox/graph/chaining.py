"""Which neighbours share a task (pure), and the job graph that follows."""

from __future__ import annotations

from aiomailbox.exchange.partitioner import ForwardPartitioner
from aiomailbox.graph.job_graph import (
    CHAIN_DEPTH_MAX,
    Edge,
    JobGraph,
    JobVertex,
    Node,
    resolve_nodes,
)
from aiomailbox.graph.transformation import ChainingStrategy, Transformation
from aiomailbox.ids import VertexId


def is_chainable(edge: Edge) -> bool:
    """Say whether an edge's two operators can live in one task.

    Concept:
        Flink, ``StreamingJobGraphGenerator.isChainable``.
    """
    source, target = edge.source, edge.target
    return (
        isinstance(edge.partitioner, ForwardPartitioner)
        and not edge.is_blocking
        and source.parallelism == target.parallelism
        and source.max_parallelism == target.max_parallelism
        and source.slot_sharing_group == target.slot_sharing_group
        and len(target.in_edges) == 1
        and len(target.in_edges[0]) == 1
        and source.transformation.chaining is not ChainingStrategy.NEVER
        and target.transformation.chaining is ChainingStrategy.ALWAYS
    )


def build_job_graph(
    name: str,
    sinks: list[Transformation],
    *,
    parallelism: int = 1,
    max_parallelism: int | None = None,
    chaining: bool = True,
    parent_apart: bool = False,
) -> JobGraph:
    """Return the job graph for everything that the sinks need.

    Args:
        name: The job's name.
        sinks: The transformations whose results are wanted.
        parallelism: Subtasks of operators that do not say how many.
        max_parallelism: Key groups; None derives them as Flink does.
        chaining: Whether operators may share tasks at all.
        parent_apart: Whether operators that need the process that starts the job share
            no task with others, which may be remote.

    Raises:
        InvalidArgumentError: As `resolve_nodes`.
    """
    nodes = resolve_nodes(sinks, parallelism, max_parallelism)
    heads: dict[int, Node] = {}
    members: dict[int, list[Node]] = {}
    for node in nodes:
        edges = [edge for united in node.in_edges for edge in united]
        is_apart = parent_apart and any(
            edge.source.stays_in_parent != node.stays_in_parent for edge in edges
        )
        if (
            chaining
            and not is_apart
            and len(edges) == 1
            and is_chainable(edges[0])
            and edges[0].source.chain_depth < CHAIN_DEPTH_MAX
        ):
            edges[0].chained = True
            head = heads[edges[0].source.index]
        else:
            head = node
        heads[node.index] = head
        members.setdefault(head.index, []).append(node)
    vertices = [
        JobVertex(VertexId(number), chain)
        for number, chain in enumerate(members.values())
    ]
    key_groups = max((node.max_parallelism for node in nodes), default=128)
    return JobGraph(name, _topological(vertices), key_groups)


def _topological(vertices: list[JobVertex]) -> list[JobVertex]:
    """Order vertices so that each comes after those that feed it."""
    home = {node.index: vertex for vertex in vertices for node in vertex.nodes}
    ordered: list[JobVertex] = []
    waiting = list(vertices)
    placed: set[int] = set()
    while waiting:
        ready = [
            vertex
            for vertex in waiting
            if all(
                home[edge.source.index].id in placed
                for united in vertex.in_edges
                for edge in united
            )
        ]
        ordered += ready
        placed |= {vertex.id for vertex in ready}
        waiting = [vertex for vertex in waiting if vertex.id not in placed]
    return ordered
