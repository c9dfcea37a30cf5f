"""A worker is killed: what shares no data with its tasks goes on, in its processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from tests.runtime.processes.programs import Held

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]

COUNT = 8_000
# The second half of each part waits until the first one has been killed.
HELD = COUNT // 4


class Noted(am.ProcessFunction[int, tuple[int, int]]):
    """Writes down where and in which process it is opened."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def open(self, context: am.RuntimeContext) -> None:
        self.subtask = context.subtask_index
        name = f"opened-{self.subtask}-{context.attempt}-{os.getpid()}"
        Path(self.directory, name).touch()

    def process_element(self, value: int, context: Any, out: Any) -> None:
        out.collect((self.subtask, value))


def opened(directory: Path) -> dict[int, list[tuple[int, int]]]:
    """By subtask its attempts and their processes."""
    found: dict[int, list[tuple[int, int]]] = {}
    for path in sorted(directory.glob("opened-*")):
        subtask, attempt, pid = map(int, path.name.split("-")[1:])
        found.setdefault(subtask, []).append((attempt, pid))
    return found


@pytest.mark.parametrize(
    ("checkpoints", "how"),
    [(True, signal.SIGKILL), (False, signal.SIGKILL), (True, signal.SIGSTOP)],
)
async def test_the_region_of_a_killed_worker_begins_again_and_the_other_goes_on(
    tmp_path: Path, checkpoints: bool, how: signal.Signals
) -> None:
    """One that is stopped is silent: it is declared dead, and killed before its follower."""
    where = tmp_path / "opened"
    where.mkdir()
    # Who is killed is missed at once; only who is stopped is missed by its silence, which
    # is longer than a busy machine keeps the other one waiting.
    silent_s = 8 if how == signal.SIGSTOP else 50
    env = am.StreamExecutionEnvironment(
        parallelism=2, config=am.JobConfig(heartbeat_timeout=am.seconds(silent_s))
    )
    gate = tmp_path / "gate"
    if checkpoints:
        env.enable_checkpointing(am.seconds(0.05), directory=tmp_path / "checkpoints")
    # One failure: what ends because of it is not another one.
    env.configure(restart=am.restart.fixed_delay(1, 0.01))
    env.configure(deployment=am.Processes(2))
    target = tmp_path / "out"
    sink = am.FileSink(target, format="jsonl")
    values = env.from_source(Held(COUNT, gate, HELD))
    values.process(Noted(str(where))).map(as_row).sink_to(sink)
    async with env.start() as job:
        while len(opened(where)) < 2 or (checkpoints and not job.checkpoints()):
            await asyncio.sleep(0.01)
        before = opened(where)
        victim = before[1][0][1]
        os.kill(victim, how)
        while job.restarts == 0:
            await asyncio.sleep(0.01)
        assert job.state is am.JobState.RUNNING
        gate.touch()
        await job.result()
    after = opened(where)
    assert after[0] == before[0]
    assert len(after[1]) == 2
    assert after[1][1][0] > after[1][0][0]
    assert job.restarts == 1
    rows = Counter(
        line
        for path in target.rglob("*.jsonl")
        for line in path.read_text().splitlines()
    )
    assert len(rows) == COUNT
    assert set(rows.values()) == {1}


def as_row(pair: tuple[int, int]) -> dict[str, int]:
    return {"subtask": pair[0], "value": pair[1]}


async def test_a_region_begins_again_beside_others_of_its_worker(
    tmp_path: Path,
) -> None:
    where = tmp_path / "opened"
    where.mkdir()
    env = am.StreamExecutionEnvironment(parallelism=4)
    env.enable_checkpointing(am.seconds(0.05))
    env.configure(restart=am.restart.fixed_delay(1, 0.01))
    env.configure(deployment=am.Processes(2))
    values = env.from_collection(list(range(COUNT)))
    stumbles = Stumbles(str(where))
    rows = values.process(Noted(str(where))).map(stumbles).map(as_row)
    rows.sink_to(am.FileSink(tmp_path / "out", format="jsonl"))
    async with env.start() as job:
        await job.result()
    after = opened(where)
    assert job.restarts == 1
    assert [len(after[subtask]) for subtask in range(4)] == [1, 1, 2, 1]
    # In the process that it was in.
    assert len({pid for _, pid in after[2]}) == 1
    rows_found = [
        line
        for path in (tmp_path / "out").rglob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert len(rows_found) == len(set(rows_found)) == COUNT


class Stumbles:
    """Raises once in the middle of the third subtask's values."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def __call__(self, pair: tuple[int, int]) -> tuple[int, int]:
        mark = Path(self.directory, "stumbled")
        if pair[0] == 2 and pair[1] % 500 == 0 and not mark.exists():
            mark.touch()
            raise RuntimeError("stumbled")
        return pair


async def test_of_two_pipelines_the_one_without_the_killed_worker_goes_on(
    tmp_path: Path,
) -> None:
    """With keys in it, and barriers that overtake: a region is more than one chain."""
    where = tmp_path / "opened"
    where.mkdir()
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(
        am.seconds(0.05), directory=tmp_path / "checkpoints", unaligned=True
    )
    env.configure(restart=am.restart.fixed_delay(1, 0.01))
    env.configure(deployment=am.Processes(2))
    gate = tmp_path / "gate"
    for name in ("left", "right"):
        directory = where / name
        directory.mkdir()
        numbers = env.from_source(Held(COUNT, gate, HELD))
        noted = numbers.slot_sharing_group(name).process(Noted(str(directory)))
        sums = noted.map(with_key).key_by(key_of).reduce(add_up).map(as_row)
        sums.sink_to(am.FileSink(tmp_path / f"{name}-out", format="jsonl"))
    async with env.start() as job:
        while not job.checkpoints() or not all(map(opened, where.iterdir())):
            await asyncio.sleep(0.01)
        before = opened(where / "left")
        os.kill(opened(where / "right")[0][0][1], signal.SIGKILL)
        while job.restarts == 0:
            await asyncio.sleep(0.01)
        gate.touch()
        await job.result()
    assert job.restarts == 1
    assert opened(where / "left") == before
    assert len(opened(where / "right")[0]) == 2
    found = {
        name: sorted(
            line
            for path in (tmp_path / f"{name}-out").rglob("*.jsonl")
            for line in path.read_text().splitlines()
        )
        for name in ("left", "right")
    }
    # Each update of each key once, in both.
    assert len(found["left"]) == COUNT
    assert found["left"] == found["right"]


def with_key(pair: tuple[int, int]) -> tuple[int, int]:
    return pair[1] % 7, pair[1]


def key_of(pair: tuple[int, int]) -> int:
    return pair[0]


def add_up(one: tuple[int, int], two: tuple[int, int]) -> tuple[int, int]:
    return one[0], one[1] + two[1]
