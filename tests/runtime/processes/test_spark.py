"""A DataFrame that the parent reads, worked on by its workers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest

import aiomailbox as am

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@dataclass
class Number:
    id: int
    text: str


@pytest.mark.parametrize("records", ["namedtuple", dict, Number])
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
