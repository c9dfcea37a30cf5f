"""What Spark reads while a job writes, after it died, and when it is over."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import aiomailbox as am
from aiomailbox.storage.spark_log import SparkLog
from aiomailbox.storage.staged_directory import StagedDirectory
from aiomailbox.storage.workplace import staging_directory

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


@pytest.mark.parametrize("spark_log", [True, False])
async def test_a_streaming_reader_beside_a_running_job_sees_nothing_half_written(
    spark: Any, tmp_path: Path, spark_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Spark's log a commit comes whole, of several files; without, a file does."""
    target, count = tmp_path / "out", 400
    batches: list[dict[str, list[int]]] = []
    commits: list[set[str]] = []
    append = SparkLog.append

    def appended(log: SparkLog, place: Path, number: int, names: Sequence[str]) -> None:
        append(log, place, number, names)
        if names:
            commits.append(set(names))

    monkeypatch.setattr(SparkLog, "append", appended)

    def take(batch: Any, _: int) -> None:
        files: dict[str, list[int]] = {}
        for row in batch.selectExpr("n", "input_file_name() AS file").collect():
            files.setdefault(Path(row.file).name, []).append(row.n)
        batches.append(files)

    async def paced() -> AsyncIterator[dict[str, int]]:
        """Let the reader keep up, so that it reads while files are written."""
        for n in range(count):
            while len(batches) < n // 100:
                await asyncio.sleep(0.01)
            yield {"n": n}

    def start() -> Any:
        stream = spark.readStream.schema("n long").parquet(str(target))
        writer = stream.writeStream.foreachBatch(take)
        return writer.option("checkpointLocation", str(tmp_path / "query")).start()

    env = am.StreamExecutionEnvironment(parallelism=2)
    env.enable_checkpointing(
        am.seconds(0.2),
        directory=tmp_path / "checkpoints",
        mode=am.CheckpointingMode.AT_LEAST_ONCE,
    )
    records = env.from_async_iterable(paced).rebalance()
    records.sink_to(am.ParquetSink(target, spark_log=spark_log, rows_per_file=20))
    async with env.start() as job:
        while not list(target.glob("*.parquet")):
            await asyncio.sleep(0.02)
        query = await asyncio.to_thread(start)
        try:
            await job.result()
            await asyncio.to_thread(query.processAllAvailable)
        finally:
            await asyncio.to_thread(query.stop)
    rows = [n for batch in batches for part in batch.values() for n in part]
    assert sorted(rows) == list(range(count))
    assert len(batches) >= 3
    # No file in two batches: each was complete when it appeared.
    names = [name for batch in batches for name in batch]
    assert len(names) == len(set(names))
    if not spark_log:
        return
    assert any(len(commit) > 1 for commit in commits)
    for commit in commits:
        assert sum(not commit.isdisjoint(batch) for batch in batches) == 1, commit


@pytest.mark.parametrize("commits", [3, 110])
def test_spark_reads_a_log_of_many_commits_and_one_that_was_compacted(
    spark: Any, tmp_path: Path, commits: int
) -> None:
    whole = tmp_path / "whole.parquet"
    parquet.write_table(pa.table({"n": [1]}), whole)
    target = tmp_path / "out"
    target.mkdir()
    log = SparkLog(target)
    log.create(target)
    for number in range(1, commits + 1):
        os.link(whole, target / f"{number}.parquet")
        log.append(target, number, [f"{number}.parquet"])
    os.link(whole, target / "uncommitted.parquet")
    assert spark.read.parquet(str(target)).count() == commits
    names = sorted(path.name for path in (target / "_spark_metadata").glob("[0-9]*"))
    assert ("201.compact" in names) == (commits > 101)


async def test_spark_itself_deletes_nothing_that_is_in_a_log(
    spark: Any, tmp_path: Path
) -> None:
    """Hence the format "aiomailbox" beside it, whose readers say how far they are."""
    target = tmp_path / "out"
    env = am.StreamExecutionEnvironment()
    records = env.from_collection([{"n": n} for n in range(3)])
    records.sink_to(am.ParquetSink(target, spark_log=True))
    await env.execute()
    reader = spark.readStream.schema("n long").option("cleanSource", "delete")
    writer = reader.parquet(str(target)).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(Exception, match=r"(?i)clean.*source"):
        await asyncio.to_thread(query.processAllAvailable)
    assert len(list(target.glob("*.parquet"))) == 1
