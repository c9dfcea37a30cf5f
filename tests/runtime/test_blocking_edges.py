"""Records that are kept in files, and read when all of them are written."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.connectors.collection import IteratorSource
from aiomailbox.errors import InvalidArgumentError, JobFailedError

COUNT = 5_000


class Trials:
    """Where functions were opened, and the values that they still stumble over."""

    def __init__(self, *values: int) -> None:
        self.opened: Counter[str] = Counter()
        self.waiting = list(values)
        self.log: list[str] = []

    def __deepcopy__(self, memo: Any) -> Trials:
        return self


class Stage(am.ProcessFunction[int, int]):
    """Says when it begins and ends; stumbles over some values, each time once."""

    def __init__(self, name: str, trials: Trials) -> None:
        self.name = name
        self.trials = trials

    def open(self, context: am.RuntimeContext) -> None:
        self.trials.opened[self.name] += 1
        self.trials.log.append(f"{self.name} begins")

    def process_element(self, value: int, context: Any, out: Any) -> None:
        if self.name == "second" and value in self.trials.waiting:
            self.trials.waiting.remove(value)
            raise RuntimeError(f"stumbled over {value}")
        out.collect(value)

    def finish(self, out: Any) -> None:
        self.trials.log.append(f"{self.name} ends")


def two_stages(env: Any, trials: Trials, count: int = COUNT) -> Any:
    first = env.from_collection(list(range(count))).process(Stage("first", trials))
    return first.blocking().rebalance().process(Stage("second", trials))


@pytest.mark.parametrize("parallelism", [1, 3])
async def test_who_reads_begins_when_who_writes_has_ended(parallelism: int) -> None:
    env = am.StreamExecutionEnvironment(parallelism=parallelism)
    trials = Trials()
    results = await two_stages(env, trials).collect()
    assert sorted(results) == list(range(COUNT))
    assert trials.opened == {"first": parallelism, "second": parallelism}
    begins = trials.log.index("second begins")
    assert "first ends" not in trials.log[begins:]


async def test_who_fails_reads_again_and_who_writes_runs_once() -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    env.configure(restart=am.restart.fixed_delay(3, 0.01))
    trials = Trials(1_000, 4_000)
    seen: list[int] = []
    two_stages(env, trials).sink_to(seen.append)
    async with env.start() as job:
        await job.result()
    assert set(seen) == set(range(COUNT))
    assert trials.opened["first"] == 2
    assert trials.opened["second"] == 4


async def test_keys_watermarks_and_several_stages_pass_through_files() -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    rows = [(key, n * 1_000) for n in range(20) for key in "ab"]
    stream = env.from_collection(rows).assign_timestamps_and_watermarks(
        am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
            lambda row, _: row[1]
        )
    )
    counts = (
        stream.blocking()
        .key_by(lambda row: row[0])
        .window(am.TumblingEventTimeWindows.of(am.seconds(10)))
        .aggregate(am.aggregates(rows=am.count()))
    )
    totals = counts.map(lambda row: row.rows).key_by(lambda n: n % 2).blocking()
    assert sorted(await totals.map(lambda n: n).collect()) == [10] * 4


async def test_files_are_in_the_scratch_directory_and_go_with_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    open_files: list[str] = []

    def look(value: int) -> int:
        if value == 0:
            links = Path("/proc/self/fd").iterdir()
            names = [os.readlink(one) for one in links if one.is_symlink()]
            open_files.extend(one for one in names if one.startswith(str(tmp_path)))
        return value

    env = am.StreamExecutionEnvironment()
    numbers = env.from_collection(list(range(100))).map(lambda n: n).blocking()
    await numbers.map(look).collect()
    assert any("aiomailbox-job-" in one for one in open_files)
    assert list(tmp_path.iterdir()) == []


async def test_a_full_disk_fails_who_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, data_type: Any, content: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("aiomailbox.exchange.blocking.file.BlockingFile.append", refuse)
    env = am.StreamExecutionEnvironment()
    trials = Trials()
    with pytest.raises(JobFailedError, match="No space left"):
        await two_stages(env, trials).collect()
    assert "second" not in trials.opened


async def test_a_damaged_file_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from aiomailbox.exchange.blocking.file import BlockingFile

    read = BlockingFile.read
    damages = [True]

    def damaged(self: BlockingFile, offset: int, bytes_max: int) -> Any:
        if damages:
            damages.clear()
            file = self._file
            assert file is not None
            os.pwrite(file.fileno(), b"\xff", 12)
        return read(self, offset, bytes_max)

    monkeypatch.setattr(BlockingFile, "read", damaged)
    env = am.StreamExecutionEnvironment()
    env.configure(restart=am.restart.fixed_delay(1, 0.01))
    trials = Trials()
    seen: list[int] = []
    two_stages(env, trials).sink_to(seen.append)
    async with env.start() as job:
        await job.result()
    assert sorted(set(seen)) == list(range(COUNT))
    assert trials.opened["first"] == 2


async def test_what_does_not_go_together_is_refused() -> None:
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(am.seconds(1))
    with pytest.raises(InvalidArgumentError, match="read their records from files"):
        await two_stages(env, Trials()).collect()
    env = am.StreamExecutionEnvironment()
    endless = env.from_source(
        IteratorSource(itertools.count, bounded=False), name="numbers"
    )
    with pytest.raises(InvalidArgumentError, match="its source 'numbers' is unbounded"):
        await endless.map(lambda n: n).blocking().map(lambda n: n).collect()


async def test_explain_names_what_blocks() -> None:
    env = am.StreamExecutionEnvironment()
    two_stages(env, Trials()).sink_to(print)
    assert "blocking: in files, read when all is written" in env.explain()
