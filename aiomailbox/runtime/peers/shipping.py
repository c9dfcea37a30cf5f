"""A job on its way to other processes: cloudpickle, one way only.

Theory of operation: the graph is sent flat, nodes and edges by number, so that a long
pipeline needs no deep recursion. Operators that stay in the parent go without their
factories. Rate limits are sent by number: which limit an operator means is a matter of
identity. Functions of modules that a worker could not import go by value.
"""

from __future__ import annotations

import io
import pickle  # noqa: TID251 -- from the parent to its workers
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from aiomailbox.errors import MissingExtraError, NotShippableError
from aiomailbox.graph.job_graph import Edge, JobGraph, JobVertex, Node
from aiomailbox.graph.transformation import Transformation
from aiomailbox.ids import OperatorId
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.peers.modules import ModulesByValue
from aiomailbox.runtime.peers.placement import PARENT, Placement
from aiomailbox.runtime.peers.record_types import RecordTypes
from aiomailbox.runtime.peers.unpicklable import why_unpicklable
from aiomailbox.state.serializers import state_name_hints

__all__ = ["Shipment", "pack", "pickled", "unpack"]


@dataclass(frozen=True, slots=True)
class Shipment:
    """What all workers of a job get once.

    Attributes:
        graph: The job; what stays in the parent has no factory.
        config: Its settings.
        placement: Which peer runs which tasks.
        seed: Of the job's random sources.
        job_id: 16 bytes that name the job to its peers.
        has_arrow: Whether runs of records may be Arrow's.
        record_types: The classes that records may have, and hints that say under which
            names some were saved; filled in by `pack`.
    """

    graph: JobGraph
    config: JobConfig
    placement: Placement
    seed: int
    job_id: bytes
    has_arrow: bool
    record_types: tuple[Any, ...] = ()


@dataclass(slots=True)
class _FlatEdge:
    source: int
    target: int
    input_index: int
    partitioner: Any
    tag: Any
    chained: bool
    is_blocking: bool


@dataclass(slots=True)
class _FlatNode:
    operator_id: OperatorId
    transformation: Transformation
    parallelism: int
    max_parallelism: int
    slot_sharing_group: str
    in_edges: list[list[int]]
    out_edges: list[int]


@dataclass(slots=True)
class _FlatGraph:
    name: str
    max_parallelism: int
    nodes: dict[int, _FlatNode]
    edges: list[_FlatEdge]
    vertices: list[tuple[Any, list[int]]]


def pack(
    shipment: Shipment, *, for_parent: bool = False
) -> tuple[Shipment, bytes, list[RateLimit]]:
    """Return a shipment, complete now, as bytes too, and the limits that those name.

    Args:
        shipment: The job.
        for_parent: Whether a process gets it that is to be the job's parent, and needs
            sources and sinks.

    Raises:
        NotShippableError: If an operator cannot be pickled; names it and what of it.
        MissingExtraError: If cloudpickle is not installed.
    """
    flat = _flattened(shipment.graph, shipment.placement, for_parent=for_parent)
    limits: list[RateLimit] = []
    # Found while functions are pickled: what they name is what records may be.
    types = RecordTypes()
    # Sources of the parent are not sent, and their records are.
    for vertex in shipment.graph.vertices:
        for kind in getattr(vertex.head.transformation.source, "record_types", ()):
            types.look_at(kind)
    try:
        payload = _dumps([flat, replace(shipment, graph=None)], limits, types)  # type: ignore[arg-type]
        complete = _with_types(shipment, types.found)
        return complete, payload, limits
    except MissingExtraError:
        raise
    except Exception as error:
        _blame(flat, error)
        config = why_unpicklable(shipment.config, _probe) or str(error)
        raise NotShippableError("job settings", None, config) from error


def unpack(payload: bytes, limits: list[RateLimit]) -> Shipment:
    """Return the shipment that `pack` made; runs the code that is in it."""
    unpickler = _Unpickler(io.BytesIO(payload), limits)
    flat, shipment = unpickler.load()
    found: Shipment = shipment
    # A second pickle of one pickler: a class is the same as where functions name it.
    named: list[tuple[type, str]] = unpickler.load()
    for kind, name in named:
        # Cloudpickle forgets in which function a class was defined.
        if kind.__qualname__ != name:
            kind.__qualname__ = name
    complete = _with_types(found, [kind for kind, _ in named])
    return replace(complete, graph=_graph(flat))


def _with_types(shipment: Shipment, found: Iterable[type]) -> Shipment:
    hints = state_name_hints(shipment.config.state_names)
    return replace(shipment, record_types=(*found, *hints))


def pickled(value: Any) -> bytes:
    """Return a value for `pickle.loads` in a worker."""
    return _dumps(value, [])


def _dumps(
    value: Any, limits: list[RateLimit], types: RecordTypes | None = None
) -> bytes:
    try:
        import cloudpickle
    except ImportError as error:
        raise MissingExtraError("Processes", "processes") from error
    # By identity, also in containers: a limit that two operators share stays one.
    numbers: dict[int, int] = {}

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        def persistent_id(self, obj: Any) -> int | None:
            if type(obj) is not RateLimit:
                return None
            number = numbers.setdefault(id(obj), len(limits))
            if number == len(limits):
                limits.append(obj)
            return number

        def reducer_override(self, obj: Any) -> Any:
            modules.look_at(obj)
            if types is not None:
                types.look_at(obj)
            return super().reducer_override(obj)

    output = io.BytesIO()
    with ModulesByValue(cloudpickle) as modules:
        pickler = Pickler(output, protocol=pickle.HIGHEST_PROTOCOL)
        pickler.dump(value)
        if types is not None:
            types.is_complete = True
            # A second pickle of the same pickler, so that classes are not sent twice.
            pickler.dump([(kind, kind.__qualname__) for kind in types.found])
    return output.getvalue()


class _Unpickler(pickle.Unpickler):
    def __init__(self, source: io.BytesIO, limits: list[RateLimit]) -> None:
        super().__init__(source)
        self._limits = limits

    def persistent_load(self, pid: Any) -> RateLimit:
        limit: RateLimit = self._limits[pid]
        return limit


def _flattened(
    graph: JobGraph, placement: Placement, *, for_parent: bool
) -> _FlatGraph:
    nodes = [node for vertex in graph.vertices for node in vertex.nodes]
    edges = [edge for node in nodes for edge in node.out_edges]
    numbers = {id(edge): number for number, edge in enumerate(edges)}
    homes = {
        node.index: placement.peers[vertex.id]
        for vertex in graph.vertices
        for node in vertex.nodes
    }
    return _FlatGraph(
        graph.name,
        graph.max_parallelism,
        {
            node.index: _FlatNode(
                node.operator_id,
                replace(node.transformation, inputs=[])
                if for_parent
                else _bare(
                    node.transformation, keep_factory=homes[node.index][0] != PARENT
                ),
                node.parallelism,
                node.max_parallelism,
                node.slot_sharing_group,
                [[numbers[id(edge)] for edge in united] for united in node.in_edges],
                [numbers[id(edge)] for edge in node.out_edges],
            )
            for node in nodes
        },
        [
            _FlatEdge(
                edge.source.index,
                edge.target.index,
                edge.input_index,
                edge.partitioner,
                edge.tag,
                edge.chained,
                edge.is_blocking,
            )
            for edge in edges
        ],
        [
            (vertex.id, [node.index for node in vertex.nodes])
            for vertex in graph.vertices
        ],
    )


def _bare(item: Transformation, *, keep_factory: bool) -> Transformation:
    """Return a transformation without its neighbours; its factory has the source."""
    factory = item.factory if keep_factory else _absent
    return replace(item, inputs=[], factory=factory, source=None, sink=None)


def _absent() -> NoReturn:
    raise AssertionError("an operator of the parent was built in a worker")


def _graph(flat: _FlatGraph) -> JobGraph:
    nodes = {
        index: Node(
            index,
            node.operator_id,
            node.transformation,
            node.parallelism,
            node.max_parallelism,
        )
        for index, node in flat.nodes.items()
    }
    edges = [
        Edge(
            nodes[edge.source],
            nodes[edge.target],
            edge.input_index,
            edge.partitioner,
            edge.tag,
            edge.chained,
            edge.is_blocking,
        )
        for edge in flat.edges
    ]
    for index, node in flat.nodes.items():
        nodes[index].slot_sharing_group = node.slot_sharing_group
        nodes[index].in_edges = [
            [edges[number] for number in united] for united in node.in_edges
        ]
        nodes[index].out_edges = [edges[number] for number in node.out_edges]
    vertices = [
        JobVertex(identity, [nodes[index] for index in indexes])
        for identity, indexes in flat.vertices
    ]
    return JobGraph(flat.name, vertices, flat.max_parallelism)


def _blame(flat: _FlatGraph, error: Exception) -> None:
    """Raise for the first operator, or the first way between two, that is to blame."""
    for node in flat.nodes.values():
        item = node.transformation
        problem = why_unpicklable(item.factory, _probe)
        if problem is not None:
            # The first one in the pipeline: what comes after it often fails of the same
            # reason.
            raise NotShippableError(item.name, item.uid, problem) from error
    for edge in flat.edges:
        item = flat.nodes[edge.target].transformation
        problem = why_unpicklable(edge.partitioner, _probe)
        if problem is not None:
            raise NotShippableError(item.name, item.uid, problem) from error


def _probe(value: Any) -> None:
    _dumps(value, [])
