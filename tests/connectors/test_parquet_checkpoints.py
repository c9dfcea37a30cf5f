"""ParquetSink in a job with checkpoints: every row once, as soon as a checkpoint has it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import aiomailbox as am
from aiomailbox.errors import RecordTypeError, SinkError, TargetExistsError
from tests.connectors.sinks_by_hand import Program

pytestmark = pytest.mark.real_time


def rows(path: Path) -> list[int]:
    """What pyarrow finds in a directory."""
    return sorted(row["n"] for row in ds.dataset(path).to_table().to_pylist())


def numbers(*values: int) -> list[dict[str, int]]:
    return [{"n": value} for value in values]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def program(target: Path, parallelism: int = 1, **options: Any) -> Program:
    sink = partial(am.ParquetSink, target, **options)
    return Program(sink, parallelism=parallelism)


async def test_rows_appear_with_every_checkpoint_and_never_half_written(
    target: Path,
) -> None:
    job = program(target, parallelism=2, row_group_rows=1)
    await job.start()
    await job.write(*numbers(1), subtask=0)
    await job.write(*numbers(2), subtask=1)
    assert not target.exists()
    await job.prepare()
    job.complete()
    assert not target.exists()
    await job.commit()
    assert rows(target) == [1, 2]
    await job.write(*numbers(3))
    # Row groups are on the disk by now, where no reader looks.
    assert rows(target) == [1, 2]
    assert rows(target.parent) == [1, 2]
    await job.checkpoint()
    assert rows(target) == [1, 2, 3]
    assert not (target / "_SUCCESS").exists()
    await job.write(*numbers(4))
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert rows(target) == [1, 2, 3, 4]
    assert (target / "_SUCCESS").exists()
    assert os.listdir(target.parent) == ["out"]


async def test_files_are_named_after_job_sink_subtask_and_attempt(target: Path) -> None:
    job = program(target, parallelism=2)
    await job.start()
    await job.write(*numbers(1), subtask=1)
    await job.checkpoint()
    await job.crash()
    await job.start()
    await job.write(*numbers(2), subtask=1)
    await job.write(*numbers(3), subtask=0)
    await job.checkpoint()
    names = sorted(path.name for path in target.glob("*.parquet"))
    token = names[0].split("-")[2]
    assert names == [
        f"part-00000-{token}-1-00000.parquet",
        f"part-00001-{token}-0-00000.parquet",
        f"part-00001-{token}-1-00001.parquet",
    ]
    await job.end(succeeded=True)
    other = Program(lambda: am.ParquetSink(target, mode="overwrite"), job_id="x")
    await other.start()
    await other.write(*numbers(1))
    await other.checkpoint(end=True)
    (name,) = target.glob("*.parquet")
    assert token not in name.name
    await other.end(succeeded=True)


async def test_what_no_complete_checkpoint_has_is_written_again_and_seen_once(
    target: Path,
) -> None:
    job = program(target, row_group_rows=1)
    await job.start()
    await job.write(*numbers(1))
    await job.checkpoint()
    await job.write(*numbers(2))
    await job.prepare()
    await job.write(*numbers(3))
    await job.crash()
    assert rows(target) == [1]
    await job.start()
    await job.write(*numbers(2, 3))
    await job.checkpoint(end=True)
    assert rows(target) == [1, 2, 3]
    await job.end(succeeded=True)
    assert os.listdir(target.parent) == ["out"]


async def test_what_a_complete_checkpoint_has_is_committed_by_whoever_goes_on(
    target: Path,
) -> None:
    """SEM-238."""
    job = program(target)
    await job.start()
    await job.write(*numbers(1))
    await job.prepare()
    job.complete()
    await job.crash()
    assert not target.exists()
    await job.start()
    assert rows(target) == [1]
    # Again, as when it died before the next checkpoint.
    await job.crash()
    await job.start()
    assert rows(target) == [1]
    await job.end(succeeded=False)
    assert rows(target) == [1]


async def test_a_restart_of_the_tasks_removes_what_the_failed_attempt_prepared(
    target: Path,
) -> None:
    job = program(target, row_group_rows=1)
    await job.start()
    await job.write(*numbers(1))
    await job.prepare()
    failed = job.writers
    await job.restart()
    for writer in failed:
        await writer.close()
    workplace = next(target.parent.glob(".out*"))
    assert list(workplace.rglob("*.parquet")) == []
    await job.write(*numbers(1))
    await job.checkpoint(end=True)
    assert rows(target) == [1]
    await job.end(succeeded=True)


async def test_a_worker_of_a_dead_attempt_that_wakes_up_changes_nothing(
    target: Path,
) -> None:
    job = program(target, row_group_rows=1)
    await job.start()
    await job.write(*numbers(1))
    (dead,) = job.writers
    await job.restart()
    await job.write(*numbers(1))
    with pytest.raises(SinkError):
        # Its file has been removed: there is nothing to be made durable.
        await dead.flush(end_of_input=True)
    await dead.close()
    await job.checkpoint(end=True)
    assert rows(target) == [1]
    await job.end(succeeded=True)


async def test_overwrite_replaces_with_the_first_checkpoint_and_adds_from_then_on(
    target: Path,
) -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection(numbers(0)).sink_to(am.ParquetSink(target))
    await env.execute()
    with pytest.raises(TargetExistsError):
        await program(target).start()
    job = program(target, mode="overwrite")
    await job.start()
    await job.write(*numbers(1))
    assert rows(target) == [0]
    await job.checkpoint()
    assert rows(target) == [1]
    await job.crash()
    await job.start()
    await job.write(*numbers(2))
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert rows(target) == [1, 2]


async def test_a_failure_takes_nothing_back_that_was_committed(target: Path) -> None:
    job = program(target)
    await job.start()
    await job.write(*numbers(1))
    await job.checkpoint()
    await job.write(*numbers(2))
    await job.end(succeeded=False)
    assert rows(target) == [1]
    again = program(target)
    with pytest.raises(TargetExistsError, match="exists already"):
        await again.start()


async def test_a_column_gets_its_type_in_the_first_file_or_is_refused(
    target: Path,
) -> None:
    """Readers take the schema of one file for that of all."""
    job = program(target)
    await job.start()
    await job.write({"n": 1, "note": None})
    await job.checkpoint()
    await job.write({"n": 2, "note": "late"})
    with pytest.raises(RecordTypeError, match="Give ParquetSink a schema="):
        await job.prepare()
    await job.crash()


async def test_without_records_a_checkpoint_writes_no_file(target: Path) -> None:
    job = program(target)
    await job.start()
    await job.checkpoint()
    assert not target.exists()
    await job.checkpoint(end=True)
    assert sorted(os.listdir(target)) == [".aiomailbox", "_SUCCESS"]
    await job.end(succeeded=True)


async def test_contents_are_durable_before_a_checkpoint_may_have_them(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    job = program(target)
    await job.start()
    await job.write(*numbers(1))
    monkeypatch.setattr(os, "fsync", noted)
    await job.prepare()
    ((_, committable),) = job._pending
    staged = next(target.parent.glob(".out*")) / committable
    assert pq.read_table(staged).num_rows == 1
    assert synced == [str(staged), str(staged.parent)]
    await job.crash()
