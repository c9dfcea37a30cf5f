"""Where records come from and go to, Spark and columns. Checked, and never run."""

from __future__ import annotations

from typing import Any, NamedTuple, assert_type

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import aiomailbox as am
from aiomailbox.connectors.spark.inside.applied import Applied
from aiomailbox.connectors.spark.session import local_session
from tests.typing.idioms.streams import Order, totals


class Flight(NamedTuple):
    origin: str
    delay: float


def sources(env: am.StreamExecutionEnvironment, df: DataFrame) -> None:
    assert_type(env.from_source(am.FileSource("in/*.jsonl")), am.DataStream[Any])
    lines = am.FileSource("in/*.csv", records=Flight)
    assert_type(env.from_source(lines), am.DataStream[Flight])
    rows: am.DataStream[dict[str, Any]]
    rows = env.from_source(am.FileSource("in/*.csv", records=dict))
    flights = env.from_source(am.SparkSource(df, records=Flight))
    assert_type(flights, am.DataStream[Flight])
    assert_type(flights.key_by(lambda f: f.origin), am.KeyedStream[str, Flight])
    rows = env.from_source(am.SparkSource(df, records=dict))
    rows.sink_to(print)
    batches = env.from_source(am.SparkSource(df, records="batch"))
    assert_type(batches, am.DataStream[Any])
    typed = env.from_source(am.SparkSource(df, records=Flight), output_type=Flight)
    assert_type(typed, am.DataStream[Flight])
    assert_type(env.from_source(am.SparkSource(df)), am.DataStream[Any])
    followed = am.SparkStreamSource(df, "checkpoints")
    assert_type(env.from_source(followed), am.DataStream[Any])
    table = pa.table({"id": [1, 2]})
    assert_type(env.from_source(am.ArrowSource(table)), am.DataStream[Any])
    assert_type(env.from_arrow(table), am.DataStream[Any])


def sinks(stream: am.DataStream[Order]) -> None:
    assert_type(stream.sink_to(am.ParquetSink("out")), am.DataStream[Order])
    stream.sink_to(am.FileSink("out", "jsonl"))
    stream.sink_to(am.SqlSink("postgresql://localhost", "orders"))
    stream.sink_to(am.RedisSink("redis://localhost", key="user"))
    stream.sink_to(print)


async def results(stream: am.DataStream[Order]) -> None:
    spark = local_session("orders")
    assert_type(spark, SparkSession)
    assert_type(await stream.to_spark(spark), DataFrame)
    async for batch in stream.arrow_batches():
        assert_type(batch, Any)


def with_tax(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def columns(stream: am.DataStream[Order]) -> None:
    assert_type(stream.map_batches(with_tax), am.DataStream[Any])
    threaded = stream.map_batches(with_tax, form="arrow", run_in="thread")
    assert_type(threaded, am.DataStream[Any])
    assert_type(stream.drop("at").rename({"price": "euros"}), am.DataStream[Any])


async def inside_spark(df: DataFrame) -> None:
    applied = totals.apply_to(df, schema="total double", journal="s3://bucket/calls")
    assert_type(applied, Applied)
    # Without their types: pyspark says some of its own only in part.
    assert_type(applied.result, Any)
    assert_type(applied.dead_letters, Any)
    assert_type(applied.side(am.OutputTag[str]("late"), "text string"), Any)
    rows = await totals.run_on(df, "out", schema="total double", parallelism=4)
    assert_type(rows, DataFrame)


def savepoints() -> None:
    saved = am.Savepoint("file:///tmp/saved", classes=[Order])
    for value in saved.state("totals", "sum"):
        assert_type(value, Any)
