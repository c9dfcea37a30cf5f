"""Where nothing has been done since the last checkpoint, no task is asked for the next."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import aiomailbox
import aiomailbox as am
from aiomailbox.connectors.async_iterable import AsyncIterableSource, AsyncSplit
from aiomailbox.operators.core.operator import Operator
from tests.runtime.rows_writer import RowsWriter

_HOOKS = {
    "fill_state",
    "notify_checkpoint_aborted",
    "notify_checkpoint_complete",
    "prepare_snapshot_pre_barrier",
}


class World:
    """A log that a job reads, and what it makes of it; outlives its runs."""

    def __init__(self, *events: int) -> None:
        self.events = [*events]
        self.added = asyncio.Event()
        self.results: list[Any] = []
        self.gate = asyncio.Event()

    def add(self, event: int) -> None:
        self.events.append(event)
        self.added.set()

    async def read(self, after: int | None) -> AsyncIterator[tuple[int, int]]:
        at = 0 if after is None else after + 1
        while True:
            while at < len(self.events):
                yield at, self.events[at]
                at += 1
            self.added.clear()
            await self.added.wait()


class Total(am.KeyedProcessFunction[int, int, int]):
    """Adds up; a negative number is added when a minute has passed."""

    def open(self, context: Any) -> None:
        keyed = context.keyed_state
        self.total = keyed.get_value(am.ValueStateDescriptor("total", int, default=0))
        self.later = keyed.get_value(am.ValueStateDescriptor("later", int, default=0))

    def process_element(self, value: int, context: Any, out: Any) -> None:
        if value < 0:
            self.later.update(-value)
            timers = context.timer_service
            timers.register_processing_time_timer(after=am.seconds(60))
            return
        self.total.update(self.total.value() + value)
        out.collect(self.total.value())

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        self.total.update(self.total.value() + self.later.value())


class Slow:
    """Waits for the gate with a large number."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def __call__(self, value: int) -> int:
        if value >= 1000:
            await self.world.gate.wait()
        return value


def environment(
    place: Path, parallelism: int = 1, **settings: Any
) -> am.StreamExecutionEnvironment:
    config = am.JobConfig(job_id="quiet", restore_from="latest")
    env = am.StreamExecutionEnvironment(parallelism, config=config)
    env.enable_checkpointing(am.seconds(1), directory=place, **settings)
    return env


def job(
    world: World,
    place: Path,
    *,
    function: Any = None,
    sink: Any = None,
    **settings: Any,
) -> am.StreamExecutionEnvironment:
    env = environment(place, **settings)
    read = env.from_async_iterable(world.read, offset=lambda pair: pair[0]).uid("log")
    numbers = read.map(lambda pair: pair[1]).map_async(Slow(world)).uid("slow")
    totals = numbers.key_by(lambda number: 0).process(function or Total()).uid("total")
    totals.sink_to(world.results.append if sink is None else sink)
    return env


def figures(running: Any) -> tuple[int, int]:
    """Return how many checkpoints wrote nothing, and how many mails there were."""
    metrics = running.metrics()
    mails = sum(task["mails"] for task in metrics.tasks.values())
    return metrics.checkpoints["number_of_unchanged_checkpoints"], mails


def files(place: Path) -> dict[str, int]:
    found = [one for one in place.rglob("*") if one.is_file()]
    return {str(one): one.stat().st_mtime_ns for one in found}


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(600):
        while not is_so():
            await asyncio.sleep(0.1)


async def quiet(running: Any) -> None:
    """Wait until checkpoints are complete for which no task has got a mail."""
    unchanged, mails = figures(running)
    async with asyncio.timeout(600):
        while True:
            await asyncio.sleep(3)
            unchanged_then, mails_then = figures(running)
            if unchanged_then >= unchanged + 2 and mails_then == mails:
                return
            unchanged, mails = unchanged_then, mails_then


# With several subtasks, barriers come on several channels.
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"unaligned": True},
        {"unaligned": True, "aligned_timeout": am.seconds(0.5)},
        {"mode": am.CheckpointingMode.AT_LEAST_ONCE},
        # Each task writes a file of its own, which cannot be compared.
        {"memory_threshold": 0},
    ],
    ids=["aligned", "unaligned", "unaligned after a while", "at least once", "files"],
)
async def test_no_mail_is_sent_and_no_file_written_while_nothing_happens(
    tmp_path: Path, settings: dict[str, Any], parallelism: int
) -> None:
    world = World(1, 2, 3)
    env = job(world, tmp_path, parallelism=parallelism, **settings)
    async with env.start() as running:
        await quiet(running)
        before, (unchanged, mails) = files(tmp_path), figures(running)
        await asyncio.sleep(30)
        unchanged_then, mails_then = figures(running)
        assert unchanged_then - unchanged >= 28
        assert mails_then == mails
        assert files(tmp_path) == before
        taken = running.metrics().checkpoints
        assert taken["number_of_failed_checkpoints"] == 0
        assert taken["number_of_in_progress_checkpoints"] == 0
        assert (
            taken["number_of_completed_checkpoints"]
            == taken["total_number_of_checkpoints"]
        )
        await running.cancel()


async def test_files_are_committed_and_their_sink_is_not_asked_again(
    tmp_path: Path,
) -> None:
    world, out = World(1, 2), tmp_path / "out"
    sink = am.FileSink(out, "jsonl")
    async with job(world, tmp_path / "own", sink=sink).start() as running:
        await quiet(running)
        before = files(tmp_path)
        assert sorted(lines_in(out)) == ["1", "3"]
        await asyncio.sleep(30)
        assert files(tmp_path) == before
        world.add(4)
        await quiet(running)
        assert sorted(lines_in(out)) == ["1", "3", "7"]
        await running.cancel()


def lines_in(place: Path) -> list[str]:
    found = [
        one for one in place.iterdir() if one.is_file() and one.name[0] not in "._"
    ]
    return [line for one in found for line in one.read_text().splitlines()]


async def test_a_record_is_in_the_next_checkpoint(tmp_path: Path) -> None:
    world = World(1)
    for number in (2, 3, 4):
        async with job(world, tmp_path).start() as running:
            await quiet(running)
            world.add(number)
            await quiet(running)
            await running.cancel()
    assert world.results == [1, 3, 6, 10]


async def test_a_source_that_has_moved_without_records_is(tmp_path: Path) -> None:
    world = World(1, 0)
    env = environment(tmp_path)
    read = env.from_async_iterable(world.read, offset=lambda pair: pair[0]).uid("log")
    read.filter(lambda pair: pair[1] > 0).sink_to(world.results.append)
    async with env.start() as running:
        await quiet(running)
        newest = running.metrics().checkpoints["last_completed_checkpoint_id"]
        world.add(0)
        await quiet(running)
        taken = running.metrics().checkpoints
        assert taken["last_completed_checkpoint_id"] > newest
        await running.cancel()


async def test_a_timer_that_fires_without_results_is(tmp_path: Path) -> None:
    world = World(1, -10)
    async with job(world, tmp_path).start() as running:
        # Before the minute is over, and after it.
        await quiet(running)
        newest = running.metrics().checkpoints["last_completed_checkpoint_id"]
        await asyncio.sleep(60)
        await quiet(running)
        taken = running.metrics().checkpoints
        assert taken["last_completed_checkpoint_id"] > newest
        await running.cancel()
    async with job(world, tmp_path).start() as running:
        world.add(2)
        await until(lambda: len(world.results) == 2)
        await running.cancel()
    assert world.results == [1, 13]


async def test_a_call_that_ends_is(tmp_path: Path) -> None:
    world = World(1, 1000)
    async with job(world, tmp_path).start() as running:
        # The call is being made: nothing happens meanwhile.
        await quiet(running)
        assert world.results == [1]
        world.gate.set()
        await until(lambda: world.results == [1, 1001])
        await quiet(running)
        await running.cancel()
    world.gate.clear()
    async with job(world, tmp_path).start() as running:
        world.add(2)
        await until(lambda: len(world.results) == 3)
        await running.cancel()
    # The call was not made again: its gate is closed.
    assert world.results == [1, 1001, 1003]


async def test_an_attempt_that_fails_is(tmp_path: Path) -> None:
    """It sends no mail; a restart makes only the attempts that are left."""
    world, called = World(7), list[int]()

    async def fail(value: int) -> int:
        called.append(value)
        raise ValueError(value)

    def retrying() -> am.StreamExecutionEnvironment:
        env = environment(tmp_path)
        read = env.from_async_iterable(world.read, offset=lambda pair: pair[0])
        numbers = read.uid("log").map(lambda pair: pair[1])
        retry = am.Retry(attempts=6, initial=100, maximum=100, jitter=0)
        tried = numbers.map_async(fail, retry=retry, on_error=am.skip).uid("slow")
        tried.sink_to(world.results.append)
        return env

    async with retrying().start() as running:
        await until(lambda: len(called) == 4)
        await quiet(running)
        await running.cancel()
    async with retrying().start() as running:
        await until(lambda: len(called) == 6)
        await asyncio.sleep(1000)
        await running.cancel()
    assert len(called) == 6


async def test_what_is_committed_is_not_committed_again_by_each_restart(
    tmp_path: Path,
) -> None:
    world, committed = World(1, 2), list[Any]()

    class Writing(RowsWriter):
        acts_on_records_only = True

        def create_writer(self, context: Any) -> Any:
            return self

        def create_committer(self, context: Any) -> Any:
            return self

        async def begin(self, *, restored: bool) -> None: ...

        async def commit(self, committables: list[Any], **facts: Any) -> None:
            committed.extend(committables)

        async def end(self, *, succeeded: bool) -> None: ...

    for _ in range(3):
        async with job(world, tmp_path, sink=Writing()).start() as running:
            await quiet(running)
            await running.cancel()
    assert committed == [1, 3]


@pytest.mark.parametrize("what", ["checkpoint", "savepoint"])
async def test_what_somebody_asks_for_is_whole_and_it_is_quiet_again(
    tmp_path: Path, what: str
) -> None:
    world = World(1)
    async with job(world, tmp_path / "own").start() as running:
        await quiet(running)
        if what == "checkpoint":
            done = await running.trigger_checkpoint()
        else:
            done = await running.trigger_savepoint(tmp_path / "savepoint")
        assert (Path(done.place) / "_metadata").is_file()
        await quiet(running)
        await running.cancel()


class Asked:
    """Counts how often a checkpoint asks it, or tells it something."""

    def __init__(self) -> None:
        self.times = 0

    def count(self, *args: Any) -> None:
        self.times += 1


def told(world: World, place: Path, asked: Asked) -> Any:
    class Listening(Total, am.CheckpointListener):
        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            asked.count()

    return job(world, place, function=Listening())


def filled(world: World, place: Path, asked: Asked) -> Any:
    class Filling(Total, am.CheckpointedFunction):
        def initialize_state(self, context: Any) -> None: ...

        def snapshot_state(self, context: Any) -> None:
            asked.count()

    return job(world, place, function=Filling())


def flushed(world: World, place: Path, asked: Asked) -> Any:
    class Writing:
        def create_writer(self, context: Any) -> Any:
            return self

        def create_committer(self, context: Any) -> None:
            return None

        def write_run(self, run: Any) -> None: ...

        def flush(self, *, end_of_input: bool) -> None:
            asked.count()

        def prepare_commit(self) -> list[Any]:
            return []

        def snapshot(self) -> list[Any]:
            return []

        def restore(self, elements: list[Any]) -> None: ...

        def close(self) -> None: ...

    return job(world, place, sink=Writing())


def listed(world: World, place: Path, asked: Asked) -> Any:
    """State without keys may be filled by whatever the function has started."""

    class Listing(Total):
        def open(self, context: Any) -> None:
            super().open(context)
            descriptor = am.ListStateDescriptor("seen", int)
            self.seen = context.operator_state.get_list_state(descriptor)

    return job(world, place, function=Listing())


def heard(world: World, place: Path, asked: Asked) -> Any:
    """A function that is a sink, and has nothing to flush."""

    class Hearing(am.CheckpointListener):
        def __call__(self, value: int) -> None:
            world.results.append(value)

        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            asked.count()

    return job(world, place, sink=Hearing())


def journaled(world: World, place: Path, asked: Asked) -> Any:
    """The journal is told which of its calls a checkpoint may ask for."""

    async def call(pair: tuple[int, int]) -> int:
        return pair[1]

    env = environment(place)
    read = env.from_async_iterable(world.read, offset=lambda pair: pair[0]).uid("log")
    called = read.map_async(call, journal=True, id=lambda pair: str(pair[0]))
    totals = called.uid("call").key_by(lambda number: 0).process(Total()).uid("total")
    totals.sink_to(world.results.append)
    return env


def told_as_call(world: World, place: Path, asked: Asked) -> Any:
    class Calling(am.CheckpointListener):
        async def __call__(self, value: int) -> int:
            return value

        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            asked.count()

    env = environment(place)
    read = env.from_async_iterable(world.read, offset=lambda pair: pair[0]).uid("log")
    numbers = read.map(lambda pair: pair[1]).key_by(lambda number: 0)
    numbers.map_async(Calling()).uid("call").sink_to(world.results.append)
    return env


class WindowTotal(am.ProcessWindowFunction[int, int, int, Any]):
    def process(self, key: int, context: Any, elements: list[int], out: Any) -> None:
        out.collect(sum(elements))


class AsyncTotal(am.KeyedAsyncProcessFunction[int, int, int]):
    async def process_element(self, value: int, context: Any, out: Any) -> None:
        out.collect(value)


def mixed(base: type, build: Callable[[Any, Any], Any], *, listens: bool) -> Any:
    """Return a job with a function of another kind that listens, or fills its state."""

    def make(world: World, place: Path, asked: Asked) -> Any:
        class Listening(base, am.CheckpointListener):  # type: ignore[misc]
            def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
                asked.count()

        class Filling(base, am.CheckpointedFunction):  # type: ignore[misc]
            def initialize_state(self, context: Any) -> None: ...

            def snapshot_state(self, context: Any) -> None:
                asked.count()

        env = environment(place)
        read = env.from_async_iterable(world.read, offset=lambda pair: pair[0])
        keyed = read.uid("log").map(lambda pair: pair[1]).key_by(lambda number: 0)
        made = build(keyed, Listening() if listens else Filling())
        made.uid("total").sink_to(world.results.append)
        return env

    return make


MIXED = [
    mixed(base, build, listens=listens)
    for base, build in (
        (WindowTotal, lambda keyed, made: keyed.count_window(1).process(made)),
        (AsyncTotal, lambda keyed, made: keyed.process_async(made)),
    )
    for listens in (True, False)
]


@pytest.mark.parametrize(
    "make", [told, filled, flushed, listed, heard, journaled, told_as_call, *MIXED]
)
async def test_whoever_wants_to_be_asked_is_asked_each_time(
    tmp_path: Path, make: Callable[..., Any]
) -> None:
    world, asked = World(1), Asked()
    async with make(world, tmp_path, asked).start() as running:
        await until(lambda: world.results == [1] or asked.times > 3)
        await asyncio.sleep(5)
        times, (_, mails) = asked.times, figures(running)
        await asyncio.sleep(30)
        assert asked.times >= times + 28 or make in (listed, journaled)
        # Two for the source, and one for the task behind it.
        assert figures(running)[1] >= mails + 3 * 28
        await running.cancel()


@pytest.mark.parametrize("is_asked", [False, True])
async def test_units_that_calls_have_used_meanwhile_are_kept(
    tmp_path: Path, is_asked: bool
) -> None:
    """Whoever waits for a limit and may call then has done nothing else meanwhile."""
    world, called = World(1000, 1001), list[float]()

    async def slow(value: int) -> int:
        called.append(asyncio.get_running_loop().time())
        await world.gate.wait()
        return value

    class Listening(Total, am.CheckpointListener):
        def notify_checkpoint_complete(self, checkpoint_id: int) -> None: ...

    def limited() -> am.StreamExecutionEnvironment:
        env = environment(tmp_path)
        read = env.from_async_iterable(world.read, offset=lambda pair: pair[0])
        numbers = read.uid("log").map(lambda pair: pair[1])
        limit = am.RateLimit(1, per=100)
        keyed = numbers.map_async(slow, limit=limit).uid("slow").key_by(lambda n: 0)
        totals = keyed.process(Listening() if is_asked else Total()).uid("total")
        totals.sink_to(world.results.append)
        return env

    async with limited().start() as running:
        await until(lambda: len(called) == 2)
        await asyncio.sleep(5)
        await running.cancel()
    async with limited().start() as running:
        await until(lambda: len(called) == 3)
        await running.cancel()
    assert called[1] - called[0] >= 100
    assert called[2] - called[1] >= 100


async def test_an_enumerator_that_has_found_something_is_kept(tmp_path: Path) -> None:
    world, found = World(1), list[AsyncSplit]()

    class Finding(AsyncIterableSource):
        def create_enumerator(self, context: Any, state: Any = None) -> Any:
            enumerator: Any = super().create_enumerator(context, state)
            assigned = enumerator.snapshot
            enumerator.snapshot = lambda: [*assigned(), *found]
            return enumerator

    env = environment(tmp_path)
    source = Finding(world.read, offset=lambda pair: pair[0])
    env.from_source(source).uid("log").sink_to(world.results.append)
    async with env.start() as running:
        await quiet(running)
        before = running.metrics().checkpoints["last_completed_checkpoint_id"]
        found.append(AsyncSplit("new"))
        await quiet(running)
        taken = running.metrics().checkpoints
        assert taken["last_completed_checkpoint_id"] > before
        await running.cancel()


def test_operators_with_a_hook_of_checkpoints_say_whether_they_use_it() -> None:
    for module in pkgutil.walk_packages(aiomailbox.__path__, "aiomailbox."):
        if {"operators", "windowing", "columnar"} & {*module.name.split(".")}:
            importlib.import_module(module.name)
    waiting: list[type] = [Operator]
    silent = []
    while waiting:
        found = waiting.pop()
        waiting += found.__subclasses__()
        if not found.__module__.startswith("aiomailbox."):
            continue
        own = vars(found)
        if _HOOKS & own.keys() and "acts_at_checkpoints" not in own:
            silent.append(found.__name__)
    assert silent == []
