"""Files of a blocking exchange in processes: read again, and lost with their worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]

COUNT = 2_000


class Stage(am.ProcessFunction[int, int]):
    """Writes down where and in which process it is opened.

    The second waits with its first record until the test says how it goes on: a file
    "stumble" lets one of its subtasks fail once.
    """

    def __init__(self, name: str, directory: str) -> None:
        self.name = name
        self.directory = directory

    def open(self, context: am.RuntimeContext) -> None:
        where = f"{self.name}-{context.subtask_index}-{context.attempt}-{os.getpid()}"
        Path(self.directory, where).touch()

    def process_element(self, value: int, context: Any, out: Any) -> None:
        if self.name == "second":
            while not Path(self.directory, "go-on").exists():
                time.sleep(0.01)
            with contextlib.suppress(FileNotFoundError):
                # Of two, one takes it.
                Path(self.directory, "stumble").unlink()
                raise RuntimeError("stumbled")
        out.collect(value)


def opened(directory: Path, stage: str) -> list[tuple[int, int, int]]:
    """Subtask, attempt and process of each opening of a stage."""
    found = [
        tuple(map(int, one.name.split("-")[1:])) for one in directory.glob(f"{stage}-*")
    ]
    return sorted(found)  # type: ignore[arg-type]


def as_row(value: int) -> dict[str, int]:
    return {"value": value}


async def run(tmp_path: Path, fail: Any) -> tuple[Path, Any]:
    where = tmp_path / "opened"
    where.mkdir()
    env = am.StreamExecutionEnvironment(parallelism=2)
    env.configure(restart=am.restart.fixed_delay(2, 0.01))
    env.configure(deployment=am.Processes(2))
    first = env.from_collection(list(range(COUNT))).process(Stage("first", str(where)))
    second = first.blocking().rebalance().process(Stage("second", str(where)))
    second.map(as_row).sink_to(am.FileSink(tmp_path / "out", format="jsonl"))
    async with env.start() as job:
        while len(opened(where, "second")) < 2:
            await asyncio.sleep(0.01)
        await fail(where, job)
        (where / "go-on").touch()
        await job.result()
    rows = Counter(
        line
        for path in (tmp_path / "out").rglob("*.jsonl")
        for line in path.read_text().splitlines()
    )
    assert len(rows) == COUNT
    assert set(rows.values()) == {1}
    return where, job


async def test_who_fails_reads_the_files_again_and_who_wrote_them_runs_once(
    tmp_path: Path,
) -> None:
    async def stumble(where: Path, job: Any) -> None:
        (where / "stumble").touch()

    where, job = await run(tmp_path, stumble)
    assert job.restarts == 1
    assert [one[0] for one in opened(where, "first")] == [0, 1]
    assert len(opened(where, "second")) > 2


async def test_files_that_are_lost_with_their_worker_are_written_again(
    tmp_path: Path,
) -> None:
    async def kill(where: Path, job: Any) -> None:
        (victim,) = {pid for index, _, pid in opened(where, "first") if index == 1}
        (worker,) = [one for one in job._job._host._workers if one.pid == victim]
        os.kill(victim, signal.SIGKILL)
        # Who reads from it notices as well, and would be restarted apart if it were first.
        while not worker.has_exited:
            await asyncio.sleep(0.01)

    where, job = await run(tmp_path, kill)
    assert job.restarts == 1
    # Who wrote the files of the other worker does not run again.
    assert [one[0] for one in opened(where, "first")] == [0, 1, 1]
    assert [one[0] for one in opened(where, "second")] == [0, 0, 1, 1]
    left = {one[2] for one in opened(where, "second") if one[0] == 0}
    assert len(left) == 1
