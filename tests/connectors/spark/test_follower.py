"""A directory that a pipeline writes, as a streaming DataFrame: each row once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.connectors.spark.session import register_format
from aiomailbox.errors import SinkError
from aiomailbox.storage.local import Disk
from tests.connectors.sinks_by_hand import Program
from tests.connectors.spark.killing import run_until_killed

pytestmark = [pytest.mark.spark, pytest.mark.real_time]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def follow(spark: Any, target: Path, tmp_path: Path) -> Callable[..., Any]:
    """Give what lets a query take what there is, and returns all it has ever seen."""
    register_format(spark)

    async def follow(
        name: str = "one", schema: str = "n long", **options: Any
    ) -> list[Any]:
        stream = spark.readStream.format("aiomailbox").schema(schema)
        stream = stream.options(reader=name, **options).load(str(target))
        writer = stream.writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / f"query-{name}"))
        seen = tmp_path / f"seen-{name}"
        await asyncio.to_thread(run_to_its_end, writer, seen)
        if not seen.exists():
            return []
        rows = spark.read.schema(schema).parquet(str(seen))
        return sorted(row.n for row in await asyncio.to_thread(rows.collect))

    return follow


def run_to_its_end(writer: Any, place: Path) -> None:
    """Run a query; a busy machine may need more than Spark's 10 s to start Python."""
    for attempts_left in range(4, -1, -1):
        try:
            writer.start(str(place)).awaitTermination()
        except Exception as error:
            if attempts_left and "failed to connect back" in str(error):
                continue
            raise
        return


def numbers(*values: int) -> list[dict[str, int]]:
    return [{"n": value} for value in values]


def program(target: Path, follow: Any = "delete", **options: Any) -> Program:
    sink = partial(am.ParquetSink, target, follow=follow, **options)
    return Program(sink, parallelism=2)


async def test_a_commit_is_seen_whole_or_not_at_all(
    target: Path, follow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = program(target)
    await job.start()
    assert await follow() == []
    await job.write(*numbers(1), subtask=0)
    await job.write(*numbers(2), subtask=1)
    await job.checkpoint()
    assert await follow() == [1, 2]
    await job.write(*numbers(3), subtask=0)
    await job.write(*numbers(4), subtask=1)
    await job.prepare()
    job.complete()
    moved: list[Path] = []
    move = Disk.move

    def move_one(self: Disk, source: Path, final: Path) -> None:
        if final.suffix == ".parquet":
            if moved:
                raise OSError("the program dies between two files")
            moved.append(final)
        move(self, source, final)

    monkeypatch.setattr(Disk, "move", move_one)
    with contextlib.suppress(SinkError):
        await job.commit()
    assert len(list(target.glob("*.parquet"))) == 3
    assert await follow() == [1, 2]
    monkeypatch.undo()
    await job.crash()
    await job.start()
    assert await follow() == [1, 2, 3, 4]
    await job.end(succeeded=True)


async def test_with_sparks_own_log_its_own_readers_see_a_commit_whole_too(
    spark: Any, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = program(target, follow=None, spark_log=True, partition_by="day")

    def rows(first: int) -> list[dict[str, Any]]:
        return [{"n": n, "day": f"d {n % 2}"} for n in (first, first + 1)]

    async def seen() -> tuple[list[int], list[int]]:
        """Return what a streaming reader has seen in all, and a new one sees."""
        schema = "n long, day string"
        stream = spark.readStream.schema(schema).parquet(str(target))
        writer = stream.writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "query"))
        await asyncio.to_thread(run_to_its_end, writer, tmp_path / "seen")
        frames = [
            spark.read.schema(schema).parquet(str(place))
            for place in (tmp_path / "seen", target)
        ]
        found = [await asyncio.to_thread(frame.collect) for frame in frames]
        followed, read = ([row.n for row in rows] for rows in found)
        assert {row.day for rows in found for row in rows} == {"d 0", "d 1"}
        return sorted(followed), sorted(read)

    await job.start()
    await job.write(*rows(0), subtask=0)
    await job.write(*rows(2), subtask=1)
    await job.checkpoint()
    assert await seen() == ([0, 1, 2, 3], [0, 1, 2, 3])
    await job.write(*rows(4), subtask=0)
    await job.write(*rows(6), subtask=1)
    await job.prepare()
    job.complete()
    moved: list[Path] = []
    move = Disk.move

    def move_two(self: Disk, source: Path, final: Path) -> None:
        if final.suffix == ".parquet":
            if len(moved) == 2:
                raise OSError("the program dies between two files")
            moved.append(final)
        move(self, source, final)

    monkeypatch.setattr(Disk, "move", move_two)
    with contextlib.suppress(SinkError):
        await job.commit()
    assert len(list(target.rglob("*.parquet"))) == 6
    assert await seen() == ([0, 1, 2, 3], [0, 1, 2, 3])
    monkeypatch.undo()
    await job.crash()
    await job.start()
    assert await seen() == (list(range(8)), list(range(8)))
    await job.end(succeeded=True)


async def test_what_all_readers_have_passed_is_deleted_but_for_the_newest(
    target: Path, follow: Any
) -> None:
    def left() -> int:
        return len(list(target.glob("*.parquet")))

    job = program(target)
    await job.start()
    for n in range(3):
        await job.write(*numbers(n))
        await job.checkpoint()
    assert await follow("one") == [0, 1, 2]
    assert await follow("two", maxFilesPerTrigger=1) == [0, 1, 2]
    for n in (3, 4):
        await job.write(*numbers(n))
        await job.checkpoint()
    # Spark passes a micro-batch when it begins the next one.
    assert await follow("one") == [0, 1, 2, 3, 4]
    assert left() == 5 - 2
    assert await follow("two") == [0, 1, 2, 3, 4]
    assert left() == 2
    await job.write(*numbers(5))
    await job.checkpoint()
    # Whoever comes late sees what is left.
    assert await follow("three") == [3, 4, 5]
    await job.end(succeeded=True)


async def test_a_directory_that_was_replaced_is_another_one(
    target: Path, follow: Any
) -> None:
    job = program(target)
    await job.start()
    await job.write(*numbers(1))
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await follow() == [1]
    again = program(target, mode="overwrite")
    again.job_id = "another"
    await again.start()
    await again.write(*numbers(2))
    await again.checkpoint(end=True)
    await again.end(succeeded=True)
    with pytest.raises(Exception, match="another checkpointLocation"):
        await follow()


async def test_a_reader_without_a_name_cannot_hold_files(
    spark: Any, target: Path, follow: Any
) -> None:
    job = program(target)
    await job.start()
    await job.write(*numbers(1))
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    with pytest.raises(Exception, match="give this one a name"):
        await follow("")
    with pytest.raises(Exception, match="use letters"):
        await follow("../x")


async def test_a_query_that_is_killed_in_mid_batch_sees_each_row_once(
    target: Path, tmp_path: Path, follow: Any
) -> None:
    """Python, Java and the workers die at once, with some rows of a batch written."""
    job = program(target)
    await job.start()
    for commit in range(5):
        await job.write(*numbers(*range(10 * commit, 10 * commit + 10)))
        await job.checkpoint()
    await run_until_killed("reader_program.py", tmp_path, "25")

    def batches(what: str) -> list[str]:
        found = (tmp_path / "query-one" / what).glob("[0-9]*")
        return sorted(path.name for path in found)

    # The third micro-batch was begun.
    assert (batches("offsets"), batches("commits")) == (["0", "1", "2"], ["0", "1"])
    # Whose commits have passed, and are deleted, and which is under way.
    assert len(list(target.glob("*.parquet"))) == 5 - 2
    await job.write(*numbers(50, 51))
    await job.checkpoint()
    assert await follow() == list(range(52))
    await job.end(succeeded=True)


async def test_all_at_once_and_partitioned(
    spark: Any, target: Path, follow: Any, tmp_path: Path
) -> None:
    env = am.StreamExecutionEnvironment()
    records = [{"n": n, "odd": n % 2 == 1, "day": f"d {n % 3}"} for n in range(30)]
    sink = am.ParquetSink(target, partition_by=["odd", "day"], follow="keep")
    env.from_collection(records).sink_to(sink)
    await env.execute()
    schema = "day string, n long, odd boolean"
    df = spark.read.format("aiomailbox").schema(schema).load(str(target))
    rows = await asyncio.to_thread(df.collect)
    assert sorted((r.n, r.odd, r.day) for r in rows) == [
        (r["n"], r["odd"], r["day"]) for r in records
    ]
    found = spark.read.format("aiomailbox").load(str(target)).schema
    assert found.simpleString() == "struct<n:bigint,odd:string,day:string>"
    assert await follow(schema=schema) == list(range(30))


async def test_a_directory_without_a_log_is_refused(
    spark: Any, target: Path, follow: Any
) -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection(numbers(1)).sink_to(am.ParquetSink(target))
    await env.execute()
    with pytest.raises(Exception, match="has no log of commits"):
        await follow()


async def test_a_job_that_goes_on_needs_the_log_it_began_with(target: Path) -> None:
    job = program(target, follow=None)
    await job.start()
    await job.write(*numbers(1))
    await job.checkpoint()
    await job.crash()
    job.new_sink = partial(am.ParquetSink, target, follow="keep")
    with pytest.raises(Exception, match="begun without follow="):
        await job.start()


@pytest.mark.parametrize("seed", [0])
async def test_each_row_comes_once_whichever_side_is_killed(
    spark: Any, target: Path, tmp_path: Path, follow: Any, seed: int
) -> None:
    """The writer is killed at random commits, and goes on."""
    random_ = random.Random(seed)
    program = Path(__file__).with_name("follower_program.py")
    count, lives = 240, 3
    halted = tmp_path / "halted"
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}

    def commits() -> list[int]:
        found = (target / "_aiomailbox" / "commits").glob("*.json")
        return [int(path.stem) for path in found]

    newest = [-1]
    for life in range(1, lives + 1):
        # It ends in its last life only.
        halts_at = -1 if life == lives else life * count // lives
        arguments = [str(tmp_path), str(count), str(halts_at)]
        writer = await asyncio.create_subprocess_exec(
            sys.executable, str(program), *arguments, env=environment
        )
        if life == lives:
            assert await writer.wait() == 0
        else:
            wanted = newest[-1] + random_.randint(1, 4)
            while True:
                assert writer.returncode is None
                last = max(commits(), default=-1)
                if last >= wanted or (last > newest[-1] and halted.exists()):
                    break
                await asyncio.sleep(0.01)
            writer.kill()
            await writer.wait()
            halted.unlink(missing_ok=True)
            newest.append(max(commits()))
        seen = await follow()
        assert seen == list(range(len(seen)))
    assert len(seen) == count
    # What earlier lives of the writer committed has been passed, and deleted.
    assert min(commits()) > newest[1]
