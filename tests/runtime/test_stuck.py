"""A job says by itself what it waits for: a task that does not go on, a late barrier."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.runtime.loop_watch import LoopWatch, StallLog
from aiomailbox.runtime.stuck_watch import StandingTimes, StuckTasks
from aiomailbox.runtime.views import OperatorView, TaskView

AFTER_S = 0.3
CONFIG = am.JobConfig(stuck_after=am.seconds(AFTER_S))


async def hang(city: str) -> str:
    await asyncio.sleep(3600)
    return city


STANDS = "event time stands still while records come"
LINE = f"{__file__}:{hang.__code__.co_firstlineno + 1}"


def drop(value: Any) -> None:
    """Take it."""


def told(caplog: pytest.LogCaptureFixture, event: str) -> list[Any]:
    found: list[Any] = [
        one for one in caplog.records if getattr(one, "event", "") == event
    ]
    assert all(one.levelno == logging.WARNING for one in found)
    return found


async def warned(caplog: pytest.LogCaptureFixture, event: str) -> Any:
    """Return the first warning of a kind; wait for it."""
    async with asyncio.timeout(120):
        while not told(caplog, event):
            await asyncio.sleep(0.02)
    return told(caplog, event)[0]


@pytest.mark.real_time
@pytest.mark.timeout(180)
@pytest.mark.parametrize("workers", [0, 1])
async def test_two_hung_calls_are_told_once_with_record_attempt_age_and_line(
    workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    def of_enrich() -> list[Any]:
        # On a busy machine another task may stand still for a moment.
        lines = told(caplog, "tasks make no progress")
        return [one for one in lines if any("enrich" in task for task in one.tasks)]

    env = am.StreamExecutionEnvironment(config=CONFIG)
    stream = env.from_collection(["oslo", "rome", "bern"], name="cities").rebalance()
    stream.map_async(hang, concurrency=2).name("enrich").sink_to(drop)
    deployment = am.Processes(workers) if workers else None
    async with env.start("hung", deployment=deployment) as job:
        async with asyncio.timeout(120):
            while not of_enrich():
                await asyncio.sleep(0.02)
        await asyncio.sleep(4 * AFTER_S)
        await job.cancel()
    [line] = of_enrich()
    assert line.job == "hung"
    assert any("enrich" in task for task in line.tasks)
    assert (line.count, line.times) == (1, 1)
    assert AFTER_S <= line.for_s < 120
    tree = line.await_tree.splitlines()
    # What it is about comes first.
    assert "enrich" in tree[1]
    calls = [one.strip() for one in tree if "attempt" in one]
    assert calls[0].startswith("attempt 1 for 'oslo' waits ")
    assert calls[0].endswith(f" s for its function at {LINE}")
    assert calls[1].startswith("attempt 1 for 'rome' waits ")
    # In words for handlers that show the message alone.
    assert "attempt 1 for 'oslo'" in line.getMessage()


@pytest.mark.real_time
@pytest.mark.timeout(180)
@pytest.mark.parametrize("workers", [0, 1])
async def test_a_late_barrier_is_told_once_with_the_task_that_it_waits_for(
    workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def never(number: int) -> None:
        await asyncio.sleep(3600)

    # Whoever is not held has its barrier long before that, on a busy machine, too.
    config = am.JobConfig(stuck_after=am.seconds(3))
    env = am.StreamExecutionEnvironment(config=config).enable_checkpointing(None)
    numbers = env.from_collection(range(10_000), name="numbers")
    numbers.rebalance().map(never).name("stuck").sink_to(drop)
    deployment = am.Processes(workers) if workers else None
    async with env.start(deployment=deployment) as job:
        checkpoint = asyncio.ensure_future(job.trigger_checkpoint())
        line = await warned(caplog, "a barrier is late")
        await asyncio.sleep(4 * AFTER_S)
        await job.cancel()
        with pytest.raises(am.CheckpointFailedError):
            await checkpoint
    assert len(told(caplog, "a barrier is late")) == 1
    assert line.checkpoint_id == 1
    # Those behind it wait for the barrier, too.
    assert any("stuck" in task for task in line.tasks)
    assert not any("numbers" in task for task in line.tasks)
    assert "in test_a_late_barrier" in line.await_tree


@contextlib.asynccontextmanager
async def looked_at(job: Any) -> AsyncIterator[None]:
    """Look at a job in virtual time, in which nobody does so by itself."""

    async def look() -> None:
        loop = asyncio.get_running_loop()
        while True:
            getattr(job, "_job", job)._watch.look(loop.time())
            await asyncio.sleep(AFTER_S / 8)

    looking = asyncio.ensure_future(look())
    yield
    looking.cancel()


async def test_a_job_that_has_nothing_to_do_or_goes_on_is_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However slow the machine is; who hangs after that is told."""
    inbox: am.Inbox[int] = am.Inbox()

    async def slow(number: int) -> int:
        await asyncio.sleep(AFTER_S / 4 if number < 10 else 3600)
        return number

    env = am.StreamExecutionEnvironment(config=CONFIG)
    env.from_source(inbox, name="inbox").map(slow).rebalance().sink_to(drop)
    async with env.start() as job, looked_at(job):
        await asyncio.sleep(3 * AFTER_S)
        for number in range(10):
            await inbox.put(number)
        await asyncio.sleep(5 * AFTER_S)
        assert told(caplog, "tasks make no progress") == []
        await inbox.put(10)
        await asyncio.sleep(2 * AFTER_S)
        assert len(told(caplog, "tasks make no progress")) == 1
        await job.cancel()


@pytest.mark.real_time
async def test_off_nobody_looks(caplog: pytest.LogCaptureFixture) -> None:
    # Nor at what holds the loop, which on a busy machine is anything.
    config = am.JobConfig(stuck_after=None, stall_threshold=None)
    env = am.StreamExecutionEnvironment(config=config)
    env.from_collection(["oslo"]).map_async(hang).sink_to(drop)
    async with env.start() as job:
        assert job._job._watch is None
        await asyncio.sleep(3 * AFTER_S)
        await job.cancel()
    assert caplog.records == []
    for wrong in (0, -1):
        with pytest.raises(am.InvalidArgumentError, match="stuck_after"):
            am.JobConfig(stuck_after=am.seconds(wrong))


async def goes_on() -> AsyncIterator[int]:
    for number in itertools.count():
        yield number * 1000
        await asyncio.sleep(0.01)


async def falls_silent() -> AsyncIterator[int]:
    yield 5000
    await asyncio.sleep(3600)


def timed(env: am.StreamExecutionEnvironment, items: Any, name: str) -> Any:
    ordered = am.WatermarkStrategy.for_monotonous_timestamps()
    strategy = ordered.with_timestamp_assigner(lambda time: time)
    return env.from_async_iterable(items, strategy, name=name, bounded=False)


@pytest.mark.real_time
@pytest.mark.timeout(180)
async def test_a_source_that_holds_event_time_back_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = am.StreamExecutionEnvironment(config=CONFIG)
    silent = timed(env, falls_silent, "silent")
    both = timed(env, goes_on, "goes on").union(silent)
    windows = both.key_by(str).window(am.TumblingEventTimeWindows.of(am.seconds(1)))
    windows.aggregate(am.count()).name("per second").sink_to(drop)
    async with env.start() as job:
        line = await warned(caplog, STANDS)
        await asyncio.sleep(4 * AFTER_S)
        await job.cancel()
    assert len(told(caplog, STANDS)) == 1
    assert line.operator == "per second"
    [name] = line.held_back_by
    assert name.startswith(f"silent ({__file__}:")
    assert "with_idleness" in line.remedy


STOOD = (
    # What the silent source says, and what the windows have.
    ("held back", 4_999, 0, 4_999, ["silent"]),
    ("silent and idle", 4_999, 1, 4_999, []),
    ("on its way", 9_000, 0, 4_999, []),
)


@pytest.mark.parametrize(("case", "own_ms", "idle", "at_ms", "names"), STOOD)
def test_event_time_stands_where_a_source_is_no_further_and_not_idle(
    case: str, own_ms: int, idle: int, at_ms: int, names: list[str]
) -> None:
    env = am.StreamExecutionEnvironment()
    both = timed(env, goes_on, "goes on").union(timed(env, falls_silent, "silent"))
    windows = both.key_by(str).window(am.TumblingEventTimeWindows.of(am.seconds(1)))
    windows.aggregate(am.count()).name("per second").sink_to(drop)
    definition = env._definition
    graph = definition.job_graph("job", definition.sinks)
    metrics: dict[str, dict[str, Any]] = {
        "goes on": {"current_output_watermark": 10_000, "is_idle": 0},
        "silent": {"current_output_watermark": own_ms, "is_idle": idle},
    }
    times = StandingTimes(graph, 60)
    found = []
    for now_s in range(0, 300, 10):
        metrics["per second"] = {
            "current_input_watermark": at_ms,
            "num_records_in": now_s,
        }
        views = [
            TaskView(
                vertex.name,
                vertex.id,
                0,
                "running",
                {},
                [OperatorView(n.name, metrics.get(n.name, {})) for n in vertex.nodes],
                [],
                [],
            )
            for vertex in graph.vertices
        ]
        found += times.look(views, float(now_s))
    assert [one.held_back_by[0].partition(" (")[0] for one in found] == names
    assert [one.since_s for one in found] == [60] * len(names)


def view(name: str, out: int, *, idle_ms: float = 0, **more: Any) -> TaskView:
    state = more.pop("state", "running")
    room_ms = more.pop("room_ms", 0.0)
    metrics = {"idle_ms": idle_ms, "backpressured_ms": room_ms}
    operator = OperatorView(name, {"num_records_out": out, **more})
    return TaskView(name, 0, 0, state, metrics, [operator], [], [])


def test_an_idle_task_is_stuck_only_while_its_calls_are_open() -> None:
    stuck = StuckTasks(60)
    for at in range(0, 300, 10):
        assert stuck.look([view("a", 1, idle_ms=at * 1000, in_flight=0)], at) == []
    found = [
        (at, one.since_s)
        for at in range(300, 500, 10)
        for one in stuck.look([view("a", 1, idle_ms=at * 1000, in_flight=2)], at)
    ]
    assert found == [(350, 60)]


def test_a_task_without_room_is_named_only_if_nobody_behind_it_is() -> None:
    def at(now_s: int, *, is_deadlock: bool) -> list[str]:
        full = view("full", 1, room_ms=now_s * 1000.0)
        slow = view("slow", now_s if is_deadlock else 1)
        return [one.name for one in stuck.look([full, slow], now_s)]

    stuck = StuckTasks(60)
    assert [
        name for now in range(0, 200, 5) for name in at(now, is_deadlock=False)
    ] == ["slow"]
    stuck = StuckTasks(60)
    assert [name for now in range(0, 200, 5) for name in at(now, is_deadlock=True)] == [
        "full"
    ]


async def test_a_reader_that_takes_its_time_makes_nobody_stuck(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = am.StreamExecutionEnvironment(config=CONFIG)
    stream = env.from_collection(range(100_000)).rebalance().map(abs)
    pulled: Any = aiter(stream)
    async with contextlib.aclosing(pulled) as records:
        assert await anext(records) == 0
        # No client leads to it: it is the iterator's own.
        async with looked_at(pulled._pulling.job):
            await asyncio.sleep(5 * AFTER_S)
        assert await anext(records) == 1
    assert told(caplog, "tasks make no progress") == []


def test_who_goes_on_and_is_stuck_again_is_counted() -> None:
    stuck = StuckTasks(10)
    found = []
    for at in range(100):
        found += [one.times for one in stuck.look([view("a", at // 20)], float(at))]
    assert found == [1, 2, 3, 4, 5]
    # What has ended is forgotten.
    assert stuck.look([view("a", 9, state="finished")], 101.0) == []
    assert stuck._known == {}


@pytest.mark.real_time
@pytest.mark.timeout(180)
async def test_who_holds_the_loop_for_ever_is_named_before_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = LoopWatch(asyncio.get_running_loop(), 0.1, StallLog(), still_held_s=0.3)
    watch.start()
    await asyncio.sleep(0.05)
    until = time.monotonic() + 30
    # The loop is held until the thread of the watch has said so.
    while time.monotonic() < until and not any(
        "test_who_holds_the_loop_for_ever" in one.stack
        for one in told(caplog, "the event loop is still held")
    ):
        threading.Event().wait(0.02)
    await asyncio.sleep(0.1)
    watch.stop()
    # On a busy machine anything may hold it for a while.
    lines = told(caplog, "the event loop is still held")
    (line,) = [one for one in lines if "test_who_holds_the_loop_for_ever" in one.stack]
    assert line.duration_ms >= 300
    assert told(caplog, "the event loop was held")
