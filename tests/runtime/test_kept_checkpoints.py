"""Which checkpoints a job leaves, and which of them the next one goes on from."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.checkpoint.layout import CheckpointMetadata
from aiomailbox.checkpoint.store import CheckpointStore
from aiomailbox.errors import (
    CheckpointFailedError,
    InvalidArgumentError,
    JobFailedError,
    JobFinishedError,
    NoCheckpointError,
)
from tests.connectors.databases import SqliteFile, sqlite
from tests.runtime.rows_writer import RowsWriter

__all__ = ["sqlite"]


class Rows:
    """A sink whose rows are visible once they are committed."""

    def __init__(self) -> None:
        self.visible: Counter[int] = Counter()
        # By the checkpoint before whose barrier they were prepared.
        self.committed: set[tuple[int, int]] = set()
        self.begun: list[int] = []
        # What a commit waits for.
        self.gate = asyncio.Event()
        self.gate.set()

    def create_writer(self, context: Any) -> Any:
        return RowsWriter()

    def create_committer(self, context: Any) -> Any:
        return _Committer(self)


class _Committer:
    def __init__(self, sink: Rows) -> None:
        self._sink = sink

    def begin(self, *, restored: bool) -> None: ...

    async def commit(
        self, committables: list[int], *, checkpoint_id: int, is_final: bool
    ) -> None:
        sink = self._sink
        sink.begun.append(checkpoint_id)
        await sink.gate.wait()
        for row in committables:
            # Idempotent, as committers are.
            if (checkpoint_id, row) not in sink.committed:
                sink.committed.add((checkpoint_id, row))
                sink.visible[row] += 1

    def end(self, *, succeeded: bool) -> None: ...


async def forever(after: int | None) -> AsyncIterator[int]:
    number = 0 if after is None else after + 1
    while True:
        yield number
        number += 1
        await asyncio.sleep(0.001)


async def hundred(after: int | None) -> AsyncIterator[int]:
    for number in range(0 if after is None else after + 1, 100):
        yield number


def program(sink: Any, directory: Any, source: Any = forever, **settings: Any) -> Any:
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(None, directory=directory, **settings)
    env.configure(restart=am.restart.fixed_delay(3, 0.01))
    numbers = env.from_async_iterable(source, offset=lambda number: number)
    numbers.uid("numbers").sink_to(sink).uid("rows")
    return env


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def kept(directory: Path) -> list[int]:
    found = directory.glob("*/chk-*/_metadata")
    return sorted(int(one.parent.name[4:]) for one in found)


async def some_checkpoints(job: Any, count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0.05)
        await job.trigger_checkpoint()


@pytest.mark.parametrize("named", [True, False])
async def test_a_checkpoint_that_has_no_metadata_yet_does_not_outlive_a_cancel(
    tmp_path: Path, named: bool
) -> None:
    """All tasks have acknowledged it, and it waits for the commit of the one before."""
    sink = Rows()
    env = program(sink, tmp_path if named else None, max_concurrent=2)
    async with env.start("job") as job:
        await some_checkpoints(job, 1)
        before = +sink.visible
        sink.gate.clear()
        waiting = []
        for _ in range(2):
            # Each has something to commit.
            await asyncio.sleep(0.05)
            waiting.append(asyncio.create_task(job.trigger_checkpoint()))
        await until(lambda: sink.begun == [1, 2] and acknowledged(job) == {2, 3})
        cancelling = asyncio.create_task(job.cancel())
        await asyncio.sleep(1)
        sink.gate.set()
        await cancelling
        # The commit that had begun is done, and no other one begins.
        assert sink.begun == [1, 2]
        assert sum(sink.visible.values()) > sum(before.values())
        with pytest.raises(CheckpointFailedError, match="cancelled"):
            await waiting[1]
    assert kept(tmp_path) == ([2] if named else [])


def acknowledged(job: Any) -> set[int]:
    """Return the checkpoints that no task is missing of, and that are not answered."""
    pending = job._job.pending_checkpoints()
    return {one.checkpoint_id for one in pending if not one.missing}


@pytest.mark.parametrize("named", [True, False])
async def test_metadata_that_becomes_durable_in_a_cancel_is_resumed_from(
    tmp_path: Path, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a temporary directory nothing is committed, and cancelling waits for nothing."""
    sink = Rows()
    loop = asyncio.get_running_loop()
    complete = CheckpointStore.complete
    jobs: list[Any] = []

    def interrupted(
        self: CheckpointStore, metadata: CheckpointMetadata, location: Any = None
    ) -> str:
        if metadata.checkpoint_id == 2:
            loop.call_soon_threadsafe(jobs[0]._job.cancel)
        return complete(self, metadata, location)

    monkeypatch.setattr(CheckpointStore, "complete", interrupted)
    async with program(sink, tmp_path if named else None).start("job") as job:
        jobs.append(job)
        await some_checkpoints(job, 1)
        before = +sink.visible
        await asyncio.sleep(0.05)
        sink.gate.clear()
        began_s = loop.time()
        with pytest.raises(CheckpointFailedError, match="cancelled"):
            await job.trigger_checkpoint()
        await job.cancel()
        assert loop.time() - began_s < 1
        sink.gate.set()
    assert sink.visible == before
    if not named:
        return
    assert kept(tmp_path) == [1, 2]
    async with program(sink, tmp_path).start("job", restore_from="latest") as job:
        await until(lambda: sum(sink.visible.values()) > sum(before.values()))
        await some_checkpoints(job, 2)
        await job.stop()
    assert set(sink.visible.values()) == {1}
    assert set(sink.visible) == set(range(max(sink.visible) + 1))


@pytest.mark.parametrize("end", ["cancel", "fail"])
async def test_a_directory_that_was_named_keeps_them_until_the_job_has_finished(
    tmp_path: Path, end: str
) -> None:
    sink = Rows()
    stumbles = [50]

    def stumble(number: int) -> int:
        if number in stumbles and end == "fail":
            raise ValueError("stumbled")
        return number

    def job() -> Any:
        env = am.StreamExecutionEnvironment()
        env.enable_checkpointing(am.seconds(0.01), directory=tmp_path)
        env.configure(restart=am.restart.none())
        numbers = env.from_async_iterable(forever, offset=lambda number: number)
        numbers.uid("numbers").map(stumble).sink_to(sink).uid("rows")
        return env

    if end == "cancel":
        async with job().start("job") as first:
            await until(lambda: len(sink.visible) > 20)
            await first.cancel()
    else:
        with pytest.raises(JobFailedError, match="stumbled"):
            await job().execute("job")
        stumbles.clear()
    assert kept(tmp_path)
    async with job().start("job", restore_from="latest") as second:
        await until(lambda: len(sink.visible) > 100)
        await second.stop()
    assert set(sink.visible.values()) == {1}
    assert set(sink.visible) == set(range(max(sink.visible) + 1))
    assert kept(tmp_path) == []


async def test_repair_the_table_and_start_the_job_again_loses_nothing(
    tmp_path: Path, sqlite: SqliteFile
) -> None:
    """As the error of the table says."""
    await sqlite.execute("CREATE TABLE numbers (n bigint)")
    await sqlite.execute("CREATE UNIQUE INDEX one ON numbers (n)")

    async def written() -> list[int]:
        return [row[0] for row in await sqlite.execute("SELECT n FROM numbers")]

    async def numbers(after: int | None) -> AsyncIterator[int]:
        for number in range(0 if after is None else after + 1, 100):
            while number == 50 and not await written():
                await asyncio.sleep(0.01)
            yield number

    def job() -> Any:
        env = am.StreamExecutionEnvironment()
        env.enable_checkpointing(am.seconds(0.05), directory=tmp_path / "state")
        env.configure(restart=am.restart.none())
        source = env.from_async_iterable(numbers, offset=lambda number: number)
        rows = source.uid("numbers").map(lambda number: {"n": number % 90})
        rows.sink_to(am.SqlSink(sqlite.url, "numbers")).uid("table")
        return env

    with pytest.raises(JobFailedError, match="Repair the table, and start"):
        await job().execute("job")
    assert len(await written()) >= 50
    await sqlite.execute("DROP INDEX one")
    await job().execute("job", restore_from="latest")
    assert Counter(await written()) == Counter(number % 90 for number in range(100))


async def leave_checkpoints(directory: Path, sink: Rows, count: int = 2) -> None:
    """Run a job that is cancelled after so many of them."""
    async with program(sink, directory).start("job", restore_from="latest") as job:
        await some_checkpoints(job, count)
        await job.cancel()


async def test_the_last_ones_are_kept_also_those_of_an_earlier_life(
    tmp_path: Path,
) -> None:
    """SEM-218. With the next one, which may turn out to be damaged, others go."""
    async with program(Rows(), tmp_path, retained=3).start("job") as job:
        await some_checkpoints(job, 4)
        assert kept(tmp_path) == [2, 3, 4]
        await job.trigger_savepoint(tmp_path / "saved")
        assert kept(tmp_path) == [2, 3, 4]
        await job.cancel()
    again = program(Rows(), tmp_path, retained=2)
    async with again.start("job", restore_from="latest") as job:
        assert kept(tmp_path) == [2, 3, 4]
        await some_checkpoints(job, 1)
        assert kept(tmp_path) == [4, 6]


async def test_who_starts_without_state_does_so_however_often_the_job_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It fails before its first checkpoint, and there is one of an earlier run."""
    await leave_checkpoints(tmp_path, Rows())
    assert kept(tmp_path) == [2]
    seen: list[int] = []
    fails = [7]

    def note(number: int) -> None:
        seen.append(number)
        if number in fails:
            fails.remove(number)
            raise ValueError("stumbled")

    async with program(note, tmp_path).start("job") as job:
        await until(lambda: job.restarts == 1 and len(seen) > 20)
        # It is lost by nobody who was only wrong for a moment.
        assert kept(tmp_path) == [2]
        await job.trigger_checkpoint()
        assert kept(tmp_path) == [3]
    assert seen[:9] == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    assert "starts without state, although there is a checkpoint" in caplog.text
    assert f"{tmp_path}/job/chk-2" in caplog.text


async def test_who_goes_back_to_a_savepoint_does_so_however_often_the_job_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The savepoint is older than what the job went on to."""
    async with program(Rows(), tmp_path / "state").start("job") as job:
        await some_checkpoints(job, 1)
        place = (await job.trigger_savepoint(tmp_path / "saved")).place
        await some_checkpoints(job, 3)
        await job.cancel()
    assert kept(tmp_path / "state") == [5]
    seen: list[int] = []
    fails = ["once"]

    def note(number: int) -> None:
        seen.append(number)
        if len(seen) == 10 and fails:
            raise ValueError(fails.pop())

    env = program(note, tmp_path / "state", retained=3)
    async with env.start("job", restore_from=place) as job:
        await until(lambda: job.restarts == 1 and len(seen) > 20)
        await some_checkpoints(job, 1)
        # What does not descend from where it began is nothing to fall back to.
        assert kept(tmp_path / "state") == [6]
    assert seen[9] == seen[0] + 9
    assert seen[10] == seen[0]
    assert "does not go on from its newest checkpoint" in caplog.text


async def test_a_job_knows_all_savepoints_that_it_has_gone_on_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Through cancels, kills and further savepoints; and the savepoints may move."""
    sink, state = Rows(), tmp_path / "state"
    saved = [tmp_path / "saved-0", tmp_path / "saved-1"]
    async with program(sink, state).start("job") as job:
        await some_checkpoints(job, 1)
        await job.stop_with_savepoint(saved[0])
    saved[0] = saved[0].rename(tmp_path / "moved")
    for number in range(2):
        async with program(sink, state).start("job", restore_from=saved[0]) as job:
            await some_checkpoints(job, 2)
            await job.cancel()
        assert ("goes on from its own checkpoint" in caplog.text) == bool(number)
    await leave_checkpoints(state, sink)
    async with program(sink, state).start("job", restore_from=saved[0]) as job:
        await some_checkpoints(job, 1)
        await job.stop_with_savepoint(saved[1])
    async with program(sink, state).start("job", restore_from=saved[1]) as job:
        await some_checkpoints(job, 1)
        await job.cancel()
    caplog.clear()
    async with program(sink, state).start("job", restore_from=saved[0]) as job:
        await some_checkpoints(job, 1)
        await job.stop()
    assert "goes on from its own checkpoint" in caplog.text
    assert set(sink.visible.values()) == {1}
    assert set(sink.visible) == set(range(max(sink.visible) + 1))


async def test_who_went_on_from_a_savepoint_does_not_fall_back_to_it_in_silence(
    tmp_path: Path,
) -> None:
    """Its own checkpoint is damaged: what was committed with it would come again."""
    state = tmp_path / "state"
    async with program(Rows(), state, memory_threshold=0).start("job") as job:
        place = (await job.stop_with_savepoint(tmp_path / "saved")).place
    env = program(Rows(), state, memory_threshold=0)
    async with env.start("job", restore_from=place) as job:
        await some_checkpoints(job, 1)
        await job.cancel()
    (newest,) = state.glob("job/chk-*")
    for file in newest.glob("*.*-*"):
        file.write_bytes(b"damaged")
    with pytest.raises(JobFailedError, match="descend from") as caught:
        await program(Rows(), state).execute("job", restore_from=place)
    assert isinstance(caught.value.__cause__, NoCheckpointError)
    # As the message says.
    for file in newest.iterdir():
        file.unlink()
    async with program(Rows(), state).start("job", restore_from=place) as job:
        await some_checkpoints(job, 1)


async def test_a_job_that_has_finished_is_run_returned_or_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Rows()

    def finite() -> Any:
        return program(sink, tmp_path, hundred)

    first = await finite().execute("job", if_finished="refuse")
    assert first.finished_before is None
    again = await finite().execute("job", if_finished="return")
    assert again.finished_before is not None
    assert caplog.text == ""
    job = await finite().execute_async(
        "job", restore_from="latest", if_finished="return"
    )
    assert (await job.result()).finished_before == again.finished_before
    assert job.state is am.JobState.FINISHED
    with pytest.raises(JobFailedError, match="has finished before, at 2013") as caught:
        await finite().execute("job", if_finished="refuse")
    assert isinstance(caught.value.__cause__, JobFinishedError)
    assert set(sink.visible.values()) == {1}
    async with finite().start("job", restore_from="latest", if_finished="run") as job:
        assert (await job.result()).finished_before is None
    assert "had finished before, and starts without state" in caplog.text
    assert set(sink.visible.values()) == {2}


async def test_a_job_that_was_cancelled_has_not_finished_and_one_that_was_stopped_has(
    tmp_path: Path,
) -> None:
    latest: dict[str, Any] = {"restore_from": "latest", "if_finished": "return"}
    async with program(Rows(), tmp_path).start("job", **latest) as job:
        await some_checkpoints(job, 1)
        await job.cancel()
    async with program(Rows(), tmp_path).start("job", **latest) as job:
        await some_checkpoints(job, 1)
        await job.stop()
    async with program(Rows(), tmp_path).start("job", **latest) as job:
        assert (await job.result()).finished_before is not None


async def test_a_savepoint_ends_one_run_and_begins_another_that_has_not_finished(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink, state = Rows(), tmp_path / "state"
    async with program(sink, state).start("job") as job:
        await some_checkpoints(job, 1)
        place = (await job.stop_with_savepoint(tmp_path / "saved")).place
    fresh: dict[str, Any] = {"restore_from": place, "if_finished": "return"}
    before = len(sink.visible)
    async with program(sink, state).start("job", **fresh) as job:
        await some_checkpoints(job, 1)
        await job.stop()
    assert len(sink.visible) > before
    assert caplog.text == ""
    # Now it has, after it went on from there.
    result = await program(sink, state).execute("job", **fresh)
    assert result.finished_before is not None
    async with program(sink, state).start("job", restore_from=place) as job:
        await some_checkpoints(job, 1)
    assert "had finished before, and starts again from" in caplog.text


@pytest.mark.parametrize(
    ("directory", "choice", "problem"),
    [
        (None, "return", "enable_checkpointing"),
        (None, "refuse", "enable_checkpointing"),
        ("state", "skip", 'Use "run", "return" or "refuse"'),
    ],
)
async def test_what_happens_if_it_has_finished_has_to_be_known(
    tmp_path: Path, directory: str | None, choice: Any, problem: str
) -> None:
    env = program(Rows(), directory and tmp_path / directory, hundred)
    with pytest.raises(InvalidArgumentError, match=problem):
        await env.execute("job", if_finished=choice)


@pytest.mark.parametrize(
    "below", ["state/job", "state/job/chk-99", "state/../state/job/1.4", "link/x"]
)
@pytest.mark.parametrize("stops", [True, False])
async def test_a_savepoint_among_the_checkpoints_of_the_job_is_refused(
    tmp_path: Path, below: str, stops: bool
) -> None:
    """It would be taken for the newest of them, or be deleted with them."""
    (tmp_path / "link").symlink_to(tmp_path / "state/job")
    async with program(Rows(), tmp_path / "state").start("job") as job:
        await some_checkpoints(job, 1)
        ask = job.stop_with_savepoint if stops else job.trigger_savepoint
        with pytest.raises(InvalidArgumentError, match=r"checkpoints of job|exists"):
            await ask(f"{tmp_path}/{below}")
        with pytest.raises(InvalidArgumentError, match=r"checkpoints of job|exists"):
            await ask(f"file://{tmp_path}/{below}")
        assert job.state is am.JobState.RUNNING
        await ask(tmp_path / "state/savepoints/1.4")
        await job.cancel()


async def test_a_savepoint_in_the_journal_of_the_job_is_refused(tmp_path: Path) -> None:
    env = program(Rows(), tmp_path / "state", journal_directory=tmp_path / "calls")
    async with env.start("job") as job:
        await some_checkpoints(job, 1)
        with pytest.raises(InvalidArgumentError, match="checkpoints of job"):
            await job.trigger_savepoint(tmp_path / "calls/job/journal/saved")
        await job.cancel()


async def test_a_savepoint_among_the_checkpoints_at_a_url_is_refused() -> None:
    env = program(Rows(), "memory://kept/jobs")
    async with env.start("job") as job:
        await some_checkpoints(job, 1)
        for below in ("job/chk-99", "./job//saved/"):
            with pytest.raises(InvalidArgumentError, match="checkpoints of job"):
                await job.trigger_savepoint(f"memory://kept/jobs/{below}")
        await job.trigger_savepoint("memory://kept/jobs/jobs-saved")
        await job.stop()
