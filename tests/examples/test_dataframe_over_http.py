"""The example that gives a DataFrame away over HTTP."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import httpx
import pyarrow as pa
import pytest

pytestmark = pytest.mark.spark

ROWS = 100_000


async def test_a_client_gets_the_whole_dataframe(spark: Any, load_example: Any) -> None:
    example = load_example("dataframe_over_http")
    df = spark.range(0, ROWS, 1, 4).selectExpr("id", "id * 0.01D AS price")
    async with (
        example.served(example.make_app(df)) as url,
        httpx.AsyncClient(timeout=None) as client,
    ):
        answer = await client.get(f"{url}/orders")
        table = pa.ipc.open_stream(io.BytesIO(answer.content)).read_all()
        assert table.column_names == ["id", "price", "discounted"]
        assert table.column("id").to_pylist() == list(range(ROWS))
        batches, size_bytes = await example.fetch(f"{url}/orders")
        assert size_bytes == len(answer.content)
        assert batches == 12


async def test_a_client_that_goes_away_ends_the_spark_job(
    spark: Any, load_example: Any
) -> None:
    example = load_example("dataframe_over_http")
    df = spark.range(0, 50_000_000, 1, 50).selectExpr("id", "id * 0.01D AS price")
    async with (
        example.served(example.make_app(df)) as url,
        httpx.AsyncClient(timeout=None) as client,
        client.stream("GET", f"{url}/orders") as answer,
    ):
        async for _ in answer.aiter_bytes():
            break
    # It would never end by itself, as nobody reads; Spark tells of the end some time later.
    while spark.sparkContext.statusTracker().getActiveJobsIds():
        await asyncio.sleep(0.01)
