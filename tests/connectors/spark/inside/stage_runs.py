"""Stages of an applied pipeline, run in this process: what Spark's workers do."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import aiomailbox as am
from aiomailbox.api.definition import JobDefinition
from aiomailbox.api.stream import DataStream
from aiomailbox.connectors.spark.frame_source import frame_operator
from aiomailbox.connectors.spark.inside.results import ResultSink
from aiomailbox.connectors.spark.inside.stage import StageInput, StagePart, run_stage
from aiomailbox.connectors.spark.inside.wire import JobLevels
from aiomailbox.graph.transformation import Origin, Transformation
from aiomailbox.operators.sinks.sink import SinkOperator
from aiomailbox.runtime.peers.placement import Placement
from aiomailbox.runtime.peers.shipping import Shipment, pack

PARALLELISM = 2


class _Task:
    """What a stage asks Spark about its task."""

    def __init__(self, partition: int, attempt: int) -> None:
        self._partition = partition
        self._attempt = attempt

    def partitionId(self) -> int:  # noqa: N802 -- Spark's name
        return self._partition

    def attemptNumber(self) -> int:  # noqa: N802 -- Spark's name
        return self._attempt


class StageRuns:
    """Runs a pipeline of one DataFrame with the column ``id`` as often as one likes.

    Args:
        pipeline: The pipeline.
        columns: What it returns.
        monkeypatch: Lets stages believe that they are in Spark.
        journal: The directory of finished calls; None if none are kept.
    """

    def __init__(
        self,
        pipeline: Any,
        columns: pa.Schema,
        monkeypatch: pytest.MonkeyPatch,
        journal: str | None = None,
    ) -> None:
        self._journal = journal
        schema = StructType([StructField("id", LongType())])
        item = frame_operator("df", StageInput(schema, "namedtuple"))
        definition = JobDefinition(PARALLELISM, None, config=am.JobConfig())
        stream: DataStream[Any] = DataStream(definition, [Origin(item)])
        sink = partial(SinkOperator, ResultSink(0, columns))
        result = Transformation("result", sink, [pipeline(stream)._origins])
        graph = definition.job_graph("stages", [result])
        peers = {vertex.id: (1,) * vertex.parallelism for vertex in graph.vertices}
        shipment = Shipment(
            graph,
            definition.config,
            Placement(1, peers),
            7,
            secrets.token_bytes(16),
            has_arrow=True,
        )
        _, self._payload, self._limits = pack(shipment)
        self._levels = JobLevels(graph)
        self._monkeypatch = monkeypatch

    def results(self, partitions: list[list[pa.RecordBatch]]) -> list[list[Any]]:
        """Run all stages; return the rows of each partition of the last one."""
        outputs = [
            list(self.run(0, number, batches))
            for number, batches in enumerate(partitions)
        ]
        for level in range(1, len(self._levels)):
            rows = pa.Table.from_batches([b for output in outputs for b in output])
            outputs = [
                list(self.run(level, number, _sorted(rows, number)))
                for number in range(self._levels.width(level))
            ]
        return [[row for b in output for row in b.to_pylist()] for output in outputs]

    def run(
        self,
        level: int,
        partition: int,
        batches: list[pa.RecordBatch],
        attempt: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """Run an attempt of a task; it begins with the first batch that is asked for."""
        task = _Task(partition, attempt)
        context = type("Context", (), {"get": staticmethod(lambda: task)})
        vertex = 0 if level == 0 else None
        part = StagePart(
            self._payload, self._limits, level, vertex, 0, None, self._journal
        )
        self._monkeypatch.setattr(pyspark, "TaskContext", context)
        yield from run_stage(part, iter(batches))


def _sorted(rows: pa.Table, partition: int) -> list[pa.RecordBatch]:
    mine = rows.filter(pc.equal(rows["part"], partition))
    order = [(name, "ascending") for name in ("wm", "producer", "seq")]
    batches: list[pa.RecordBatch] = mine.sort_by(order).combine_chunks().to_batches()
    return batches


def ranges(*bounds: tuple[int, int]) -> list[list[pa.RecordBatch]]:
    """Return partitions of ids."""
    return [[pa.record_batch({"id": pa.array(range(*each))})] for each in bounds]
