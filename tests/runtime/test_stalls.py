"""What holds an event loop is named: operator, function, line, mail; garbage apart."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.operators.core.user_code import users_line_of
from aiomailbox.runtime import loop_watch
from aiomailbox.runtime.held_loop import Stall
from aiomailbox.runtime.loop_watch import LoopWatch, StallLog

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]


def seen_by_watch() -> threading.Event:
    """Return what is set when the watch of a loop, here, has seen what holds it.

    Its thread gets no processor for a while where others have them all.
    """
    seen = threading.Event()
    describe = loop_watch.describe_frames

    def described(frames: Any, task: str) -> Any:
        found = describe(frames, task)
        if any(frame.f_code.co_name.startswith(HOLDERS) for frame in frames):
            loop_watch.describe_frames = describe
            seen.set()
        return found

    loop_watch.describe_frames = described
    return seen


HOLDERS = ("block", "collect")


def block(number: int) -> int:
    if number == 3:
        seen_by_watch().wait(50)
    return number


def nap(number: int) -> int:
    if number == 3:
        time.sleep(0.3)
    return number


BLOCKS_AT = f"{__file__}:{block.__code__.co_firstlineno + 2}"


async def block_async(number: int) -> int:
    await asyncio.sleep(0)
    return block(number)


def snapshots(pipeline: Any, **config: Any) -> Any:
    """Run a pipeline of five numbers; return the job's snapshot at its end."""

    async def run() -> am.JobSnapshot:
        env = am.StreamExecutionEnvironment(config=am.JobConfig(**config))
        pipeline(env.from_collection(range(5), name="numbers"))
        async with env.start("blocking") as job:
            await job.result()
            return job.snapshot()

    return run()


def stall_of(snapshot: am.JobSnapshot, line: str = BLOCKS_AT) -> Stall:
    """Return the stall of a line; a busy machine may have others."""
    return next(stall for stall in snapshot.stalls if stall.line == line)


async def test_a_function_that_blocks_is_named_with_its_line_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    snapshot = await snapshots(
        lambda stream: (
            stream.map(block).name("blocked").uid("b").sink_to(lambda number: None)
        )
    )
    stall = stall_of(snapshot)
    assert (stall.operator, stall.uid, stall.function) == ("blocked", "b", "block")
    # At least the time from which on it counts.
    assert 100 <= stall.duration_ms < 50_000
    assert not stall.is_garbage_collection
    # It slept: the processor had nothing to do.
    assert stall.cpu_ms is None or stall.cpu_ms < stall.duration_ms / 2
    assert any("in block (" in line for line in stall.stack)
    metrics = snapshot.operator("blocked").metrics
    of_it = [int(one.duration_ms) for one in snapshot.stalls if one.uid == "b"]
    assert (metrics["stalls"], metrics["stalled_ms"]) == (len(of_it), sum(of_it))
    assert "stalls" not in snapshot.operator("numbers").metrics
    record = next(one for one in caplog.records if getattr(one, "line", 0) == BLOCKS_AT)
    assert record.levelno == logging.WARNING
    assert record.operator == "blocked"  # type: ignore[attr-defined]
    assert 'run_in="thread"' in record.getMessage()
    if stall.cpu_ms is not None:
        assert record.cpu_ms == round(stall.cpu_ms)  # type: ignore[attr-defined]
        assert f"{stall.cpu_ms:.0f} ms of it computed" in str(stall)


async def test_the_function_of_an_asynchronous_call_is_named_too() -> None:
    snapshot = await snapshots(
        lambda stream: (
            stream.map_async(block_async, concurrency=2)
            .name("calls")
            .sink_to(lambda number: None)
        )
    )
    stall = stall_of(snapshot)
    assert (stall.operator, stall.function) == ("calls", "block")


async def test_of_functions_that_run_as_one_the_right_one_is_named() -> None:
    snapshot = await snapshots(
        lambda stream: (
            stream.map(lambda number: number)
            .name("first")
            .filter(lambda number: True)
            .name("second")
            .map(block)
            .name("third")
            .sink_to(lambda number: None)
        )
    )
    assert stall_of(snapshot).operator == "third"


async def test_run_in_a_thread_nothing_is_held() -> None:
    loop = asyncio.get_running_loop()

    def wait_for_the_loop(number: int) -> int:
        # Were it held, it would not turn.
        turned = threading.Event()
        loop.call_soon_threadsafe(turned.set)
        assert turned.wait(50)
        return nap(number)

    seen: list[int] = []
    snapshot = await snapshots(
        lambda stream: stream.map(wait_for_the_loop, run_in="thread").sink_to(
            seen.append
        )
    )
    assert seen == [0, 1, 2, 3, 4]
    assert all(stall.function != "nap" for stall in snapshot.stalls)


async def test_threads_of_one_operator_never_run_at_once() -> None:
    running, most = 0, 0
    threads = set()
    lock = threading.Lock()

    def enter(number: int) -> list[int]:
        nonlocal running, most
        threads.add(threading.current_thread())
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1
        return [number, -number]

    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(range(1, 9))
    seen = await stream.flat_map(enter, run_in="thread").collect()
    assert seen == [number for one in range(1, 9) for number in (one, -one)]
    assert most == 1
    assert threading.main_thread() not in threads
    kept = await env.from_collection(range(5)).filter(bool, run_in="thread").collect()
    assert kept == [1, 2, 3, 4]


async def test_an_error_in_a_thread_is_the_records() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([1, 0]).map(lambda n: 1 / n, run_in="thread")
    with pytest.raises(am.JobFailedError, match="division by zero") as failed:
        await stream.collect()
    assert f"{__file__}:" in str(failed.value)
    skipping = env.from_collection([1, 0]).map(
        lambda n: 1 / n, run_in="thread", on_error=am.skip
    )
    assert await skipping.collect() == [1.0]


@pytest.mark.parametrize(
    ("function", "run_in", "text"),
    [(block, "process", "is not known"), (block_async, "thread", "is asynchronous")],
)
async def test_where_a_function_cannot_run_is_refused(
    function: Any, run_in: Any, text: str
) -> None:
    stream = am.StreamExecutionEnvironment().from_collection([1])
    with pytest.raises(am.InvalidArgumentError, match=f"run_in.*{text}"):
        stream.map(function, run_in=run_in)


async def test_code_of_no_operator_is_told_apart() -> None:
    env = am.StreamExecutionEnvironment()

    async def ticks() -> Any:
        while True:
            yield 1
            await asyncio.sleep(0.01)

    env.from_async_iterable(ticks).sink_to(lambda number: None)
    async with env.start() as job:
        while job.state is not am.JobState.RUNNING:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        block(3)
        while not any(one.line == BLOCKS_AT for one in job.snapshot().stalls):
            await asyncio.sleep(0.01)
        stall = stall_of(job.snapshot())
        await job.stop()
    assert (stall.operator, stall.function) == ("", "block")


async def test_a_worker_tells_what_held_its_loop() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(range(5)).rebalance().map(block).name("far")
    stream.sink_to(print_nothing)
    async with env.start(deployment=am.Processes(1)) as job:
        await job.result()
        snapshot = job.snapshot()
    assert stall_of(snapshot).operator == "far"
    assert snapshot.operator("far").metrics["stalls"] == 1


def print_nothing(number: int) -> None:
    """Take it."""


async def test_garbage_collection_is_told_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def collect(number: int) -> int:
        # A real one in the middle would end what is played here.
        gc.disable()
        for callback in gc.callbacks:
            callback("start", {"generation": 2})
        seen_by_watch().wait(50)
        for callback in gc.callbacks:
            callback("stop", {"generation": 2})
        gc.enable()
        return number

    snapshot = await snapshots(
        lambda stream: stream.map(collect).name("collects").sink_to(lambda one: None)
    )
    stall = next(one for one in snapshot.stalls if one.operator == "collects")
    assert stall.is_garbage_collection
    assert "ms of it collected garbage" in str(stall)
    line, *_ = [
        one.getMessage()
        for one in caplog.records
        if getattr(one, "operator", "") == "collects"
    ]
    assert "the event loop was held by a collection of garbage" in line
    assert "am.tune_collector()" in line
    assert "run_in=" not in line
    metrics = snapshot.operator("collects").metrics
    assert metrics["gc_stalls"] >= 1
    assert "stalls" not in metrics


async def test_without_a_threshold_nothing_is_watched() -> None:
    names: list[str] = []
    snapshot = await snapshots(
        lambda stream: stream.map(nap).sink_to(
            lambda number: names.extend(one.name for one in threading.enumerate())
        ),
        stall_threshold=None,
    )
    assert snapshot.stalls == []
    assert "watch of an event loop" not in names
    for wrong in (10, 0):
        with pytest.raises(am.InvalidArgumentError, match="stall_threshold"):
            am.JobConfig(stall_threshold=am.millis(wrong))


async def test_jobs_of_one_loop_share_a_watch_that_ends_with_the_last() -> None:
    def watches() -> int:
        names = [one.name for one in threading.enumerate()]
        return names.count("watch of an event loop")

    counts: list[int] = []
    env = am.StreamExecutionEnvironment()
    for _ in range(3):
        env.from_collection([1]).sink_to(lambda one: counts.append(watches()))
        async with env.start() as job:
            await job.result()
    assert counts == [1, 1, 1]
    assert watches() == 0


async def test_a_loop_without_frames_of_its_own_is_asked() -> None:
    log = StallLog()
    watch = LoopWatch(asyncio.get_running_loop(), 0.1, log)
    watch._asks = True
    watch.start()
    for _ in range(10):
        await asyncio.sleep(0.02)
    block(3)
    watch.stop()
    assert [stall.line for stall in log.last if stall.function == "block"] == [
        BLOCKS_AT
    ]


async def test_a_place_that_blocks_again_and_again_costs_few_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = StallLog()
    stall = Stall(
        at_ms=0, duration_ms=200, gc_ms=0, cpu_ms=None, task="", operator="",
        uid=None, mail="", function="f", line="a.py:1", stack=[],
    )  # fmt: skip
    for _ in range(1000):
        log.add(stall, [])
    assert len(caplog.records) == 10
    assert len(log.last) == 20


async def test_threads_switch_as_before_once_the_watch_has_looked() -> None:
    before_s = sys.getswitchinterval()
    first, second = loop_watch._QuickSwitches(), loop_watch._quick_switches
    with second:
        assert sys.getswitchinterval() < before_s
        with second:
            assert sys.getswitchinterval() < before_s
        assert sys.getswitchinterval() < before_s
    assert sys.getswitchinterval() == before_s
    # What the program sets meanwhile stays.
    try:
        with first:
            sys.setswitchinterval(0.01)
        assert sys.getswitchinterval() == pytest.approx(0.01)
    finally:
        sys.setswitchinterval(before_s)


async def test_a_loop_that_sleeps_is_not_woken_and_tasks_are_not_looked_at() -> None:
    loop = asyncio.get_running_loop()
    watch = LoopWatch(loop, 0.1, StallLog())
    watch._asks = True
    asked: list[Any] = []
    watch._loop = SimpleNamespace(call_soon_threadsafe=asked.append)  # type: ignore[assignment]
    looked = await asyncio.get_running_loop().run_in_executor(
        None, lambda: _look_while_it_sleeps(watch)
    )
    assert looked
    assert asked == []


def _look_while_it_sleeps(watch: LoopWatch) -> bool:
    """Look from a thread until the loop was asleep at a look."""
    for at in range(1000):
        watch._has_turned = True
        asked = watch._loop.call_soon_threadsafe.__self__  # type: ignore[attr-defined]
        asked.clear()
        watch.look(float(at))
        if not asked:
            return True
        time.sleep(0.01)
    return False


async def test_what_runs_the_loop_is_not_at_work() -> None:
    """Neither asyncio's lines nor those of the program that has called it."""
    found: list[Any] = []

    def callback() -> None:
        frame = sys._getframe()
        inside = loop_watch._call_of(frame, None)
        found.append((loop_watch._at_work(frame, inside), inside))

    asyncio.get_running_loop().call_soon(callback)
    while not found:
        await asyncio.sleep(0)
    frames, handle = found[0]
    assert [frame.f_code.co_name for frame in frames] == ["callback"]
    assert users_line_of(frames).startswith(f"{__file__}:")
    # The engine at work: no line is the user's.
    assert "asyncio" in handle.f_code.co_filename
    assert users_line_of([handle]) == ""


def test_in_a_loop_of_other_code_a_call_is_what_its_caller_has_called() -> None:
    outside = sys._getframe()

    def callback() -> tuple[Any, Any]:
        def innermost() -> Any:
            return loop_watch._call_of(sys._getframe(), outside)

        return innermost(), sys._getframe()

    found, called = callback()
    assert found is called
    # It sleeps: its thread stands where it was called from.
    assert loop_watch._call_of(outside, outside) is None
    # Somewhere else, as in a loop that was left.
    assert loop_watch._call_of(outside.f_back, outside) is None
