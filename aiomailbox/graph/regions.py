"""Which tasks start again together when one of them fails (pure).

Tasks that hand records to each other while both run are of one region: what one of them
has sent and the other has not yet processed is lost with either. An exchange that keeps
its records, a blocking one, is where a region ends.

Concept:
    Flink, ``PipelinedRegionComputeUtil`` and ``RestartPipelinedRegionFailoverStrategy``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.graph.job_graph import Edge, JobGraph, Node, consumers_of
from aiomailbox.ids import SubtaskId
from aiomailbox.operators.sources.source import Boundedness


class FailoverRegions:
    """The regions of a job.

    Args:
        graph: The job.

    Attributes:
        regions: Disjoint sets that hold every task, in the order of the graph.
    """

    def __init__(self, graph: JobGraph) -> None:
        self._parents: dict[SubtaskId, SubtaskId] = {}
        for vertex in graph.vertices:
            for index in range(vertex.parallelism):
                subtask = SubtaskId(vertex.id, index)
                self._parents[subtask] = subtask
        # Of blocking exchanges: each producer with a consumer.
        self._kept: list[tuple[SubtaskId, SubtaskId]] = []
        for edge, producer, consumer in _connections(graph):
            if edge.is_blocking:
                self._kept.append((producer, consumer))
            else:
                self._unite(producer, consumer)
        found: dict[SubtaskId, set[SubtaskId]] = {}
        for subtask in self._parents:
            found.setdefault(self._root(subtask), set()).add(subtask)
        self.regions: list[frozenset[SubtaskId]] = [
            frozenset(region) for region in found.values()
        ]
        self._region_of = {
            subtask: region for region in self.regions for subtask in region
        }

    @property
    def tasks(self) -> list[SubtaskId]:
        """Every task, in the order of the graph."""
        return list(self._parents)

    @property
    def task_count(self) -> int:
        """How many tasks there are."""
        return len(self._parents)

    def can_begin(self, finished: Collection[SubtaskId]) -> frozenset[SubtaskId]:
        """Return the tasks of the regions whose kept input is complete."""
        waiting = {
            consumer for producer, consumer in self._kept if producer not in finished
        }
        ready = [region for region in self.regions if region.isdisjoint(waiting)]
        # A region as a whole: its tasks hand records to each other.
        return frozenset().union(*ready)

    def has_readers(self, producer: SubtaskId, finished: Collection[SubtaskId]) -> bool:
        """Say whether a task that has not finished reads what a producer keeps."""
        return any(
            one == producer and consumer not in finished for one, consumer in self._kept
        )

    def kept_for(self, consumer: SubtaskId) -> list[SubtaskId]:
        """Return the producers whose kept records a task reads."""
        return [producer for producer, one in self._kept if one == consumer]

    def to_restart(
        self,
        failed: SubtaskId,
        has_result: Callable[[SubtaskId], bool] = lambda producer: True,
    ) -> frozenset[SubtaskId]:
        """Return the tasks that start again when one has failed.

        They are its region, the regions of the producers whose kept records it reads
        and that are lost, and every region that reads what one of these produced, for
        it may come out differently the next time.
        """
        waiting = [self._region_of[failed]]
        chosen: set[frozenset[SubtaskId]] = set()
        while waiting:
            region = waiting.pop()
            if region in chosen:
                continue
            chosen.add(region)
            # Its own kept input has to be there; if not, its producer begins again.
            for producer, consumer in self._kept:
                if consumer in region and not has_result(producer):
                    waiting.append(self._region_of[producer])
                # Readers as well: what is made anew need not be the same records
                # (Flink's rule).
                if producer in region:
                    waiting.append(self._region_of[consumer])
        return frozenset().union(*chosen)

    def _root(self, subtask: SubtaskId) -> SubtaskId:
        parents = self._parents
        while parents[subtask] != subtask:
            # Path halving keeps later searches short.
            parents[subtask] = parents[parents[subtask]]
            subtask = parents[subtask]
        return subtask

    def _unite(self, one: SubtaskId, other: SubtaskId) -> None:
        # Sorted, so that regions don't depend on the order of edges.
        first, second = sorted((self._root(one), self._root(other)))
        self._parents[second] = first


def has_blocking(graph: JobGraph) -> bool:
    """Say whether an exchange keeps its records in files."""
    return any(edge.is_blocking for edge in _edges(graph))


def check_blocking(graph: JobGraph) -> None:
    """Refuse exchanges that would wait for ever.

    Raises:
        InvalidArgumentError: If a source that never ends is before one that blocks, or
            the records that wait are needed by those that they wait for.
    """
    for edge in _edges(graph):
        if edge.is_blocking:
            _check_ends(edge)
    regions = FailoverRegions(graph)
    finished: frozenset[SubtaskId] = frozenset()
    while len(finished) < regions.task_count:
        ready = regions.can_begin(finished)
        # No other region can begin, and not all have.
        if ready == finished:
            names = [
                f"{edge.source.name!r} to {edge.target.name!r}"
                for edge in _edges(graph)
                if edge.is_blocking
            ]
            raise InvalidArgumentError(
                "blocking",
                f"the readers of {' and '.join(names)} start when these have "
                "finished, but another, pipelined exchange brings them records too: "
                "both would wait forever",
                "Call blocking() on every exchange between the two.",
            )
        finished = ready


def _check_ends(edge: Edge) -> None:
    endless = endless_source(edge.source)
    if endless:
        raise InvalidArgumentError(
            "blocking",
            f"the records of {edge.source.name!r} are read when it has finished, and it "
            f"never finishes: its source {endless!r} is unbounded",
            "Leave blocking() out, or use a bounded source.",
        )


def endless_source(node: Node) -> str:
    """Return the name of a source of an operator that never ends; "" if all of them do."""
    for one in _before(node, lambda _: False):
        source = one.transformation.source
        if source is not None and source.boundedness is Boundedness.UNBOUNDED:
            return one.name
    return ""


def watermark_makers(node: Node) -> list[Node]:
    """Return the operators that watermarks of an operator come from, or would come from.

    Those are sources, and assignments of event times.
    """
    return [one for one in _before(node, _makes) if _makes(one)]


def _makes(node: Node) -> bool:
    return node.transformation.watermarks is not None


def _before(node: Node, is_end: Callable[[Node], bool]) -> Iterator[Node]:
    """Yield an operator and all before it, but none that lie only before an end."""
    waiting, seen = [node], set[int]()
    while waiting:
        node = waiting.pop()
        if node.index in seen:
            continue
        seen.add(node.index)
        yield node
        if not is_end(node):
            waiting += [one.source for united in node.in_edges for one in united]


def source_without_watermarks(node: Node) -> str:
    """Return what keeps event time from moving at an operator for ever; "" if nothing.

    That is a source, or an assignment of event times, that gives no watermarks before the
    end of a source that never ends.
    """
    for maker in watermark_makers(node):
        if not maker.transformation.watermarks and endless_source(maker):
            return maker.name
    return ""


def _edges(graph: JobGraph) -> list[Edge]:
    return [edge for vertex in graph.vertices for edge in vertex.out_edges]


def producers_of(graph: JobGraph) -> dict[SubtaskId, list[SubtaskId]]:
    """Return for each task that reads others which ones it reads."""
    found: dict[SubtaskId, list[SubtaskId]] = {}
    for _, producer, consumer in _connections(graph):
        found.setdefault(consumer, []).append(producer)
    return found


def _connections(graph: JobGraph) -> list[tuple[Edge, SubtaskId, SubtaskId]]:
    """Return every pair of tasks that an exchange connects."""
    vertex_of = {
        node.index: vertex for vertex in graph.vertices for node in vertex.nodes
    }
    found = []
    for vertex in graph.vertices:
        for edge in vertex.out_edges:
            target = vertex_of[edge.target.index]
            for index in range(vertex.parallelism):
                found += [
                    (edge, SubtaskId(vertex.id, index), SubtaskId(target.id, consumer))
                    for consumer in consumers_of(
                        edge.partitioner, index, vertex.parallelism, target.parallelism
                    )
                ]
    return found
