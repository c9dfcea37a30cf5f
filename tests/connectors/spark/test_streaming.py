"""Micro-batches of Structured Streaming in a pipeline."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.connectors.spark.streaming import SparkStreamSource
from aiomailbox.errors import InvalidArgumentError, SourceChangedError

pytestmark = pytest.mark.spark


@pytest.fixture
def arrivals(spark: Any, tmp_path: Path) -> Any:
    """Give a streaming DataFrame of a directory, a batch a file, and who adds files."""
    place = tmp_path / "arrivals"
    place.mkdir()

    class Arrivals:
        count = 0

        @property
        def df(self) -> Any:
            reader = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
            return reader.parquet(str(place))

        def add(self, start: int, stop: int) -> None:
            draft = tmp_path / f"draft-{self.count}"
            spark.range(start, stop, 1, 1).write.parquet(str(draft))
            [file] = draft.glob("*.parquet")
            file.rename(place / f"{self.count:05d}.parquet")
            self.count += 1

    return Arrivals()


def source(arrivals: Any, tmp_path: Path, **options: Any) -> SparkStreamSource:
    options = {"trigger": {"availableNow": True}, "batch_rows": 8, **options}
    return SparkStreamSource(arrivals.df, tmp_path / "query", **options)


def active(spark: Any) -> list[Any]:
    return list(spark.streams.active)


async def test_all_batches_come_and_the_query_ends_with_the_job(
    spark: Any, arrivals: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = "earlier batches are missing from it"
    arrivals.add(0, 30)
    arrivals.add(30, 40)
    env = am.StreamExecutionEnvironment()
    stream = env.from_source(source(arrivals, tmp_path))
    assert [row.id for row in await stream.collect()] == list(range(40))
    assert active(spark) == []
    assert missing not in caplog.text
    # Spark has taken both for done: only what is new comes the next time.
    arrivals.add(40, 50)
    again = env.from_source(source(arrivals, tmp_path))
    assert [row.id for row in await again.collect()] == list(range(40, 50))
    assert missing in caplog.text


async def test_a_new_reader_goes_on_in_the_middle_of_a_batch(
    spark: Any, arrivals: Any, tmp_path: Path, drive: Any
) -> None:
    arrivals.add(0, 30)
    arrivals.add(30, 40)
    first = drive(source(arrivals, tmp_path), takes_checkpoints=False, records_max=7)
    head = list(await first.read(runs_max=2))
    state = first.reader.snapshot()
    await first.close()
    assert active(spark) == []
    second = drive(
        source(arrivals, tmp_path), takes_checkpoints=False, records_max=7, splits=state
    )
    tail = await second.read()
    await second.close()
    assert [row.id for row in head + tail] == list(range(40))


async def test_a_batch_that_a_checkpoint_holds_is_passed_over_when_it_comes_again(
    spark: Any, arrivals: Any, tmp_path: Path, drive: Any
) -> None:
    arrivals.add(0, 10)
    first = drive(source(arrivals, tmp_path), takes_checkpoints=False)
    first.contexts[0].takes_checkpoints = True
    await first.read(runs_max=2)
    while first.reader.snapshot()[0].batch == 0:
        await first.reader.availability.wait()
        first.reader.poll_next(first.output)
        await asyncio.sleep(0.05)
    first.reader.prepare_snapshot(1)
    state = first.reader.snapshot()
    # The checkpoint is complete, and the program dies before Spark hears of it.
    await first.close()
    arrivals.add(10, 15)
    second = drive(source(arrivals, tmp_path), takes_checkpoints=False, splits=state)
    assert [row.id for row in await second.read()] == list(range(10, 15))
    await second.close()


async def test_spark_takes_a_batch_for_done_when_a_checkpoint_holds_it(
    spark: Any, arrivals: Any, tmp_path: Path
) -> None:
    arrivals.add(0, 10)
    arrivals.add(10, 20)
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(None, directory=tmp_path / "checkpoints")
    seen: list[int] = []
    all_of = {10: asyncio.Event(), 20: asyncio.Event()}

    def see(row: Any) -> None:
        seen.append(row.id)
        if len(seen) in all_of:
            all_of[len(seen)].set()

    stream = env.from_source(source(arrivals, tmp_path, trigger=None))
    stream.sink_to(see)
    done = tmp_path / "query" / "commits"

    def commits() -> list[str]:
        return sorted(path.name for path in done.glob("[0-9]*"))

    async with env.start() as job:
        await all_of[10].wait()
        # Time for the query to go on wrongly: Spark answers something else meanwhile.
        await asyncio.to_thread(spark.range(100).count)
        assert seen == list(range(10))
        assert commits() == []
        await job.trigger_checkpoint()
        await all_of[20].wait()
        assert seen == list(range(20))
        assert commits() == ["0"]
        await job.cancel()
    assert active(spark) == []


async def test_a_position_of_another_query_is_refused(
    spark: Any, arrivals: Any, tmp_path: Path, drive: Any
) -> None:
    arrivals.add(0, 30)
    first = drive(source(arrivals, tmp_path), takes_checkpoints=False, records_max=7)
    await first.read(runs_max=2)
    state = first.reader.snapshot()
    await first.close()
    other = SparkStreamSource(
        arrivals.df, tmp_path / "other", trigger={"availableNow": True}
    )
    second = drive(other, takes_checkpoints=False, splits=state)
    with pytest.raises(SourceChangedError, match="is that of query"):
        await second.read()
    await second.close()


async def test_an_endless_query_ends_when_the_job_is_cancelled(
    spark: Any, arrivals: Any, tmp_path: Path
) -> None:
    arrivals.add(0, 30)
    env = am.StreamExecutionEnvironment()
    stream = env.from_source(source(arrivals, tmp_path, trigger=None))
    assert len(await stream.take(5)) == 5
    assert active(spark) == []
    names = [thread.name for thread in threading.enumerate()]
    assert "spark-stream-source" not in names


@pytest.mark.usefixtures("no_job")
def test_what_is_no_stream_is_refused(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="bounded"):
        SparkStreamSource(spark.range(3), tmp_path)


async def test_a_running_pipeline_is_a_streaming_dataframe_over_its_directory(
    spark: Any, tmp_path: Path
) -> None:
    """Each row comes once, and none before the checkpoint that holds it."""
    place = tmp_path / "results"
    given, arrived = asyncio.Event(), asyncio.Event()

    def watch(row: Any) -> Any:
        if row["n"] == 9:
            arrived.set()
        return row

    async def numbers() -> Any:
        for n in range(10):
            yield {"n": n}
        await given.wait()
        for n in range(10, 15):
            yield {"n": n}

    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(
        None,
        directory=tmp_path / "checkpoints",
        mode=am.CheckpointingMode.AT_LEAST_ONCE,
    )
    env.from_async_iterable(numbers).map(watch).sink_to(am.ParquetSink(place))

    async def take() -> list[int]:
        """Let a query go on, and return what it has seen in all."""
        seen = tmp_path / "seen"
        stream = spark.readStream.schema("n long").parquet(str(place))
        writer = stream.writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "reader"))
        query = await asyncio.to_thread(writer.start, str(seen))
        await asyncio.to_thread(query.awaitTermination)
        rows = spark.read.schema("n long").parquet(str(seen))
        return sorted(row.n for row in await asyncio.to_thread(rows.collect))

    async with env.start() as job:
        await arrived.wait()
        assert not place.exists()
        await job.trigger_checkpoint()
        assert await take() == list(range(10))
        assert await take() == list(range(10))
        given.set()
        await job.result()
    assert await take() == list(range(15))
