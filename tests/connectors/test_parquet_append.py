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
from aiomailbox.storage import Disk, GrowingDirectory
from tests.connectors.sinks_by_hand import Program

pytestmark = pytest.mark.real_time


def rows(path: Path) -> list[int]:
    return sorted(row["n"] for row in ds.dataset(path).to_table().to_pylist())


def numbers(*values: int) -> list[dict[str, int]]:
    return [{"n": value} for value in values]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def program(target: Path, job_id: str, **options: Any) -> Program:
    sink = partial(am.ParquetSink, target, mode="append", **options)
    return Program(sink, job_id=job_id, parallelism=2)


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


@pytest.mark.parametrize("follow", [None, "keep"])
async def test_jobs_with_checkpoints_add_to_each_others_files(
    target: Path, follow: Any
) -> None:
    for turn, job_id in enumerate(("one", "two", "one")):
        job = program(target, job_id, follow=follow)
        job._executions = 10 * turn
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
