"""How far the reading of a DataFrame is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.api.job_progress import progress_of
from aiomailbox.connectors.spark.jobs import ReadProgress
from aiomailbox.connectors.spark.source import SparkSource


def test_partitions_to_come_are_taken_to_be_as_long_as_those_before() -> None:
    progress = ReadProgress()
    progress.begin(10.0, part=0, parts=4)
    progress.rows = 50
    assert progress.eta_s(11.0) is None
    progress.rows = 100
    progress.end_part(0)
    # 100 rows took 2 s, and 300 are left.
    assert progress.eta_s(12.0) == 6.0
    progress.rows = 150
    assert progress.eta_s(13.0) == 5.0
    progress.rows = 400
    assert progress.eta_s(18.0) == 0.0
    progress.end(4)
    assert (progress.parts_done, progress.eta_s(20.0)) == (4, 0.0)


def test_rows_that_were_counted_need_no_partition_to_end() -> None:
    progress = ReadProgress()
    progress.begin(0.0, part=0, parts=1, rows_left=1000)
    assert progress.eta_s(1.0) is None
    progress.rows = 250
    assert progress.eta_s(1.0) == 3.0


def test_after_a_restart_only_what_is_read_again_counts() -> None:
    progress = ReadProgress()
    progress.begin(0.0, part=2, parts=4, skipped=60)
    progress.rows = 40
    progress.end_part(2)
    assert progress.parts_done == 3
    assert progress.eta_s(1.0) == 1.0


def test_what_is_not_read_any_more_has_no_estimate() -> None:
    progress = ReadProgress()
    progress.begin(0.0, part=0, parts=1, rows_left=1000)
    progress.rows = 250
    progress.close()
    assert progress.eta_s(1.0) is None


def test_without_the_number_of_partitions_nothing_is_promised() -> None:
    progress = ReadProgress()
    progress.begin(0.0, part=0, parts=None)
    progress.rows = 100
    progress.end_part(0)
    assert progress.eta_s(1.0) is None
    progress.end(1)
    assert (progress.parts, progress.eta_s(1.0)) == (1, 0.0)


@pytest.mark.spark
@pytest.mark.parametrize("way", ["iterate", "push", "staged"])
async def test_a_job_tells_its_rows_partitions_and_end(
    spark: Any, tmp_path: Path, way: str
) -> None:
    """While it runs, and when it has ended."""
    ways: dict[str, dict[str, Any]] = {
        "iterate": {},
        "push": {"read": "push"},
        "staged": {"stage": tmp_path},
    }
    reached, released = asyncio.Event(), asyncio.Event()

    async def stop_at_a_row(row: Any) -> Any:
        if row.id == 6050:
            reached.set()
            await released.wait()
        return row

    env = am.StreamExecutionEnvironment()
    source = SparkSource(spark.range(0, 9000, 1, 3), batch_rows=500, **ways[way])
    rows = env.from_source(source, name="rows").map_async(stop_at_a_row, concurrency=1)
    rows.sink_to(lambda row: None)

    def told() -> tuple[Any, ...]:
        seen = job.metrics().operators["rows"]
        names = ("rows_read", "partitions", "partitions_done", "eta_s")
        return tuple(seen[name] for name in names)

    async with env.start() as job:
        await reached.wait()
        read, parts, done, eta_s = told()
        assert 6050 < read < 9000
        assert (parts, done) == (3, 2)
        assert eta_s > 0
        assert "left" in str(progress_of(job.snapshot()))
        released.set()
        await job.result()
        assert told() == (9000, 3, 3, 0.0)
