"""Jobs with checkpoints: their targets have every row once, whatever fails or is killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import aiomailbox as am
from aiomailbox.connectors.sql.sink import SqlCommitter
from aiomailbox.errors import JobFailedError
from tests.connectors.exactly_once.program import COUNT, KEYS

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("program.py")
ROOT = Path(__file__).parents[3]


def in_directory(path: Path) -> list[int]:
    """The numbers that a reader finds, in order."""
    if not path.exists():
        return []
    return sorted(row["n"] for row in ds.dataset(path).to_table().to_pylist())


async def in_table(database: Any) -> list[int]:
    return [
        row[0] for row in await database.execute("SELECT n FROM numbers ORDER BY n")
    ]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def endless(after: int | None) -> Any:
    number = 0 if after is None else after + 1
    while True:
        yield {"n": number}
        number += 1
        if number % 10 == 0:
            await asyncio.sleep(0.005)


async def test_an_endless_job_shows_its_rows_with_every_checkpoint(
    tmp_path: Path,
) -> None:
    target = tmp_path / "out"
    env = am.StreamExecutionEnvironment().enable_checkpointing(None)
    sink = am.ParquetSink(target, row_group_rows=1)
    env.from_async_iterable(endless, offset="n").sink_to(sink)
    async with env.start("endless") as job:
        seen: list[int] = []
        for _ in range(3):
            async with asyncio.timeout(60):
                while in_directory(target) == seen:
                    await asyncio.sleep(0.05)
                    # Nothing is seen that no checkpoint has.
                    assert in_directory(target) == seen
                    with contextlib.suppress(am.CheckpointFailedError):
                        # It may not run yet.
                        await job.trigger_checkpoint()
            seen = in_directory(target)
            assert seen == list(range(len(seen)))
            assert not (target / "_SUCCESS").exists()
        await job.stop(drain=True)
        await job.result()
    numbers = in_directory(target)
    assert numbers == list(range(len(numbers)))
    # None may have come between the last checkpoint and the stop.
    assert len(numbers) >= len(seen)
    assert (target / "_SUCCESS").exists()


class FailsNowAndThen:
    """Fails every so many calls, in all attempts together."""

    calls = 0

    def __init__(self, every: int, times: int) -> None:
        self.every = every
        self.left = times

    async def __call__(self, number: int) -> dict[str, int]:
        FailsNowAndThen.calls += 1
        if FailsNowAndThen.calls % self.every == 0 and self.left:
            self.left -= 1
            raise ValueError("now and then")
        if number % 10 == 0:
            await asyncio.sleep(0.001)
        return {"n": number}


def failing_job(sink: Any, *, directory: Path | None = None) -> Any:
    env = am.StreamExecutionEnvironment(parallelism=2)
    env.enable_checkpointing(am.seconds(0.02), directory=directory)
    env.configure(restart=am.restart.fixed_delay(20, 0.01))
    rows = env.from_collection(range(2_000)).map(FailsNowAndThen(350, 4))
    rows.rebalance().sink_to(sink)
    return env


async def test_a_directory_has_each_row_once_after_failures(tmp_path: Path) -> None:
    env = failing_job(am.ParquetSink(tmp_path / "out"))
    async with env.start() as job:
        await job.result()
        assert job.restarts == 4
    assert in_directory(tmp_path / "out") == list(range(2_000))
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


async def test_a_table_has_each_row_once_after_failures(database: Any) -> None:
    await database.execute("CREATE TABLE numbers (n bigint)")
    env = failing_job(am.SqlSink(database.url, "numbers"))
    async with env.start() as job:
        await job.result()
        assert job.restarts == 4
    assert await in_table(database) == list(range(2_000))
    assert await database.execute("SELECT 1 FROM aiomailbox_staged_numbers") == []


async def test_what_all_subtasks_prepared_is_committed_by_the_next_attempt(
    sqlite: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is complete, and its first commit fails."""
    await sqlite.execute("CREATE TABLE numbers (n bigint)")
    commit, failures = SqlCommitter.commit, []

    async def failing(self: SqlCommitter, committables: Any, **facts: Any) -> None:
        if len(committables) > 1 and len(failures) < 3:
            failures.append(len(committables))
            raise ValueError("not yet")
        await commit(self, committables, **facts)

    monkeypatch.setattr(SqlCommitter, "commit", failing)
    env = failing_job(am.SqlSink(sqlite.url, "numbers"))
    async with env.start() as job:
        await job.result()
    assert len(failures) == 3
    assert await in_table(sqlite) == list(range(2_000))


async def test_a_job_goes_on_from_a_savepoint_into_the_same_directory(
    tmp_path: Path,
) -> None:
    target = tmp_path / "out"

    def job() -> am.StreamExecutionEnvironment:
        env = am.StreamExecutionEnvironment()
        env.enable_checkpointing(am.seconds(0.05), directory=tmp_path / "checkpoints")
        rows = env.from_async_iterable(endless, offset="n")
        rows.uid("numbers").sink_to(am.ParquetSink(target)).uid("out")
        return env

    seen = 0
    savepoint = None
    for number in range(2):
        async with job().start("endless", restore_from=savepoint) as running:
            async with asyncio.timeout(60):
                while len(in_directory(target)) == seen:
                    await asyncio.sleep(0.01)
            place = tmp_path / f"savepoint-{number}"
            savepoint = (await running.stop_with_savepoint(place)).place
        numbers = in_directory(target)
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > seen
        seen = len(numbers)


async def test_a_job_that_failed_for_good_leaves_what_it_committed_and_can_go_on(
    tmp_path: Path,
) -> None:
    target = tmp_path / "out"

    def job(*, is_mended: bool) -> Any:
        env = am.StreamExecutionEnvironment()
        env.enable_checkpointing(
            am.seconds(0.02),
            directory=tmp_path / "checkpoints",
            retention=am.Retention.ON_FAILURE,
        )
        env.configure(restart=am.restart.none())

        async def numbers(after: int | None) -> AsyncIterator[int]:
            for number in range(0 if after is None else after + 1, 800):
                if number == 500 and not is_mended:
                    await until(lambda: bool(in_directory(target)))
                yield number

        def check(number: int) -> dict[str, int]:
            if number == 500 and not is_mended:
                raise ValueError("five hundred")
            return {"n": number}

        source = env.from_async_iterable(numbers, offset=lambda number: number)
        rows = source.uid("numbers").map(check).uid("check")
        rows.sink_to(am.ParquetSink(target)).uid("out")
        return env

    with pytest.raises(JobFailedError, match="five hundred"):
        await job(is_mended=False).execute("orders")
    committed = in_directory(target)
    assert committed == list(range(len(committed)))
    assert 0 < len(committed) <= 500
    await job(is_mended=True).execute("orders", restore_from="latest")
    assert in_directory(target) == list(range(800))
    assert (target / "_SUCCESS").exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["checkpoints", "out"]


@pytest.mark.parametrize("workers", [0, 2])
async def test_a_program_that_is_killed_at_random_moments_loses_and_repeats_no_row(
    tmp_path: Path, sqlite: Any, postgres: Any, workers: int
) -> None:
    """Into a directory and two databases at once."""
    for one in (sqlite, postgres):
        await one.execute("CREATE TABLE numbers (n bigint, key bigint)")

    def checkpoints() -> set[Path]:
        return set((tmp_path / "checkpoints").glob("*/chk-*/_metadata"))

    moments = random.Random(workers)
    kills, ended = 0, False
    while not ended:
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            str(PROGRAM),
            str(tmp_path),
            postgres.url,
            str(workers),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        )
        try:
            if kills < 3:
                # Once it has completed a checkpoint, and a moment.
                before = checkpoints()
                while not checkpoints() - before:
                    assert program.returncode is None
                    await asyncio.sleep(0.01)
                await asyncio.sleep(moments.uniform(0, 0.3))
                program.kill()
                kills += 1
            else:
                (tmp_path / "gate").touch()
            output, _ = await program.communicate()
        finally:
            # One that outlived this test would keep the lease of those that follow.
            with contextlib.suppress(ProcessLookupError):
                program.kill()
        ended = output == b"ended\n"
        assert ended or program.returncode == -9
        for numbers in (
            in_directory(tmp_path / "rows"),
            await in_table(sqlite),
            await in_table(postgres),
        ):
            assert len(numbers) == len(set(numbers))
    assert kills == 3
    expected = list(range(COUNT))
    assert in_directory(tmp_path / "rows") == expected
    assert await in_table(sqlite) == expected
    assert await in_table(postgres) == expected
    keys = await sqlite.execute("SELECT count(DISTINCT key) FROM numbers")
    assert keys == [(KEYS,)]
    left = await postgres.execute("SELECT 1 FROM aiomailbox_staged_numbers")
    assert left == []
