"""What Spark reads while a job writes, after it died, and when it is over."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.storage import StagedDirectory, staging_directory

pytestmark = pytest.mark.spark


def numbers(spark: Any, path: Path) -> list[int]:
    frame = spark.read.option("recursiveFileLookup", "true").parquet(str(path))
    return sorted(row.n for row in frame.collect())


async def write(target: Path, rows: range) -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    records = env.from_collection([{"n": n} for n in rows]).rebalance()
    records.sink_to(am.ParquetSink(target, mode="overwrite", rows_per_file=3))
    await env.execute()


async def test_spark_sees_old_or_new_data_and_nothing_that_is_half_written(
    spark: Any, tmp_path: Path
) -> None:
    target = tmp_path / "data" / "out"
    await write(target, range(5))
    dead = StagedDirectory(target, "dead", overwrite=True)
    dead.begin("a job that dies")
    staging = staging_directory(target, "dead")
    for file in target.glob("*.parquet"):
        os.link(file, staging / file.name)
    (staging / "half.parquet").write_bytes(b"PAR1")
    for place in (target, target.parent):
        assert numbers(spark, place) == [0, 1, 2, 3, 4]
    # As after the death of its process.
    claim = dead._workplace._claim
    assert claim is not None
    claim.release()
    assert numbers(spark, target.parent) == [0, 1, 2, 3, 4]
    await write(target, range(10, 17))
    assert numbers(spark, target.parent) == list(range(10, 17))
    assert os.listdir(target.parent) == ["out"]
