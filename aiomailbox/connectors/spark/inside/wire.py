"""The rows of Spark's shuffle that travel between two stages.

Theory of operation: a producer's elements on one edge, runs and watermarks in their
order, are framed as between processes and packed into rows of about a thousand records.
A row is sorted by the watermark that its producer had reached when the row began, so
that a consumer reads its producers in step with event time, however far apart they ran.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import pyarrow as pa

from aiomailbox.availability import Availability
from aiomailbox.errors import CorruptStreamError
from aiomailbox.graph.job_graph import (
    Edge,
    JobGraph,
    JobVertex,
    consumers_of,
    vertex_depths,
)
from aiomailbox.records import Element
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import MIN_TIMESTAMP
from aiomailbox.records.spanning import LENGTH

# What Spark calls them, in the order of `WireRow`.
WIRE_SCHEMA: Final = (
    "edge int, part int, wm long, producer long, seq long, kind int, subtask int, "
    "payload binary"
)
_ARROW: Final = {"int": pa.int32(), "long": pa.int64(), "binary": pa.binary()}
WIRE_COLUMNS: Final = pa.schema(
    [(name, _ARROW[kind]) for name, kind in map(str.split, WIRE_SCHEMA.split(", "))]
)
# The row that names the producer comes before all that it produced.
BEGIN_ORDER: Final = MIN_TIMESTAMP
DATA_ORDER_MIN: Final = MIN_TIMESTAMP + 1


class RowKind(IntEnum):
    """The kind of a row.

    ``BEGIN`` and ``END`` enclose what one producer sends on one edge to one consumer.
    A ``RESULT`` is the pipeline's: its edge is the number of the output, and stages
    pass it on.
    """

    BEGIN = 0
    DATA = 1
    END = 2
    RESULT = 3
    METRICS = 4


class WireRow(NamedTuple):
    """One row.

    Attributes:
        edge: The edge's number in the job; of a result, the output's.
        part: Spark's partition in the next stage.
        wm: Sorts rows: the producer's watermark when the row began.
        producer: The name of the sender, unique in the job.
        seq: Counts a producer's rows, so that the order of its rows is total.
        kind: See `RowKind`.
        subtask: The consumer's subtask.
        payload: Frames; of a result, an Arrow stream.
    """

    edge: int
    part: int
    wm: int
    producer: int
    seq: int
    kind: int
    subtask: int
    payload: bytes


def wire_batch(rows: Sequence[WireRow]) -> pa.RecordBatch:
    """Return rows as Spark takes them, shape ``(len(rows),)``."""
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(column, field.type)
            for column, field in zip(columns, WIRE_COLUMNS, strict=True)
        ],
        schema=WIRE_COLUMNS,
    )


def rows_of_batch(batch: pa.RecordBatch) -> Iterator[WireRow]:
    """Give the rows of a batch that Spark gives."""
    columns = [batch.column(name).to_pylist() for name in WIRE_COLUMNS.names]
    return map(WireRow, *columns)


def elements_of(payload: bytes, codec: ElementCodec) -> list[Element]:
    """Return what is framed in a payload, in order."""
    elements: list[Element] = []
    view, position, size_bytes = memoryview(payload), 0, len(payload)
    while position < size_bytes:
        start = position + LENGTH.size
        (length,) = LENGTH.unpack_from(view, position)
        position = start + length
        if position > size_bytes:
            raise CorruptStreamError(
                f"a frame of {length} bytes ends beyond a payload of {size_bytes}"
            )
        elements.append(codec.decode(view[start:position]))  # type: ignore[arg-type]
    return elements


# From the loop in a Spark worker to the thread that Spark asks for batches.


# Enough for Spark to be busy while a slice is processed, little enough to hold.
_BATCHES_MAX: Final = 8


class Outlet:
    """Hands batches from an event loop to another thread, a bounded number ahead.

    Offering never waits; the producer checks ``room`` before its next input.

    Attributes:
        room: Available while there is room; belongs to the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.room: Availability = Availability(available=True)
        self._loop = loop
        self._batches: deque[pa.RecordBatch] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._abandoned = False
        self._error: BaseException | None = None

    @property
    def is_empty(self) -> bool:
        """Whether everything was taken."""
        return not self._batches

    def offer(self, batch: pa.RecordBatch) -> None:
        """Let the thread take a batch; on the loop. One without rows is dropped."""
        if self._abandoned or not batch.num_rows:
            return
        with self._changed:
            self._batches.append(batch)
            if len(self._batches) >= _BATCHES_MAX:
                self.room.reset()
            self._changed.notify()

    def end(self, error: BaseException | None) -> None:
        """Say that nothing follows, or why; from any thread."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify()

    def take(self) -> pa.RecordBatch | None:
        """Return the next batch, waiting for it; None after the last one."""
        with self._changed:
            while not self._batches and not self._ended:
                self._changed.wait()
            if not self._batches:
                if self._error is not None:
                    raise self._error
                return None
            batch = self._batches.popleft()
            if not self._ended and len(self._batches) == _BATCHES_MAX // 2:
                self._loop.call_soon_threadsafe(self._make_room)
        return batch

    def abandon(self) -> None:
        """Drop everything, also what still comes; from the thread that takes."""
        with self._changed:
            self._abandoned = True
            self._batches.clear()
            if not self._ended:
                self._loop.call_soon_threadsafe(self._make_room)

    def _make_room(self) -> None:
        if len(self._batches) < _BATCHES_MAX and not self.room.available:
            self.room.set_available()


# Which stage runs which tasks of a job (pure).
#
# Theory of operation: a stage is one level of the job graph, and its partitions are the
# subtasks of the level's vertices. So the stages of a job are a chain, however its
# graph branches, and Spark computes each of them once an action. What goes to a later
# level than the next one, and the results, are passed on by the stages between.


class Place(NamedTuple):
    """One task of a stage."""

    vertex: JobVertex
    subtask_index: int


class Target(NamedTuple):
    """Where an edge leads.

    Attributes:
        number: The edge's number in the job.
        level: Of its consumer.
        base: The partition of the consumer's subtask 0 at that level.
        subtasks: For each of the producer's nominal subtasks, its consumers.
    """

    number: int
    level: int
    base: int
    subtasks: list[list[int]]


class JobLevels:
    """The levels of a job.

    Attributes:
        vertices: Per level its vertices; the first has those without an input.
        targets: Per edge, by its ``id``, where it leads.
        edges: All exchanges, by their numbers.
    """

    def __init__(self, graph: JobGraph) -> None:
        depth = vertex_depths(graph.vertices)
        self.vertices: list[list[JobVertex]] = [
            [vertex for vertex in graph.vertices if depth[vertex.id] == level]
            for level in range(max(depth.values(), default=-1) + 1)
        ]
        self.edges: list[Edge] = []
        self.targets: dict[int, Target] = {}
        for vertex in graph.vertices:
            for edge in vertex.out_edges:
                consumer = graph.vertex_of(edge.target)
                level = depth[consumer.id]
                target = Target(
                    len(self.edges),
                    level,
                    self._base(level, consumer),
                    [
                        consumers_of(
                            edge.partitioner,
                            index,
                            vertex.parallelism,
                            consumer.parallelism,
                        )
                        for index in range(vertex.parallelism)
                    ],
                )
                self.edges.append(edge)
                self.targets[id(edge)] = target

    def __len__(self) -> int:
        return len(self.vertices)

    def width(self, level: int) -> int:
        """Return how many partitions a stage has; of the first, as many as Spark says."""
        return sum(vertex.parallelism for vertex in self.vertices[level])

    def place(self, level: int, partition: int) -> Place:
        """Return the task that a partition of a level is."""
        for vertex in self.vertices[level]:
            if partition < vertex.parallelism:
                return Place(vertex, partition)
            partition -= vertex.parallelism
        raise IndexError(f"level {level} has {self.width(level)} partitions")

    def partition(self, target: Target, subtask: int, level: int) -> int:
        """Return to which partition of stage ``level`` a row for a subtask goes."""
        if target.level == level:
            return target.base + subtask
        return (target.base + subtask) % self.width(level)

    def _base(self, level: int, vertex: JobVertex) -> int:
        before = self.vertices[level]
        return sum(each.parallelism for each in before[: before.index(vertex)])
