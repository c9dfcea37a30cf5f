"""A checkpoint of a job in which nothing has happened writes nothing, and counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from tests.runtime.rows_writer import RowsWriter


class World:
    """What a job reads, and what becomes of it; outlives its runs."""

    def __init__(self) -> None:
        self.events: list[int | None] = []
        self.added = asyncio.Event()
        self.commits: list[int] = []
        self.completed: list[int] = []

    def add(self, *events: int | None) -> None:
        """Let the source read on; None is a heartbeat, which is no record."""
        self.events += events
        self.added.set()

    async def read(self, after: int | None) -> AsyncIterator[int]:
        at = 0 if after is None else after + 1
        while True:
            while at < len(self.events):
                event = self.events[at]
                yield -1 if event is None else event
                at += 1
            self.added.clear()
            await self.added.wait()

    # A sink that commits.

    def create_writer(self, context: Any) -> Any:
        return RowsWriter()

    def create_committer(self, context: Any) -> Any:
        return Committer(self.commits)


class Committer:
    def __init__(self, commits: list[int]) -> None:
        self._commits = commits

    def begin(self, *, restored: bool) -> None: ...

    def commit(
        self, committables: list[int], *, checkpoint_id: int, is_final: bool
    ) -> None:
        self._commits += committables

    def end(self, *, succeeded: bool) -> None: ...


class Sums(am.KeyedProcessFunction[int, int, int], am.CheckpointListener):
    """Adds up; hears which checkpoints are complete."""

    def __init__(self, world: World) -> None:
        self.world = world

    def open(self, context: Any) -> None:
        self.total = context.keyed_state.get_value(
            am.ValueStateDescriptor("total", int)
        )

    def process_element(self, value: int, context: Any, out: Any) -> None:
        # A heartbeat moves the source, and nothing else.
        if value >= 0:
            self.total.update((self.total.value() or 0) + value)
            out.collect(value)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.world.completed.append(checkpoint_id)


def job(world: World, place: Path, *, limited: bool = False) -> Any:
    # Each event has a place in the log, which is where the source goes on.
    env = am.StreamExecutionEnvironment(
        config=am.JobConfig(job_id="idle", restore_from="latest")
    )
    env.enable_checkpointing(am.seconds(1), directory=place)
    numbers = env.from_async_iterable(
        world.read, offset=lambda number: len(seen_by(world, number)) - 1
    )
    stream = (
        numbers.uid("log").key_by(lambda number: 0).process(Sums(world)).uid("sums")
    )
    if limited:
        limit = am.RateLimit(5, per=0.5, name="calls")
        stream = stream.map_async(echo, limit=limit).uid("calls")
    stream.sink_to(world).uid("sink")
    return env


async def echo(number: int) -> int:
    return number


def seen_by(world: World, number: int) -> list[int]:
    # The numbers of a test grow, apart from heartbeats, which come last.
    at = len(world.events) if number < 0 else world.events.index(number) + 1
    return [0] * at


def files(place: Path) -> dict[str, int]:
    return {
        str(one): one.stat().st_mtime_ns for one in place.rglob("*") if one.is_file()
    }


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(600):
        while not is_so():
            await asyncio.sleep(0.1)


async def quiet(running: Any) -> dict[str, Any]:
    """Wait until checkpoints are complete for which nothing was written; the figures."""

    def unchanged() -> int:
        return int(running.metrics().checkpoints["number_of_unchanged_checkpoints"])

    before = unchanged()
    await until(lambda: unchanged() >= before + 3)
    return dict(running.metrics().checkpoints)


async def test_an_idle_checkpoint_is_two_mails_for_the_source_and_one_for_others(
    tmp_path: Path,
) -> None:
    """Its barrier, which others read, and that it is complete; no timer follows it."""
    world = World()
    world.add(1, 2, 3)
    async with job(world, tmp_path).start() as running:
        await quiet(running)

        def counted() -> tuple[int, int]:
            metrics = running.metrics()
            taken = metrics.checkpoints["number_of_unchanged_checkpoints"]
            return taken, sum(task["mails"] for task in metrics.tasks.values())

        taken, mails = counted()
        await asyncio.sleep(30)
        taken_then, mails_then = counted()
        assert taken_then - taken >= 28
        assert mails_then - mails == 3 * (taken_then - taken)
        await running.cancel()


@pytest.mark.parametrize("limited", [False, True])
async def test_an_idle_job_writes_no_file_and_its_checkpoints_are_complete(
    tmp_path: Path, *, limited: bool
) -> None:
    world = World()
    world.add(1, 2, 3)
    async with job(world, tmp_path, limited=limited).start() as running:
        await quiet(running)
        before, known = files(tmp_path), running.metrics().checkpoints
        await asyncio.sleep(30)
        assert files(tmp_path) == before
        figures = running.metrics().checkpoints
        # What was complete with records in it stays the last one that was written.
        assert (
            figures["last_completed_checkpoint_id"]
            == known["last_completed_checkpoint_id"]
        )
        assert figures["number_of_unchanged_checkpoints"] >= 25
        assert figures["number_of_failed_checkpoints"] == 0
        assert figures["number_of_completed_checkpoints"] >= 28
        assert world.commits == [1, 2, 3]
        # Functions hear of each, in order, and only once.
        assert world.completed == sorted(set(world.completed))
        assert len(world.completed) >= 28
        await running.cancel()


async def test_what_happens_later_is_written_and_committed_once(tmp_path: Path) -> None:
    world = World()
    world.add(1)
    async with job(world, tmp_path).start() as running:
        await quiet(running)
        before = running.metrics().checkpoints["last_completed_checkpoint_id"]
        world.add(2)
        await until(lambda: world.commits == [1, 2])
        after = await quiet(running)
        assert after["last_completed_checkpoint_id"] > before + 2
        await running.cancel()
    assert world.commits == [1, 2]


async def test_a_source_that_moved_without_records_is_not_idle(tmp_path: Path) -> None:
    world = World()
    world.add(1)
    async with job(world, tmp_path).start() as running:
        await quiet(running)
        before = running.metrics().checkpoints["last_completed_checkpoint_id"]
        world.add(None)
        after = await quiet(running)
        assert after["last_completed_checkpoint_id"] > before
        await running.cancel()
    assert world.commits == [1]


async def test_a_job_killed_after_such_a_checkpoint_goes_on_exactly_once(
    tmp_path: Path,
) -> None:
    world = World()
    world.add(1)
    for life in range(3):
        async with job(world, tmp_path).start() as running:
            # Numbers that functions have heard of are never given away again.
            heard = max(world.completed, default=0)
            known = len(world.completed)
            while len(world.completed) == known:
                await asyncio.sleep(0.1)
            assert world.completed[-1] > heard
            await quiet(running)
            world.add(life + 2)
            # Killed before the next checkpoint has it: cancelled, and not stopped.
            await running.cancel()
    async with job(world, tmp_path).start() as running:
        await until(lambda: world.commits == [1, 2, 3, 4])
        await quiet(running)
        await running.cancel()
    assert world.commits == [1, 2, 3, 4]
    assert world.completed == sorted(set(world.completed))


@pytest.mark.parametrize(
    "ask",
    [
        lambda running, place: running.trigger_checkpoint(),
        lambda running, place: running.trigger_savepoint(place / "savepoint"),
    ],
    ids=["checkpoint", "savepoint"],
)
async def test_what_somebody_asks_for_is_whole(
    tmp_path: Path, ask: Callable[[Any, Path], Awaitable[Any]]
) -> None:
    world = World()
    world.add(1)
    async with job(world, tmp_path / "checkpoints").start() as running:
        await quiet(running)
        done = await ask(running, tmp_path)
        assert (Path(done.place) / "_metadata").is_file()
        # And what is taken after it again writes nothing.
        await quiet(running)
        await running.cancel()
    assert world.commits == [1]
