"""Names of things, as types that cannot be mixed up."""

from __future__ import annotations

from typing import NamedTuple, NewType

OperatorId = NewType("OperatorId", str)
VertexId = NewType("VertexId", int)


class TaskId(NamedTuple):
    """One attempt of one subtask of one vertex of the job graph."""

    vertex: VertexId
    subtask_index: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.vertex}.{self.subtask_index}#{self.attempt}"


class SubtaskId(NamedTuple):
    """One subtask of one vertex of the job graph, whichever attempt it is in."""

    vertex: VertexId
    subtask_index: int

    def __str__(self) -> str:
        return f"{self.vertex}.{self.subtask_index}"


class PartitionId(NamedTuple):
    """One attempt's output towards one edge of the job graph."""

    producer: TaskId
    edge_index: int

    def __str__(self) -> str:
        return f"{self.producer}>{self.edge_index}"
