"""A DataFrame that the parent reads, worked on by its workers."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from typing import Any

import pytest

import aiomailbox as am

pytestmark = pytest.mark.spark


@dataclass
class Number:
    id: int
    text: str


@pytest.mark.parametrize("records", ["namedtuple", dict, Number, "row"])
async def test_a_dataframe_feeds_the_workers_and_returns_to_spark(
    spark: Any, env: am.StreamExecutionEnvironment, records: Any
) -> None:
    df = spark.range(100, numPartitions=2).selectExpr("id", "string(id) AS text")

    def work(row: Any) -> dict[str, Any]:
        number = row["id"] if isinstance(row, dict) else row.id
        return {"square": number * number, "pid": os.getpid()}

    numbers = env.from_source(am.SparkSource(df, records=records))
    squares = await numbers.rebalance().map(work).to_spark(spark)
    rows = squares.collect()
    assert sorted(row.square for row in rows) == [n * n for n in range(100)]
    assert len({row.pid for row in rows}) == 2
    assert os.getpid() not in {row.pid for row in rows}


async def test_columns_of_a_dataframe_reach_the_workers_as_columns(
    spark: Any, env: am.StreamExecutionEnvironment
) -> None:
    """Rows of Spark's own class, picked by key, and whole batches."""
    from pyspark.sql import Row

    df = spark.range(100, numPartitions=2).selectExpr(
        "id", "named_struct('text', string(id)) AS inner"
    )

    def look(row: Any) -> Any:
        runs = [each for each in gc.get_objects() if type(each).__name__ == "ArrowRun"]
        return row, os.getpid(), bool(runs)

    numbers = env.from_source(am.SparkSource(df, records=Row))
    found = await numbers.key_by(lambda row: row.id % 10).map(look).collect()
    rows = sorted(row for row, _, _ in found)
    assert rows == df.sort("id").collect()
    assert {type(row) for row in rows} == {Row}
    assert rows[7].inner.text == "7"
    assert rows[7].asDict(recursive=True) == {"id": 7, "inner": {"text": "7"}}
    assert len({(row.id % 10, place) for row, place, _ in found}) == 10
    # Workers read nothing: a run of columns is one that came as such.
    assert {came for _, _, came in found} == {True}

    batches = env.from_source(am.SparkSource(df, records="batch", batch_rows=10))
    sums = (
        await batches.rebalance()
        .map(lambda batch: (os.getpid(), sum(batch.column("id").to_pylist())))
        .collect()
    )
    assert sum(each for _, each in sums) == sum(range(100))
    assert len({place for place, _ in sums}) == 2
