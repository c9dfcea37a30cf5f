"""How a job is cut into stages, and how rows become a task's input again."""

from __future__ import annotations

import random
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.api.definition import JobDefinition
from aiomailbox.connectors.spark.inside.shuffle import ChannelKey, Demultiplexer
from aiomailbox.connectors.spark.inside.wire import (
    BEGIN_ORDER,
    DATA_ORDER_MIN,
    JobLevels,
    RowKind,
    WireRow,
    rows_of_batch,
    wire_batch,
)
from aiomailbox.errors import CorruptStreamError
from aiomailbox.exchange.frames import FrameEncoder
from aiomailbox.exchange.gate import InputGate
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import MAX_WATERMARK, Watermark
from aiomailbox.records.run import ListRun
from aiomailbox.records.run_columns import PythonSerializer

CODEC = ElementCodec(PythonSerializer())


def graph_of(stream: Any) -> JobGraph:
    stream.sink_to(lambda record: None)
    definition: JobDefinition = stream._definition
    return definition.job_graph("job", list(definition.sinks))


def test_the_stages_of_a_job_are_a_chain_however_it_branches() -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    first = env.from_collection([1]).rebalance().map(lambda n: n)
    second = first.key_by(lambda n: n).reduce(lambda one, other: one)
    levels = JobLevels(graph_of(second.union(first).rebalance().map(lambda n: n)))
    assert [len(vertices) for vertices in levels.vertices] == [1, 1, 1, 1]
    passing = [
        target
        for vertex in levels.vertices[1]
        for edge in vertex.out_edges
        for target in [levels.targets[id(edge)]]
    ]
    assert sorted(target.level for target in passing) == [2, 3]
    far = next(target for target in passing if target.level == 3)
    # What is for a later stage goes through any partition of the next one.
    assert levels.partition(far, 1, 2) in range(levels.width(2))
    assert levels.partition(far, 1, 3) == far.base + 1


def row(producer: int, seq: int, order: int, kind: RowKind, *elements: Any) -> WireRow:
    encoder = FrameEncoder(CODEC)
    payload = b"".join(bytes(encoder.frame(element)) for element in elements)
    return WireRow(0, 0, order, producer, seq, kind, 0, payload)


def read(rows: list[WireRow]) -> list[Any]:
    """Return what a task would read of rows, in its order."""
    forwarded: list[WireRow] = []
    demultiplexer = Demultiplexer(CODEC, forwarded.append, lambda: None)
    keys = [ChannelKey(row.edge, row.producer) for row in rows if row.kind == 0]
    gate = InputGate(demultiplexer.channels(keys))
    seen: list[Any] = []
    gate.request_partitions()
    demultiplexer.take(rows)
    demultiplexer.end()
    while (polled := gate.poll_next()) is not None:
        channel, buffer = polled
        # Nothing else is offered while a buffer is in hand.
        assert gate.poll_next() is None
        seen += [
            (channel, element.values if isinstance(element, ListRun) else element)
            for element in buffer.elements
        ]
        buffer.recycle()
    assert gate.is_finished
    return seen


def test_producers_are_read_in_step_with_event_time_and_alike_each_time() -> None:
    rows = [row(producer, 0, BEGIN_ORDER, RowKind.BEGIN) for producer in (7, 9)] + [
        row(7, 1, DATA_ORDER_MIN, RowKind.DATA, ListRun([1])),
        row(7, 2, 50, RowKind.DATA, Watermark(50), ListRun([2])),
        row(9, 1, DATA_ORDER_MIN, RowKind.DATA, ListRun([3]), Watermark(10)),
        row(9, 2, 20, RowKind.DATA, ListRun([4])),
        row(7, 3, 2**63 - 1, RowKind.END),
        row(9, 3, 2**63 - 1, RowKind.END),
    ]
    random.Random(1).shuffle(rows)
    rows.sort(key=lambda each: (each.wm, each.producer, each.seq))
    assert [*rows_of_batch(wire_batch(rows))] == rows
    expected = [
        (0, [1]),
        (1, [3]),
        (1, Watermark(10)),
        (1, [4]),
        (0, Watermark(50)),
        (0, [2]),
    ]
    assert read(rows) == expected


def test_an_input_without_producers_ends_at_once_and_event_time_with_it() -> None:
    [(channel, element)] = read([])
    assert channel == 0
    assert element == MAX_WATERMARK


def test_rows_that_are_missing_fail_the_task() -> None:
    rows = [
        row(7, 0, BEGIN_ORDER, RowKind.BEGIN),
        row(7, 1, DATA_ORDER_MIN, RowKind.DATA, ListRun([1])),
    ]
    with pytest.raises(CorruptStreamError, match="producer 7"):
        read(rows)
