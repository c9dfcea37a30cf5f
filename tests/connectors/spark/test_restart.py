"""Jobs over DataFrames that fail go on where their last checkpoint was taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.connectors.spark import SparkSource

pytestmark = pytest.mark.spark

ROWS = 6000


class FailsOnce:
    """Passes records on, and fails at one of them the first time."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.failures = 0
        self.seen = 0

    def __call__(self, row: Any) -> Any:
        self.seen += 1
        if row.id == self.at and not self.failures:
            self.failures += 1
            raise ValueError("the first time")
        return {"id": row.id}


@pytest.mark.parametrize("way", ["live", "live rows", "independent", "staged"])
async def test_each_row_counts_once_after_a_failure(
    spark: Any, tmp_path: Path, way: str
) -> None:
    df = spark.range(0, ROWS, 1, 3)
    options: dict[str, Any] = {
        "live": {"order_by": "id", "partitions": 3},
        "live rows": {"order_by": "id", "partitions": 3, "path": "rows"},
        "independent": {"splits": "independent"},
        "staged": {"order_by": "id", "stage": tmp_path / "stage"},
    }[way]
    source = SparkSource(df, batch_rows=500, **options)
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(0.05, directory=tmp_path / "checkpoints")
    env.set_restart_strategy(am.restart.fixed_delay(3, 0.01))
    function = FailsOnce(4500)

    async def paced(row: Any) -> Any:
        """Give checkpoints time to come between the rows."""
        import asyncio

        if row.id % 250 == 0:
            await asyncio.sleep(0.05)
        return row

    stream = env.from_source(source).map_async(paced, concurrency=1).map(function)
    stream.sink_to(am.ParquetSink(tmp_path / "out"))
    await env.execute()
    assert function.failures == 1
    # It went on, and did not begin anew.
    assert function.seen < ROWS + 4500
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.id for row in rows) == list(range(ROWS))
