"""What becomes of checkpoints, savepoints and commits when the data of a job ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import CheckpointFailedError, UsageError
from aiomailbox.operators.core.operator import Operator
from aiomailbox.supervision import run_in_thread
from tests.runtime.rows_writer import RowsWriter


class Kept:
    """A sink that commits, and what was committed by which checkpoint."""

    def __init__(self) -> None:
        self.commits: list[tuple[int, list[int]]] = []

    def create_writer(self, context: Any) -> Any:
        return RowsWriter()

    def create_committer(self, context: Any) -> Any:
        return Committer(self.commits)

    @property
    def rows(self) -> list[int]:
        return sorted(row for _, rows in self.commits for row in rows)


class Committer:
    def __init__(self, commits: list[tuple[int, list[int]]]) -> None:
        self._commits = commits

    def begin(self, *, restored: bool) -> None: ...

    def commit(
        self, committables: list[int], *, checkpoint_id: int, is_final: bool
    ) -> None:
        if committables:
            self._commits.append((checkpoint_id, sorted(committables)))

    def end(self, *, succeeded: bool) -> None: ...


class Declines(am.ProcessFunction, am.CheckpointedFunction):
    """Cannot be snapshotted the first times that it is asked."""

    def __init__(self, times: int) -> None:
        self.left = [times]

    def initialize_state(self, context: Any) -> None: ...

    def snapshot_state(self, context: Any) -> None:
        if self.left[0]:
            self.left[0] -= 1
            message = "not now"
            raise RuntimeError(message)

    def process_element(self, value: int, context: Any, out: Any) -> None:
        out.collect(value)


def environment(interval: float | None = 3600, **settings: Any) -> Any:
    env = am.StreamExecutionEnvironment(parallelism=2)
    every = None if interval is None else am.seconds(interval)
    env.enable_checkpointing(every, **settings)
    return env.configure(restart=am.restart.fixed_delay(3, 0.01))


async def forever(after: int | None) -> AsyncIterator[int]:
    number = 0 if after is None else after + 1
    while True:
        yield number
        number += 1
        await asyncio.sleep(0.001)


def endless(env: Any) -> Any:
    return env.from_async_iterable(forever, offset=lambda number: number).uid("numbers")


async def test_the_rows_after_the_last_checkpoint_are_committed_by_one_more() -> None:
    """SEM-222, SEM-240, MB-100: nobody waits for an interval of an hour."""
    sink = Kept()
    env = environment()
    env.from_collection(list(range(100))).sink_to(sink)
    async with env.start() as job:
        await job.result()
        (last,) = job.checkpoints()
    assert sink.rows == list(range(100))
    assert {checkpoint_id for checkpoint_id, _ in sink.commits} == {
        last.completed.checkpoint_id
    }


async def test_tasks_wait_until_their_last_checkpoint_is_complete() -> None:
    """MB-101, MB-105, SEM-233: two cannot be taken, the third is what they wait for."""
    sink = Kept()
    env = environment(tolerable_failures=5)
    function = Declines(2)
    env.from_collection(list(range(100))).process(function).set_parallelism(1).sink_to(
        sink
    )
    async with env.start() as job:
        await job.result()
        assert job.restarts == 0
        (last,) = job.checkpoints()
    assert last.completed.checkpoint_id == 3
    assert sink.rows == list(range(100))
    # It commits what was prepared for the one that failed, under that one's number.
    assert {checkpoint_id for checkpoint_id, _ in sink.commits} == {1}


async def test_checkpoints_wait_while_those_that_failed_are_still_being_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SEM-211: else each that fails would add to what a slow storage has to do."""
    storage_answers = asyncio.Event()

    async def slowly(call: Any, *args: Any) -> Any:
        if call.__name__ == "discard":
            await storage_answers.wait()
        return await run_in_thread(call, *args)

    monkeypatch.setattr("aiomailbox.runtime.coordinator.run_in_thread", slowly)
    env = environment(0.05, tolerable_failures=100)
    declining = endless(env).process(Declines(50)).set_parallelism(1)
    declining.sink_to(lambda number: None)
    async with env.start() as job:
        await asyncio.sleep(2)
        while_it_does_not = job.metrics().checkpoints
        storage_answers.set()
        await asyncio.sleep(4)
        afterwards = job.metrics().checkpoints
    assert while_it_does_not["total_number_of_checkpoints"] == 2
    assert afterwards["number_of_failed_checkpoints"] == 50
    assert afterwards["number_of_completed_checkpoints"] > 0


async def test_a_savepoint_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    """SEM-230, MB-40, MB-41, MB-42, MB-43: whoever asked is told, and the job goes on."""
    taken = tmp_path / "file"
    taken.write_text("no directory")
    results: list[int] = []
    env = environment(None)
    endless(env).sink_to(results.append)
    async with env.start() as job:
        while len(results) < 50:
            await asyncio.sleep(0.01)
        with pytest.raises(CheckpointFailedError):
            await job.stop_with_savepoint(taken / "below")
        seen = max(results)
        while max(results) < seen + 100:
            await asyncio.sleep(0.01)
        place = await job.stop_with_savepoint(tmp_path / "place")
    assert Path(place.place).exists()
    # From where it went on, each once.
    assert set(results) == set(range(max(results) + 1))


async def test_a_job_is_stopped_with_one_savepoint(tmp_path: Path) -> None:
    """SEM-231."""
    env = environment(None)
    endless(env).sink_to(lambda _: None)
    async with env.start() as job:
        await asyncio.sleep(0.5)
        first = asyncio.create_task(job.stop_with_savepoint(tmp_path / "first"))
        await asyncio.sleep(0)
        with pytest.raises((UsageError, CheckpointFailedError)):
            await job.stop_with_savepoint(tmp_path / "second")
        await first
    assert (tmp_path / "first").exists()
    assert not (tmp_path / "second").exists()


async def test_a_job_that_is_starting_is_stopped_with_a_savepoint_once_it_runs(
    tmp_path: Path,
) -> None:
    env = environment(None)
    endless(env).sink_to(lambda _: None)
    async with env.start() as job:
        impatient = asyncio.create_task(job.stop_with_savepoint(tmp_path / "first"))
        await asyncio.sleep(0)
        impatient.cancel()
        await job.stop_with_savepoint(tmp_path / "second")
        assert job.state is am.JobState.FINISHED
        with pytest.raises(CheckpointFailedError, match="the job has ended"):
            await job.stop_with_savepoint(tmp_path / "third")
    assert am.Savepoint(tmp_path / "second").operators()
    assert not (tmp_path / "first").exists()


async def test_a_job_that_ends_before_it_runs_takes_no_savepoint(
    tmp_path: Path,
) -> None:
    env = environment(None)
    endless(env).sink_to(lambda _: None)
    async with env.start() as job:
        stopping = asyncio.create_task(job.stop_with_savepoint(tmp_path / "place"))
        await asyncio.sleep(0)
        await job.cancel()
        with pytest.raises(CheckpointFailedError, match="the job has ended"):
            await stopping


async def test_a_job_that_starts_again_is_stopped_with_a_savepoint_once_it_runs(
    tmp_path: Path,
) -> None:
    env = environment(None)
    env.configure(restart=am.restart.fixed_delay(3, 5))
    trouble = [ConnectionError("once")]

    def stumble(number: int) -> int:
        if trouble:
            raise trouble.pop()
        return number

    endless(env).map(stumble).sink_to(lambda _: None)
    async with env.start() as job:
        while job.state is not am.JobState.RESTARTING:
            await asyncio.sleep(0.01)
        await job.stop_with_savepoint(tmp_path / "place")
    assert am.Savepoint(tmp_path / "place").operators()


@pytest.mark.parametrize("drain", [False, True])
async def test_who_drains_has_no_windows_left_and_who_does_not_goes_on_with_them(
    tmp_path: Path, drain: bool
) -> None:
    """SEM-227, MB-38, MB-39, MB-113, MB-116."""

    def counts(results: list[int]) -> Any:
        env = environment(None)
        strategy = am.WatermarkStrategy.for_monotonous_timestamps()
        stream = env.from_async_iterable(
            forever,
            strategy.with_timestamp_assigner(lambda number, _: number),
            offset=lambda number: number,
        )
        keyed = stream.uid("numbers").key_by(lambda _: 0)
        windows = keyed.window(am.TumblingEventTimeWindows.of(am.seconds(3600)))
        windows.aggregate(am.count()).uid("windows").sink_to(results.append)
        return env

    first: list[int] = []
    async with counts(first).start() as job:
        await asyncio.sleep(0.3)
        await job.stop_with_savepoint(tmp_path / "place", drain=drain)
    assert len(first) == drain
    second: list[int] = []
    async with counts(second).start(restore_from=tmp_path / "place") as job:
        await asyncio.sleep(0.3)
        await job.stop(drain=True)
    if drain:
        # Event time has come to its end: whatever comes is late.
        assert second == []
    else:
        (count,) = second
        assert count > 300


async def test_a_savepoint_may_come_while_tasks_wait_for_their_last_checkpoint(
    tmp_path: Path,
) -> None:
    """MB-102: it is the one that they end with."""
    sink = Kept()
    env = environment(tolerable_failures=100)
    function = Declines(1)
    stream = env.from_collection(list(range(100))).process(function)
    stream.set_parallelism(1).sink_to(sink)
    async with env.start() as job:
        # The first has failed, and it takes a second to try again.
        while function.left[0]:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        await job.stop_with_savepoint(tmp_path / "place")
        await job.result()
    assert sink.rows == list(range(100))
    assert am.Savepoint(tmp_path / "place").operators()


@pytest.mark.parametrize("what", ["complete", "aborted"])
async def test_an_operator_that_fails_when_it_hears_of_a_checkpoint_fails_its_task(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """MB-58, MB-59."""
    told: list[int] = []

    def stumble(self: Operator, checkpoint_id: int) -> None:
        told.append(checkpoint_id)
        if len(told) == 1:
            message = "stumbled"
            raise RuntimeError(message)

    monkeypatch.setattr(Operator, f"notify_checkpoint_{what}", stumble)
    results: list[int] = []
    env = environment(None, tolerable_failures=5)
    function = Declines(what == "aborted")
    stream = endless(env).map(lambda number: number).process(function)
    stream.set_parallelism(1).sink_to(results.append)
    async with env.start() as job:
        while len(results) < 50:
            await asyncio.sleep(0.01)
        if what == "complete":
            await job.trigger_checkpoint()
        else:
            with pytest.raises(CheckpointFailedError):
                await job.trigger_checkpoint()
        while not job.restarts:
            await asyncio.sleep(0.01)
        # The others were told although one had failed.
        assert len(told) > 1
        await job.cancel()


async def test_a_savepoint_does_not_wait_for_what_was_read_ahead(
    tmp_path: Path,
) -> None:
    """A limit lets 20 records through in a minute, and thousands wait for it."""
    seen: list[int] = []

    def program() -> Any:
        async def echo(number: int) -> int:
            return number

        env = environment(None)
        limit = am.RateLimit(20, per=60.0, name="limit")
        calls = endless(env).map_async(echo, limit=limit, capacity=30).uid("calls")
        calls.set_parallelism(1).sink_to(seen.append)
        return env

    async with program().start() as job:
        await asyncio.sleep(10)
        begun = asyncio.get_running_loop().time()
        await job.stop_with_savepoint(tmp_path / "place")
        # The record that waits for room gets it with the next minute.
        assert asyncio.get_running_loop().time() - begun < 130
    before = len(seen)
    assert before < 100
    async with program().start(restore_from=tmp_path / "place") as job:
        while len(seen) < before + 200:
            await asyncio.sleep(1)
        await job.cancel()
    # Each once: in flight when it was cancelled are the last ones only.
    assert len(seen) == len(set(seen))
    assert set(range(before + 100)) <= set(seen)
