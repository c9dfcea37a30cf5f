"""Jobs that write Parquet: old or new data for readers, whatever ends them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import psutil
import pyarrow.parquet as pq
import pytest

import aiomailbox as am
from aiomailbox.errors import JobFailedError, SinkError, TargetExistsError
from aiomailbox.storage.local import Disk, ExchangeNotSupportedError
from tests.held import without_held

pytestmark = pytest.mark.real_time

CRASHES = Path(__file__).with_name("parquet_crashes.py")


def rows(path: Path) -> list[int]:
    return [row["n"] for row in pq.read_table(path).to_pylist()]


def writing(
    target: Path, numbers: range, mode: Literal["error", "overwrite"] = "error"
) -> am.StreamExecutionEnvironment:
    env = am.StreamExecutionEnvironment()
    records = env.from_collection([{"n": n} for n in numbers])
    records.sink_to(am.ParquetSink(target, mode=mode))
    return env


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("mode", "before", "without_target"),
    [
        ("overwrite", ["old", "swaps"], 0),
        # Where directories cannot be exchanged: between the two steps.
        ("overwrite", ["old"], 1),
        ("error", [], None),
    ],
)
def test_a_job_that_is_killed_at_any_file_operation_leaves_old_or_new(
    tmp_path: Path, mode: str, before: list[str], without_target: int | None
) -> None:
    ended = subprocess.run(
        [sys.executable, str(CRASHES), str(tmp_path), mode, *before],
        capture_output=True,
        text=True,
        check=True,
    )
    results = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(results) > 14
    *crashed, last = results
    assert {code for _, code, *_ in crashed} == {77}
    assert last[1:3] == [0, "new"]
    seen = [then for _, _, then, *_ in results]
    assert "part" not in seen
    assert "new" in seen[:-1]
    if without_target is not None:
        assert seen[0] == "old"
        assert seen.count("nothing") == without_target
    # Whoever writes there next succeeds, and leaves nothing beside it.
    assert [end for *_, end in results] == [[]] * len(results)
    assert {(code, then) for _, _, _, code, then, _ in results} == {(0, "new")}


class RefusingDisk:
    """Refuses the step that would make one directory visible."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, swaps: bool) -> None:
        exchange, move = Disk.exchange, Disk.move

        def refuse(*paths: Path) -> None:
            if name in {path.name for path in paths}:
                raise OSError(5, "the disk refuses")

        def try_exchange(disk: Disk, one: Path, other: Path) -> None:
            if not swaps:
                raise ExchangeNotSupportedError("as told")
            refuse(one, other)
            exchange(disk, one, other)

        def try_move(disk: Disk, one: Path, other: Path) -> None:
            if one.name == "new":
                refuse(one, other)
            move(disk, one, other)

        monkeypatch.setattr(Disk, "exchange", try_exchange)
        monkeypatch.setattr(Disk, "move", try_move)


@pytest.mark.parametrize("swaps", [True, False])
async def test_a_second_sink_that_cannot_commit_gives_the_first_its_old_data_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swaps: bool
) -> None:
    for name in ("one", "two"):
        await writing(tmp_path / name, range(3)).execute()
    env = am.StreamExecutionEnvironment()
    records = env.from_collection([{"n": n} for n in range(10, 20)])
    for name in ("one", "two"):
        records.sink_to(am.ParquetSink(tmp_path / name, mode="overwrite")).name(name)
    RefusingDisk(monkeypatch, "two", swaps)
    with pytest.raises(JobFailedError, match="the disk refuses") as caught:
        await env.execute()
    assert "in commit() of operator 'two'" in caught.value.__cause__.__notes__[0]
    assert os.listdir(tmp_path) in (["one", "two"], ["two", "one"])
    for name in ("one", "two"):
        assert rows(tmp_path / name) == [0, 1, 2]
        assert (tmp_path / name / "_SUCCESS").exists()


async def test_a_second_sink_that_cannot_commit_takes_the_first_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = am.StreamExecutionEnvironment()
    records = env.from_collection([{"n": 1}])
    for name in ("one", "two"):
        records.sink_to(am.ParquetSink(tmp_path / name))
    RefusingDisk(monkeypatch, "two", swaps=True)
    with pytest.raises(JobFailedError, match="the disk refuses"):
        await env.execute()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("mode", ["error", "overwrite"])
async def test_of_two_jobs_on_one_target_one_is_refused(
    tmp_path: Path, mode: Literal["error", "overwrite"]
) -> None:
    target = tmp_path / "out"
    jobs = [
        asyncio.create_task(
            writing(target, range(start, start + 5000), mode).execute(name)
        )
        for start, name in [(0, "first"), (10_000, "second")]
    ]
    ends = await asyncio.gather(*jobs, return_exceptions=True)
    refused = [end for end in ends if isinstance(end, Exception)]
    assert len(refused) == 1
    assert isinstance(refused[0].__cause__, SinkError)
    winner = "first" if ends[1] in refused else "second"
    assert f"written by job '{winner}' (process {os.getpid()})" in str(refused[0])
    start = 0 if winner == "first" else 10_000
    assert sorted(rows(target)) == list(range(start, start + 5000))
    assert os.listdir(tmp_path) == ["out"]


async def test_two_jobs_do_not_write_into_one_new_directory(tmp_path: Path) -> None:
    jobs = [writing(tmp_path / "out", range(100)).execute() for _ in range(2)]
    ends = await asyncio.gather(*jobs, return_exceptions=True)
    assert sorted(isinstance(end, JobFailedError) for end in ends) == [False, True]
    with pytest.raises(JobFailedError) as caught:
        await writing(tmp_path / "out", range(100)).execute()
    assert isinstance(caught.value.__cause__, TargetExistsError)
    assert rows(tmp_path / "out") == list(range(100))


async def test_two_sinks_of_one_job_on_one_target_are_refused(tmp_path: Path) -> None:
    env = am.StreamExecutionEnvironment()
    sink = am.ParquetSink(tmp_path / "out", mode="overwrite")
    env.from_collection([{"n": 1}]).sink_to(sink)
    env.from_collection([{"n": 2}]).sink_to(sink)
    with pytest.raises(JobFailedError, match=r"by another sink of this job.*its own"):
        await env.execute()
    assert os.listdir(tmp_path) == []


async def test_a_link_is_followed_by_writers_and_committer(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk/data")
    await writing(tmp_path / "out", range(3)).execute()
    await writing(tmp_path / "disk" / ".." / "out", range(7), "overwrite").execute()
    assert (tmp_path / "out").is_symlink()
    assert rows(tmp_path / "disk" / "data") == list(range(7))
    assert os.listdir(tmp_path / "disk") == ["data"]


async def test_a_name_may_be_as_long_as_the_system_allows(tmp_path: Path) -> None:
    target = tmp_path / ("é" * 127)
    await writing(target, range(3)).execute()
    await writing(target, range(7), "overwrite").execute()
    assert rows(target) == list(range(7))
    with pytest.raises(JobFailedError, match="name too long"):
        await writing(tmp_path / ("é" * 128), range(3)).execute()
    assert len(os.listdir(tmp_path)) == 1


INTERRUPTED = """
import sys, time
from pathlib import Path
import aiomailbox as am
from aiomailbox.errors import JobFailedError, SinkError, TargetExistsError
from aiomailbox.storage.local import Disk

step = sys.argv[2]
original = getattr(Disk, step)
def slow(self, *paths):
    print("in the commit", flush=True)
    time.sleep(0.3)
    original(self, *paths)
setattr(Disk, step, slow)
env = am.StreamExecutionEnvironment()
records = env.from_collection([{"n": n} for n in range(10_000)])
target = Path(sys.argv[1])
records.sink_to(am.ParquetSink(target, mode="overwrite", rows_per_file=4000))
am.run(env.execute())
"""


@pytest.mark.parametrize(
    ("step", "interrupts"), [("move", 2), ("exchange", 1), ("exchange", 3)]
)
async def test_interrupting_a_commit_again_and_again_leaves_old_or_new(
    tmp_path: Path, step: str, interrupts: int
) -> None:
    target = tmp_path / "out"
    await writing(target, range(2000)).execute()
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(target), step],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"in the commit\n"
        for _ in range(interrupts):
            program.send_signal(signal.SIGINT)
            time.sleep(0.05)
        program.wait(100)
    found = rows(target)
    assert sorted(found) in (list(range(2000)), list(range(10_000)))
    assert (target / "_SUCCESS").exists()
    await writing(target, range(5), "overwrite").execute()
    assert rows(target) == list(range(5))
    assert os.listdir(tmp_path) == ["out"]


async def test_old_data_is_there_until_the_job_commits(tmp_path: Path) -> None:
    target = tmp_path / "out"
    await writing(target, range(3)).execute()
    gate = asyncio.Event()

    async def records() -> Any:
        yield {"n": 10}
        await gate.wait()

    env = am.StreamExecutionEnvironment()
    sink = am.ParquetSink(target, mode="overwrite", row_group_rows=1)
    env.from_async_iterable(records).sink_to(sink)
    async with env.start() as job:
        while not list(tmp_path.rglob("*-0-00000.parquet")):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert rows(target) == [0, 1, 2]
        gate.set()
        await job.result()
    assert rows(target) == [10]


FULL_DISK = """
import resource, sys
import aiomailbox as am

resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
env = am.StreamExecutionEnvironment()
records = env.from_collection([{"n": n, "text": str(n) * 9} for n in range(50_000)])
records.sink_to(am.ParquetSink(sys.argv[1], mode="overwrite", row_group_rows=5000))
try:
    am.run(env.execute())
except am.JobFailedError as error:
    print(type(error.__cause__).__name__, error.__cause__, error.__cause__.__notes__)
"""


async def test_a_file_that_may_not_grow_fails_the_job_and_leaves_the_old_data(
    tmp_path: Path,
) -> None:
    target = tmp_path / "out"
    await writing(target, range(3)).execute()
    ended = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(target)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.startswith("SinkError cannot write Parquet into")
    assert "File too large" in ended.stdout
    assert "operator 'ParquetSink'" in ended.stdout
    log = without_held(ended.stderr)
    assert log.startswith("ERROR aiomailbox: the job failed")
    assert log.count("\n") == 1
    assert rows(target) == [0, 1, 2]
    assert os.listdir(tmp_path) == ["out"]


WORKING = """
import itertools, sys
from aiomailbox.connectors.collection import IteratorSource
import aiomailbox as am

env = am.StreamExecutionEnvironment(parallelism=2)
env.configure(deployment=am.Processes(2))
source = IteratorSource(itertools.count, bounded=False)
records = env.from_source(source).rebalance().map(lambda n: {"n": n})
records.sink_to(am.ParquetSink(sys.argv[1], mode="overwrite", rows_per_file=100))
am.run(env.execute())
"""


@pytest.mark.timeout(120)
async def test_what_worker_processes_of_a_killed_program_wrote_is_swept(
    tmp_path: Path,
) -> None:
    target = tmp_path / "out"
    await writing(target, range(3)).execute()
    with subprocess.Popen([sys.executable, "-c", WORKING, str(target)]) as program:
        while len(list(tmp_path.glob(".out*/*/*.parquet"))) < 20:
            assert program.poll() is None
            await asyncio.sleep(0.02)
        workers = psutil.Process(program.pid).children(recursive=True)
        program.kill()
    psutil.wait_procs(workers, timeout=60)
    assert rows(target) == [0, 1, 2]
    await writing(target, range(5), "overwrite").execute()
    assert rows(target) == list(range(5))
    # What a worker wrote in its last moment goes with the next job.
    await writing(target, range(6), "overwrite").execute()
    assert os.listdir(tmp_path) == ["out"]
