"""Notices that a job fails at one place again and again, and says what was read there.

Theory of operation: a record that no attempt survives lies behind the checkpoint that all of
them went on from. Its exact position is known where the function's error names the record;
what its sources had read when the last attempt ended bounds it from above. Nothing is
coordinated for that: tasks that have ended say how far their readers were.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from aiomailbox.errors import WorkerDiedError
from aiomailbox.graph.job_graph import JobGraph, Node
from aiomailbox.ids import OperatorId, VertexId
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.runtime.failures import FailurePlace, place_of_error
from aiomailbox.runtime.views import TaskView, positions_of

__all__ = ["PoisonWatch"]

_SPLITS_MAX: Final = 5


class _Failure(NamedTuple):
    kind: str
    place: FailurePlace

    @property
    def is_of_a_record(self) -> bool:
        """Whether a record is to blame, or may be: one that ended its whole process."""
        return self.place.record is not None or self.kind == WorkerDiedError.__name__


class PoisonWatch:
    """Counts the failures in a row that come from one place.

    Args:
        graph: The job.
    """

    def __init__(self, graph: JobGraph) -> None:
        self._graph = graph
        self._last: _Failure | None = None
        self._times = 0

    def on_failure(self, error: BaseException) -> None:
        """Take a failure of the job, or of a part of it."""
        failure = _Failure(type(error).__name__, place_of_error(error))
        self._times = self._times + 1 if failure == self._last else 1
        self._last = failure

    def describe(
        self,
        restored_id: int,
        restored: Mapping[OperatorId, Iterable[OperatorSnapshot | None]],
        views: Collection[TaskView],
    ) -> str:
        """Return what people are to know; "" if the last failure was not one of several.

        Args:
            restored_id: The checkpoint that the last attempt went on from, -1 for none.
            restored: What operators went on from.
            views: The tasks, which have ended.
        """
        last = self._last
        if last is None or self._times < 2 or not last.is_of_a_record:
            return ""
        place = last.place
        where = "" if place.operator is None else f" in operator {place.operator!r}"
        record = "" if place.record is None else f", with record {place.record}"
        since = "the beginning" if restored_id < 0 else f"checkpoint {restored_id}"
        has = "may have" if place.record is None else "has"
        read = [
            text
            for node in self._sources(place)
            for text in _read_by(
                node,
                self._graph.vertex_of(node).id,
                restored.get(node.operator_id, ()),
                views,
            )
        ]
        found = f": {'; '.join(read)}" if read else ""
        return (
            f"{self._times} attempts in a row failed{where} the same way{record}: "
            f"what was read after {since} {has} something in it that fails every "
            f"time{found}. Skip such records, or emit them as dead letters, with "
            "on_error=am.skip or am.dead_letter(tag)"
        )

    def _sources(self, place: FailurePlace) -> list[Node]:
        """Return the sources that feed an operator; all if it is not known."""
        nodes = [node for vertex in self._graph.vertices for node in vertex.nodes]
        waiting = [
            node
            for node in nodes
            if place.operator is None
            or (node.name, node.transformation.uid) == (place.operator, place.uid)
        ]
        seen: dict[int, Node] = {}
        while waiting:
            node = waiting.pop()
            if node.index not in seen:
                seen[node.index] = node
                waiting += [one.source for united in node.in_edges for one in united]
        return [
            seen[index]
            for index in sorted(seen)
            if seen[index].transformation.source is not None
        ]


def _read_by(
    node: Node,
    vertex: VertexId,
    restored: Iterable[OperatorSnapshot | None],
    views: Collection[TaskView],
) -> Iterator[str]:
    """Yield what of each split a source has read since it was restored."""
    began: dict[str, str] = {}
    for snapshot in restored:
        if snapshot is not None:
            began |= positions_of(snapshot.own.elements("splits"))
    ended: dict[str, str] = {}
    for view in views:
        if view.vertex == vertex:
            ended |= view.positions
    known = [*began, *(one for one in ended if one not in began)]
    for split_id in known[:_SPLITS_MAX]:
        start = began.get(split_id, "its beginning")
        end = ended.get(split_id, "its end, or somewhere before")
        if start != end:
            yield f"source {node.name!r}, split {split_id!r}, from {start} to {end}"
    if len(known) > _SPLITS_MAX:
        yield f"and {len(known) - _SPLITS_MAX} more splits"
