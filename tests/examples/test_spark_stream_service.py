"""The example in which Spark's micro-batches stream into a web service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.real_time]


async def test_each_order_counts_once_over_two_lives_of_the_service(
    spark: Any, load_example: Any, tmp_path: Path
) -> None:
    example = load_example("spark_stream_service")
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    example.arrive(inbox, "1", [("ada", 10.0), ("bob", 5.0)])
    df = example.arrivals(spark, inbox)
    async with example.client_of(example.make_app(df, tmp_path)) as client:
        assert await example.ask(client, "ada", 1) == {"orders": 1, "total": 10.0}
        assert (await client.get("/totals/eve")).status_code == 404
    example.arrive(inbox, "2", [("ada", 1.0), ("bob", 1.0)])
    df = example.arrivals(spark, inbox)
    async with example.client_of(example.make_app(df, tmp_path)) as client:
        assert await example.ask(client, "ada", 2) == {"orders": 2, "total": 11.0}
        assert await example.ask(client, "bob", 2) == {"orders": 2, "total": 6.0}
    assert list(spark.streams.active) == []
