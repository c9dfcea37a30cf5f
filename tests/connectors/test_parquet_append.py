"""Appending to a directory: what is there stays, what is added is there once."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import aiomailbox as am
from aiomailbox.errors import SinkError
from aiomailbox.storage.local import Disk
from aiomailbox.storage.staged_directory import GrowingDirectory
from tests.connectors.sinks_by_hand import Program
from tests.storage.test_directory_logs import followed, listed

pytestmark = pytest.mark.real_time


def rows(path: Path) -> list[int]:
    return sorted(row["n"] for row in ds.dataset(path).to_table().to_pylist())


def numbers(*values: int) -> list[dict[str, int]]:
    return [{"n": value} for value in values]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def program(
    target: Path, job_id: str, lineage: str = "the directory", **options: Any
) -> Program:
    sink = partial(am.ParquetSink, target, mode="append", **options)
    return Program(sink, job_id=job_id, lineage=lineage, parallelism=2)


async def run(target: Path, *values: int, fails: bool = False, **options: Any) -> None:
    env = am.StreamExecutionEnvironment()
    sink = am.ParquetSink(target, mode="append", rows_per_file=2, **options)
    records = env.from_collection(numbers(*values))
    records.sink_to(sink)
    if fails:
        # Commits after the other.
        records.sink_to(am.ParquetSink(target.parent / "missing" / "x"))
    await env.execute()


async def test_each_job_adds_to_what_is_there(target: Path) -> None:
    for first in range(0, 12, 4):
        await run(target, *range(first, first + 4))
        assert rows(target) == list(range(first + 4))
    assert os.listdir(target.parent) == ["out"]


@pytest.mark.parametrize("mode", ["error", "append"])
@pytest.mark.parametrize("checkpoints", [False, True])
async def test_followers_and_spark_are_told_of_all_files(
    target: Path, mode: Any, checkpoints: bool
) -> None:
    env = am.StreamExecutionEnvironment()
    if checkpoints:
        env.enable_checkpointing(None, directory=target.parent / "checkpoints")
    sink = am.ParquetSink(
        target, mode=mode, rows_per_file=2, follow="keep", spark_log=True
    )
    env.from_collection(numbers(*range(6))).uid("numbers").sink_to(sink).uid("out")
    await env.execute()
    assert rows(target) == list(range(6))
    files = sorted(path.name for path in target.glob("*.parquet"))
    assert len(files) == 3
    assert sorted(followed(target)) == sorted(listed(target)) == files


async def test_what_another_job_of_the_same_job_id_has_prepared_is_neither_taken_nor_lost(
    target: Path,
) -> None:
    """Their checkpoints are in directories of their own, and count from 1 in each."""
    killed = program(target, "one")
    await killed.start()
    await killed.write(*numbers(1))
    await killed.prepare()
    killed.complete()
    await killed.crash()
    other = program(target, "one", lineage="another directory")
    with pytest.raises(SinkError, match=r"has prepared for .* commits when it goes on"):
        await other.start()
    await killed.start()
    assert rows(target) == [1]
    await killed.checkpoint(end=True)
    await killed.end(succeeded=True)
    await other.start()
    await other.write(*numbers(2))
    await other.checkpoint(end=True)
    await other.end(succeeded=True)
    assert rows(target) == [1, 2]


async def test_a_file_is_not_taken_for_committed_because_another_job_came_further(
    target: Path,
) -> None:
    killed = program(target, "one")
    await killed.start()
    await killed.write(*numbers(1))
    await killed.prepare()
    killed.complete()
    await killed.crash()
    # Somebody has removed what the error before names.
    for file in target.parent.glob(".out*/*/*.parquet"):
        file.unlink()
    other = program(target, "one", lineage="another directory")
    await other.start()
    for number in (2, 3):
        await other.write(*numbers(number))
        await other.checkpoint()
    await other.end(succeeded=True)
    with pytest.raises(SinkError, match=r"is gone\. Its records are lost"):
        await killed.start()
    await killed.crash()


async def test_a_job_goes_on_from_what_versions_without_lineages_have_prepared(
    target: Path,
) -> None:
    before = program(target, "one", lineage="")
    await before.start()
    await before.write(*numbers(1))
    await before.checkpoint()
    await before.write(*numbers(2), subtask=1)
    await before.prepare()
    before.complete()
    await before.write(*numbers(3))
    await before.crash()
    # A reader took away what it had passed.
    for file in target.glob("*.parquet"):
        file.unlink()
    before.prepared.insert(0, (1, f"{before.prepared[0][1].split('/')[0]}/part-gone"))
    before.lineage = "the directory"
    await before.start()
    assert rows(target) == [2]
    assert not list(target.parent.glob(".out*/*/*.parquet"))
    await before.write(*numbers(3))
    await before.checkpoint(end=True)
    await before.end(succeeded=True)
    assert rows(target) == [2, 3]
    assert os.listdir(target.parent) == ["out"]


@pytest.mark.parametrize("follow", [None, "keep"])
async def test_jobs_with_checkpoints_add_to_each_others_files(
    target: Path, follow: Any
) -> None:
    for turn, job_id in enumerate(("one", "two", "one")):
        job = program(target, job_id, follow=follow)
        await job.start()
        await job.write(*numbers(10 * turn), subtask=0)
        await job.write(*numbers(10 * turn + 1), subtask=1)
        await job.checkpoint()
        await job.write(*numbers(10 * turn + 2))
        await job.prepare()
        await job.crash()
        await job.start()
        await job.write(*numbers(10 * turn + 3))
        await job.checkpoint(end=True)
        await job.end(succeeded=True)
    assert rows(target) == [0, 1, 3, 10, 11, 13, 20, 21, 23]
    assert os.listdir(target.parent) == ["out"]


@pytest.mark.parametrize("follow", [None, "keep"])
async def test_a_job_that_fails_takes_back_what_it_has_added(
    target: Path, follow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(target, 1, 2, follow=follow)
    mark = GrowingDirectory._mark
    calls: list[int] = []

    def fail_in_the_end(self: GrowingDirectory, committed: Any) -> None:
        mark(self, committed)
        calls.append(1)
        raise OSError("the disk is full")

    monkeypatch.setattr(GrowingDirectory, "_mark", fail_in_the_end)
    with pytest.raises(am.JobFailedError, match="disk is full"):
        await run(target, 3, 4, 5, 6, follow=follow)
    assert calls
    monkeypatch.undo()
    assert rows(target) == [1, 2]
    await run(target, 7, follow=follow)
    assert rows(target) == [1, 2, 7]


async def test_what_a_crash_has_left_half_added_the_next_job_removes(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(target, 1, 2)
    move = Disk.move
    moved: list[Path] = []

    class Crash(BaseException):
        """Stands for the end of the program."""

    def die_between(self: Disk, source: Path, final: Path) -> None:
        if final.suffix == ".parquet":
            if moved:
                raise Crash
            moved.append(final)
        move(self, source, final)

    directory = GrowingDirectory(target, "4f1a", overwrite=False, append=True)
    directory.begin("job", restored=False)
    staging = directory._workplace.staging("4f1a")
    for name in ("a", "b"):
        path = staging / f"{name}.parquet"
        path.write_bytes(next(target.glob("*.parquet")).read_bytes())
    monkeypatch.setattr(Disk, "move", die_between)
    with pytest.raises(Crash):
        directory.commit(
            ["4f1a/a.parquet", "4f1a/b.parquet"], checkpoint_id=0, is_final=True
        )
    monkeypatch.undo()
    claim = directory._workplace._claim
    assert claim is not None
    claim._close()
    assert rows(target) == [1, 1, 2, 2]
    await run(target, 3)
    assert rows(target) == [1, 2, 3]
    assert os.listdir(target.parent) == ["out"]


async def test_a_file_is_no_directory(target: Path) -> None:
    target.write_text("no")
    with pytest.raises(am.JobFailedError) as failure:
        await run(target, 1)
    assert isinstance(failure.value.__cause__, SinkError)
