"""The job as it is deployed: vertices (chains of operators) and edges (exchanges)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.exchange.partitioner import (
    ForwardPartitioner,
    KeyGroupPartitioner,
    Partitioner,
    RebalancePartitioner,
)
from aiomailbox.graph.operator_ids import operator_ids
from aiomailbox.graph.transformation import Transformation, reachable
from aiomailbox.ids import OperatorId, VertexId
from aiomailbox.keygroups.assignment import default_max_parallelism
from aiomailbox.records.elements import OutputTag

DEFAULT_SLOT_SHARING_GROUP: Final = "default"

# Each operator of a chain is called by the one before it, through a dozen frames where
# timers fire: so deep a chain leaves the user's functions half of Python's 1,000.
CHAIN_DEPTH_MAX: Final = 32


@dataclass(slots=True, eq=False)
class Node:
    """A transformation with everything decided that the environment decides.

    Attributes:
        operator_id: By what its state is found again; see `operator_ids`.
        slot_sharing_group: Operators of one group may share a task and a worker.
    """

    index: int
    operator_id: OperatorId
    transformation: Transformation
    parallelism: int
    max_parallelism: int
    in_edges: list[list[Edge]] = field(default_factory=list)
    out_edges: list[Edge] = field(default_factory=list)
    slot_sharing_group: str = DEFAULT_SLOT_SHARING_GROUP

    @property
    def name(self) -> str:
        """The operator's name."""
        return self.transformation.name

    @property
    def chain_depth(self) -> int:
        """How many operators of its chain lie on the way to it, itself included."""
        depth, node = 1, self
        while (edge := node.chained_edge) is not None:
            depth, node = depth + 1, edge.source
        return depth

    @property
    def chained_edge(self) -> Edge | None:
        """The edge from the operator of its chain that calls it; None at a head."""
        edges = (edge for united in self.in_edges for edge in united)
        return next((edge for edge in edges if edge.chained), None)

    @property
    def stays_in_parent(self) -> bool:
        """Whether its source or sink needs the process that starts the job."""
        item = self.transformation
        return any(
            getattr(part, "stays_in_parent", False) for part in (item.source, item.sink)
        )


@dataclass(slots=True, eq=False)
class Edge:
    """Records flow from one operator to one input of another one.

    Attributes:
        is_blocking: Whether they are kept in files, and read when ``source`` has finished.
    """

    source: Node
    target: Node
    input_index: int
    partitioner: Partitioner
    tag: OutputTag | None
    chained: bool = False
    is_blocking: bool = False


@dataclass(slots=True, eq=False)
class JobVertex:
    """A chain of operators that live in one task per subtask.

    Attributes:
        nodes: The operators, head first, each after those that feed it.
        in_edges: For each input of the head, the exchanges that feed it.
        out_edges: The exchanges that the chain's operators feed.
    """

    id: VertexId
    nodes: list[Node]

    @property
    def head(self) -> Node:
        """The operator that gets the task's input."""
        return self.nodes[0]

    @property
    def name(self) -> str:
        """The operators' names, joined by arrows."""
        return " -> ".join(node.name for node in self.nodes)

    @property
    def parallelism(self) -> int:
        """Subtasks of every operator of the chain."""
        return self.head.parallelism

    @property
    def stays_in_parent(self) -> bool:
        """Whether one of its operators needs the process that starts the job."""
        return any(node.stays_in_parent for node in self.nodes)

    @property
    def in_edges(self) -> list[list[Edge]]:
        """For each input of the head, the exchanges that feed it."""
        return self.head.in_edges

    @property
    def out_edges(self) -> list[Edge]:
        """The exchanges that operators of this chain feed, in order."""
        return [
            edge for node in self.nodes for edge in node.out_edges if not edge.chained
        ]


@dataclass(slots=True, eq=False)
class JobGraph:
    """A job ready to deploy: vertices in topological order, sources first."""

    name: str
    vertices: list[JobVertex]
    max_parallelism: int

    def vertex_of(self, node: Node) -> JobVertex:
        """Return the vertex that a node was chained into."""
        return next(vertex for vertex in self.vertices if node in vertex.nodes)


def resolve_nodes(
    sinks: list[Transformation], parallelism: int, max_parallelism: int | None
) -> list[Node]:
    """Return nodes and edges for all that the sinks need, upstream first.

    Raises:
        InvalidArgumentError: If two operators have one uid, an operator has more
            subtasks than key groups, or forward joins unequal parallelisms.
    """
    transformations = reachable(sinks)
    _check_uids(transformations)
    counts: dict[int, int] = {}
    for item in transformations:
        counts[id(item)] = _parallelism(item, parallelism, counts)
    widest = max(counts.values(), default=1)
    key_groups = max_parallelism or default_max_parallelism(widest)
    # Flink's rule: one number of key groups for the whole job, from its widest
    # operator.
    nodes: dict[int, Node] = {}
    ids = operator_ids(transformations)
    for index, (item, operator_id) in enumerate(zip(transformations, ids, strict=True)):
        node = Node(
            index,
            operator_id,
            item,
            counts[id(item)],
            item.max_parallelism or key_groups,
        )
        _check_parallelism(node)
        nodes[id(item)] = node
    for node in nodes.values():
        for input_index, united in enumerate(node.transformation.inputs):
            edges = [
                Edge(
                    nodes[id(origin.transformation)],
                    node,
                    input_index,
                    origin.partitioner or ForwardPartitioner(),
                    origin.tag,
                    is_blocking=origin.is_blocking,
                )
                for origin in united
            ]
            for edge, origin in zip(edges, united, strict=True):
                _decide_partitioner(edge, explicit=origin.partitioner is not None)
                edge.source.out_edges.append(edge)
            node.in_edges.append(edges)
        node.slot_sharing_group = _slot_sharing_group(node)
    return list(nodes.values())


def _slot_sharing_group(node: Node) -> str:
    """Return the node's own group, or that of all its inputs, which are known."""
    if node.transformation.slot_sharing_group is not None:
        return node.transformation.slot_sharing_group
    groups = {
        edge.source.slot_sharing_group for edges in node.in_edges for edge in edges
    }
    return groups.pop() if len(groups) == 1 else DEFAULT_SLOT_SHARING_GROUP


def _parallelism(item: Transformation, default: int, known: dict[int, int]) -> int:
    """Return an item's subtasks, given those of all upstream by their ``id``."""
    if item.follows_input and item.parallelism is None:
        inputs = {
            known[id(origin.transformation)]
            for united in item.inputs
            for origin in united
        }
        # Inputs that differ can't all be followed.
        default = inputs.pop() if len(inputs) == 1 else 1
    wanted = item.parallelism or default
    bound = item.parallelism_max
    return wanted if bound is None else min(wanted, bound)


def _decide_partitioner(edge: Edge, *, explicit: bool) -> None:
    if isinstance(edge.partitioner, KeyGroupPartitioner):
        # Only here it is known how many key groups the target has.
        edge.partitioner = KeyGroupPartitioner(
            edge.partitioner.key, edge.target.max_parallelism, edge.target.name
        )
        return
    if edge.source.parallelism == edge.target.parallelism:
        return
    if not explicit:
        edge.partitioner = RebalancePartitioner()
    elif isinstance(edge.partitioner, ForwardPartitioner):
        raise InvalidArgumentError(
            "forward",
            f"{edge.source.name!r} has {edge.source.parallelism} subtasks and "
            f"{edge.target.name!r} has {edge.target.parallelism}",
            "forward() needs equal parallelism: use rebalance() or rescale().",
        )


def _check_uids(transformations: list[Transformation]) -> None:
    named: dict[str, Transformation] = {}
    for item in transformations:
        if item.uid is None:
            continue
        other = named.setdefault(item.uid, item)
        if other is not item:
            raise InvalidArgumentError(
                "uid",
                f"{item.uid!r} names both {other.name!r} and {item.name!r}",
                "Give every operator a uid of its own.",
            )


def _check_parallelism(node: Node) -> None:
    if node.parallelism > node.max_parallelism:
        raise InvalidArgumentError(
            "parallelism",
            f"{node.name!r} has {node.parallelism} subtasks but only "
            f"{node.max_parallelism} key groups",
            "Raise max_parallelism or lower parallelism.",
        )
