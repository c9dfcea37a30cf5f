"""The job as it is deployed: vertices (chains of operators) and edges (exchanges)."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.exchange.writer import (
    CustomPartitioner,
    ForwardPartitioner,
    GlobalPartitioner,
    KeyGroupPartitioner,
    Partitioner,
    RebalancePartitioner,
    ShufflePartitioner,
)
from aiomailbox.graph.side_outputs import in_order, tags_given
from aiomailbox.graph.transformation import ChainingStrategy, Transformation, reachable
from aiomailbox.ids import OperatorId, VertexId
from aiomailbox.keygroups.assignment import default_max_parallelism
from aiomailbox.records.events import OutputTag

# By what the state of an operator is found again: its uid, or its place in the graph.
#
# Theory of operation: an id that was not given is made of the operator's name and of
# the ids of what feeds it, so that neither chaining nor parallelism, nor an operator
# that is added after it or in another branch, changes it. Of twins, which have one name
# and one input, the later ones are numbered in the order in which they were described.
#
# Concept:
#     Flink, ``StreamGraphHasherV2``; ours leaves chaining out and takes names in.


def operator_ids(transformations: Iterable[Transformation]) -> list[OperatorId]:
    """Return the id of each operator; all differ.

    Example:
        >>> from aiomailbox.operators.stateless.operators import MapOperator
        >>> plain = Transformation("map", lambda: MapOperator(str))
        >>> chosen = Transformation("map", lambda: MapOperator(str), uid="prices")
        >>> operator_ids([plain, chosen])
        ['map@9656e23f85a0ff1c', 'prices']
    """
    listed = list(transformations)
    taken = {item.uid for item in listed}
    known: dict[int, OperatorId] = {}
    # How many twins there are so far: of thousands, each would be compared with all.
    twins: Counter[str] = Counter()
    for item in listed:
        first = _derived(item, known, 0)
        found = OperatorId(item.uid or first)
        while item.uid is None and found in taken:
            twins[first] += 1
            found = OperatorId(_derived(item, known, twins[first]))
        taken.add(found)
        known[id(item)] = found
    return [known[id(item)] for item in listed]


def _derived(item: Transformation, known: dict[int, OperatorId], number: int) -> str:
    inputs = [
        [
            (
                known[id(origin.transformation)],
                None if origin.tag is None else origin.tag.id,
            )
            for origin in united
        ]
        for united in item.inputs
    ]
    name = item.id_name or item.name
    facts = msgspec.json.encode([name, inputs, number])
    return f"{name}@{hashlib.blake2b(facts, digest_size=8).hexdigest()}"


DEFAULT_SLOT_SHARING_GROUP: Final = "default"
# Each operator of a chain is called by the one before it, through a dozen frames where
# timers fire: so deep a chain leaves the user's functions half of Python's 1,000.
CHAIN_DEPTH_MAX: Final = 32


@dataclass(slots=True, eq=False)
class Node:
    """A transformation with everything decided that the environment decides.

    Attributes:
        operator_id: By what its state is found again; see `operator_ids`.
        tags_given: The side outputs that it was given, as of dead letters.
        slot_sharing_group: Operators of one group may share a task and a worker.
    """

    index: int
    operator_id: OperatorId
    transformation: Transformation
    parallelism: int
    max_parallelism: int
    tags_given: frozenset[OutputTag]
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
    def operators(self) -> list[tuple[str, Node]]:
        """The operators, each with the name that state and metrics have: they differ."""
        names = unique_names([node.name for node in self.nodes])
        return list(zip(names, self.nodes, strict=True))

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

    @property
    def nodes(self) -> list[Node]:
        """The operators of all vertices, in order."""
        return [node for vertex in self.vertices for node in vertex.nodes]

    @property
    def vertex_names(self) -> dict[int, str]:
        """The vertices' names, which differ, by the vertices' ids."""
        names = unique_names([vertex.name for vertex in self.vertices])
        return dict(zip((int(one.id) for one in self.vertices), names, strict=True))

    @property
    def unread_side_outputs(self) -> list[tuple[Transformation, OutputTag]]:
        """The side outputs whose records, such as dead letters, no operator reads."""
        return [
            (node.transformation, tag)
            for node in self.nodes
            for tag in in_order(node.tags_given - {edge.tag for edge in node.out_edges})
        ]

    @property
    def has_journal(self) -> bool:
        """Whether an operator keeps finished calls."""
        return any(node.transformation.has_journal for node in self.nodes)

    @property
    def shares_records(self) -> bool:
        """Whether several functions may get one object."""
        return any(
            len(node.out_edges) > 1 or edge.partitioner.is_broadcast
            for node in self.nodes
            for edge in node.out_edges
        )

    def vertex_of(self, node: Node) -> JobVertex:
        """Return the vertex that a node was chained into."""
        return next(vertex for vertex in self.vertices if node in vertex.nodes)


def unique_names(names: list[str]) -> list[str]:
    """Return the names, numbered where one occurs again.

    Example:
        >>> unique_names(["map", "filter", "map"])
        ['map', 'filter', 'map #2']
    """
    taken: set[str] = set()
    unique = []
    for name in names:
        unique.append(free_name(name, taken))
        taken.add(unique[-1])
    return unique


def free_name(name: str, taken: Container[str]) -> str:
    """Return a name, with a number if it is taken.

    Example:
        >>> free_name("map", {"map"})
        'map #2'
    """
    free, number = name, 2
    while free in taken:
        free, number = f"{name} #{number}", number + 1
    return free


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
            tags_given(item),
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
        given, target = edge.partitioner, edge.target
        edge.partitioner = KeyGroupPartitioner(
            given.key, target.max_parallelism, target.name, given.line
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
                f"{item.uid!r} names both {_with_line(other)} and {_with_line(item)}",
                "Give every operator a uid of its own.",
            )


def _with_line(item: Transformation) -> str:
    return f"{item.name!r} ({item.line})" if item.line else repr(item.name)


def _check_parallelism(node: Node) -> None:
    if node.parallelism > node.max_parallelism:
        raise InvalidArgumentError(
            "parallelism",
            f"{node.name!r} has {node.parallelism} subtasks but only "
            f"{node.max_parallelism} key groups",
            "Raise max_parallelism or lower parallelism.",
        )


# Which neighbours share a task (pure), and the job graph that follows.


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
    depths = vertex_depths(vertices)
    vertices.sort(key=lambda vertex: depths[vertex.id])
    return JobGraph(name, vertices, key_groups)


def vertex_depths(vertices: list[JobVertex]) -> dict[VertexId, int]:
    """Return how many exchanges lead to each vertex, on the longest way to it.

    Each vertex comes after those that feed it.
    """
    home = {node.index: vertex.id for vertex in vertices for node in vertex.nodes}
    depths: dict[VertexId, int] = {}
    for vertex in vertices:
        feeding = [edge.source for united in vertex.in_edges for edge in united]
        depths[vertex.id] = max(
            (depths[home[node.index]] + 1 for node in feeding), default=0
        )
    return depths


# Which subtask talks to which (pure).


def consumers_of(
    partitioner: Partitioner, producer_index: int, producers: int, consumers: int
) -> list[int]:
    """Return the consumer subtasks that one producer subtask sends to, in order.

    Forward joins equal indexes. Other pointwise exchanges (rescale) join each
    producer to its share of the consumers; all-to-all joins each to all of them.

    Concept:
        Flink, ``VertexInputInfoComputationUtils`` (POINTWISE, ALL_TO_ALL).

    Example:
        >>> from aiomailbox.exchange import RescalePartitioner
        >>> [consumers_of(RescalePartitioner(), index, 2, 4) for index in range(2)]
        [[0, 1], [2, 3]]
    """
    if isinstance(partitioner, ForwardPartitioner):
        return [producer_index]
    if not partitioner.is_pointwise:
        return list(range(consumers))
    if producers >= consumers:
        return [producer_index * consumers // producers]
    return [
        consumer
        for consumer in range(consumers)
        if consumer * producers // consumers == producer_index
    ]


# What the channels of a job are called, whatever its attempts and its chaining.


# At the end of a channel's two halves.
_SUBTASKS: Final = re.compile(r"\[(\d+)/\d+\](?= to |$)")
_OVERTAKING: Final = (
    CustomPartitioner,
    GlobalPartitioner,
    KeyGroupPartitioner,
    RebalancePartitioner,
    ShufflePartitioner,
)


def channel_name(edge: Edge, producer: int, consumer: int) -> str:
    """Return the name of a channel: equal for its two ends, and for equal programs.

    With other numbers of subtasks it is another one, for records go to other subtasks then.
    """
    source, target = edge.source, edge.target
    number = source.out_edges.index(edge)
    return (
        f"{source.operator_id}.{number}[{producer}/{source.parallelism}] to "
        f"{target.operator_id}.{edge.input_index}[{consumer}/{target.parallelism}]"
    )


def is_channel_of(name: str, edge: Edge) -> bool:
    """Say whether a name is of a channel of an exchange, with any numbers of subtasks."""
    return _without_subtasks(name) == _without_subtasks(channel_name(edge, 0, 0))


def producer_of_channel(name: str) -> int:
    """Return the subtask that sends on a channel.

    Example:
        >>> producer_of_channel("a.0[1/2] to b.0[0/3]")
        1
    """
    found = _SUBTASKS.search(name)
    return 0 if found is None else int(found.group(1))


def _without_subtasks(name: str) -> str:
    return _SUBTASKS.sub("", name)


def why_never_unaligned(edge: Edge) -> str:
    """Return why no barrier overtakes on an exchange; "" if they may.

    Concept:
        Flink, ``StreamPartitioner.isSupportsUnalignedCheckpoint``.
    """
    if edge.target.transformation.sink is not None:
        return "it leads to a sink"
    if edge.partitioner.is_pointwise:
        return "a producer is connected with some of the consumers only"
    if edge.partitioner.is_broadcast:
        return "all consumers get the same records"
    return "" if isinstance(edge.partitioner, _OVERTAKING) else "of its partitioner"
