"""Jobs over DataFrames that fail go on where their last checkpoint was taken."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import aiomailbox as am
from aiomailbox.connectors.spark import SparkSource
from aiomailbox.errors import SourceChangedError
from tests.connectors.spark.killing import run_until_killed
from tests.connectors.spark.live_program import Paced, build

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


def shown(place: Path) -> list[int]:
    parts = [pq.read_table(part) for part in (place / "out").glob("*.parquet")]
    return sorted(n for part in parts for n in part.column("id").to_pylist())


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
        if row.id % 250 == 0:
            await asyncio.sleep(0.05)
        return row

    stream = env.from_source(source).map_async(paced, concurrency=1).map(function)
    stream.sink_to(am.ParquetSink(tmp_path / "out"))
    await env.execute()
    assert function.failures == 1
    # It went on, and did not begin anew.
    assert function.seen < ROWS + 4500
    replays = env.explain().partition(" replays ")[2]
    assert replays.startswith("from (file, row) of its stage") == (way == "staged")
    assert ("if the DataFrame gives the same rows" in replays) == (way != "staged")
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.id for row in rows) == list(range(ROWS))


PROGRAM = """
import os
import sys

import aiomailbox as am
from aiomailbox.connectors.spark import SparkSource
from aiomailbox.errors import SourceChangedError
from tests.connectors.spark.live_program import Paced, build

place, dies_at = sys.argv[1], int(sys.argv[2])


class Dies:
    def __call__(self, row):
        if row.id == dies_at:
            os._exit(9)
        return {"id": row.id}


async def paced(row):
    import asyncio

    if row.id % 250 == 0:
        await asyncio.sleep(0.05)
    return row


async def main():
    source = SparkSource(None, stage=f"{place}/stage", batch_rows=500)
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(0.05, directory=f"{place}/checkpoints")
    stream = env.from_source(source).map_async(paced, concurrency=1).map(Dies())
    stream.sink_to(am.ParquetSink(f"{place}/out"))
    async with env.start("rows", restore_from="latest") as job:
        await job.result()


am.run(main())
"""


async def test_a_program_that_was_killed_goes_on_from_its_stage_without_spark(
    spark: Any, tmp_path: Path
) -> None:
    env = am.StreamExecutionEnvironment()
    df = spark.range(0, ROWS, 1, 3)
    staged = SparkSource(df, stage=tmp_path / "stage", order_by="id")
    assert len(await env.from_source(staged).collect()) == ROWS

    async def run(dies_at: int) -> int:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(dies_at)]
        process = await asyncio.create_subprocess_exec(*command)
        return await process.wait()

    assert await run(4500) == 9
    before = shown(tmp_path)
    # It had shown rows, and was killed between two checkpoints.
    assert 0 < len(before) < 4500
    assert await run(-1) == 0
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.id for row in rows) == list(range(ROWS))


async def test_a_program_that_was_killed_goes_on_with_the_same_dataframe(
    spark: Any, tmp_path: Path
) -> None:
    """Python and Java die in mid-partition; another Spark computes the rows again."""
    await run_until_killed("live_program.py", tmp_path, "4500")
    before = shown(tmp_path)
    # Some rows were shown, and the last ones were not in a checkpoint.
    assert 0 < len(before) < 4500
    other = build(spark.range(0, ROWS + 1, 1, 3), tmp_path, Paced(tmp_path, -1))
    with pytest.raises(am.JobFailedError) as failure:
        await other.execute("live", restore_from="latest")
    assert isinstance(failure.value.__cause__, SourceChangedError)
    # At most what its checkpoint held, and had not been shown yet.
    held = shown(tmp_path)
    assert len(before) <= len(held) < 4500
    assert held == list(range(len(held)))
    function = Paced(tmp_path, -1)
    env = build(spark.range(0, ROWS, 1, 3), tmp_path, function)
    await env.execute("live", restore_from="latest")
    assert shown(tmp_path) == list(range(ROWS))
    assert function.seen < ROWS
