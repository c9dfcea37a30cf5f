"""R1, R2, R3: how long the program around embedded jobs waits for its event loop.

A ticker sleeps for a millisecond, again and again, and notes how late it wakes up; a
web application answers clients on the same event loop. Collections of garbage are
turned off while that is measured, for they stop the whole interpreter, and are reported
apart; R3 leaves them on, as a program does. A busy machine is late as well, most of all with a program that is busy itself: so
every row stands beside that of an empty loop, and beside the processor time that the
event loop took between two ticks, which other programs do not lengthen.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiomailbox as am
from tests.benchmarks.measure import Report, Row, percentile

_TICK_S = 0.001
_TICKS_S = 3.0
_CLIENTS = 50
_KEYS = 200_000
_TIMERS = 500_000

Work = Callable[[], contextlib.AbstractAsyncContextManager[None]]


def ticker() -> Report:
    """Measure how late a ticker is beside jobs of all kinds."""
    report = Report("R1", "how late a ticker of 1 ms is (p99), collector off")
    empty: list[float] = []
    for name, work in _beside().items():
        late, held = asyncio.run(_ticks(work))
        empty = empty or late
        base, p99 = percentile(empty, 0.99), percentile(late, 0.99)
        report.rows.append(Row("R1", name, 1, p99, base / p99))
        report.notes.append(
            f"{name}: beyond the empty loop p99 {_ms(p99 - base)}, maximum "
            f"{_ms(max(late) - max(empty))}; processor time between two ticks p99 "
            f"{_ms(percentile(held, 0.99))}, maximum {_ms(max(held))}"
        )
    report.notes.append(f"a collection of garbage takes {_ms(_collection())}")
    return report


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def _beside() -> dict[str, Work]:
    return {
        "an empty loop": _nothing,
        "1 job": lambda: _jobs(1),
        "10 jobs": lambda: _jobs(10),
        "50 jobs": lambda: _jobs(50),
        f"windows of {_KEYS:,} keys that fire": lambda: _jobs(1, _windows),
        f"sessions of {_KEYS:,} keys that fire": lambda: _jobs(1, _sessions),
        f"{_TIMERS:,} event-time timers": lambda: _jobs(1, _timers),
    }


async def _ticks(
    work: Work, *, collector: bool = False, seconds: float = _TICKS_S
) -> tuple[list[float], list[float]]:
    """Tick beside ``work``.

    Args:
        work: The jobs.
        collector: Whether garbage is collected meanwhile.
        seconds: For how long.

    Returns:
        How late each tick was, and how much processor time there was since the one
        before, in seconds.
    """
    late: list[float] = []
    held: list[float] = []
    gc.collect()
    if not collector:
        gc.disable()
    try:
        async with work():
            # Not the loop's time: that of uvloop counts whole milliseconds.
            end = time.perf_counter() + seconds
            before = time.thread_time()
            while time.perf_counter() < end:
                due = time.perf_counter() + _TICK_S
                await asyncio.sleep(_TICK_S)
                late.append(time.perf_counter() - due)
                now = time.thread_time()
                held.append(now - before)
                before = now
    finally:
        gc.enable()
    return late, held


def _collection() -> float:
    """Return how long a collection takes beside as many objects as there are keys."""
    kept = [[number] for number in range(_KEYS)]
    started = time.perf_counter()
    gc.collect()
    took = time.perf_counter() - started
    kept.clear()
    return took


@contextlib.asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield


def _endless() -> Any:
    return (
        am.StreamExecutionEnvironment()
        .from_collection(range(10**12))
        .map(lambda number: (number % 1_000, number))
        .key_by(lambda pair: pair[0])
        .aggregate(am.sum_(lambda pair: pair[1]))
    )


@contextlib.asynccontextmanager
async def _jobs(count: int, build: Callable[[], Any] = _endless) -> AsyncIterator[None]:
    """Run jobs; bounded ones begin again and again."""

    async def again() -> None:
        while True:
            await build().count()

    loop = asyncio.get_running_loop()
    running = [loop.create_task(again()) for _ in range(count)]
    # Their start, and what is imported then, is not measured.
    await asyncio.sleep(1 + count / 10)
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)


def _keyed(count: int) -> Any:
    times = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda _: 1_000
    )
    env = am.StreamExecutionEnvironment()
    numbers = env.from_collection(range(count)).assign_timestamps_and_watermarks(times)
    return numbers.key_by(lambda number: number)


def _windows() -> Any:
    windows = am.TumblingEventTimeWindows.of(am.seconds(10))
    return _keyed(_KEYS).window(windows).aggregate(am.count())


def _sessions() -> Any:
    windows = am.EventTimeSessionWindows.with_gap(am.seconds(10))
    return _keyed(_KEYS).window(windows).aggregate(am.count())


class _Timer(am.KeyedProcessFunction):
    def process_element(self, value: int, context: Any, out: Any) -> None:
        context.timer_service.register_event_time_timer(10_000 + value)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        out.collect(timestamp)


def _timers() -> Any:
    return _keyed(_TIMERS).process(_Timer())


def _windows_again() -> Any:
    times = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda number: number // 50
    )
    return (
        am.StreamExecutionEnvironment()
        .from_collection(range(10**12))
        .assign_timestamps_and_watermarks(times)
        .key_by(lambda number: number % 50_000)
        .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
        .aggregate(am.count())
    )


async def _ask(port: int) -> list[float]:
    """Return how long each answer took, as clients in another process measured it."""
    command = ["-m", "tests.benchmarks.http_clients", port, _CLIENTS, _TICKS_S]
    clients = await asyncio.create_subprocess_exec(
        sys.executable, *map(str, command), stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await clients.communicate()
    times: list[float] = json.loads(printed)
    return times


def application() -> Iterator[Report]:
    """Measure an application beside jobs, if FastAPI and uvicorn are there."""
    try:
        import fastapi
        import uvicorn
    except ImportError:
        return
    application = fastapi.FastAPI()

    @application.get("/answer")
    async def answer() -> dict[str, int]:
        return {"answer": 42}

    async def measured(work: Work) -> list[float]:
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(application, log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve([listener]))
        gc.collect()
        gc.disable()
        try:
            async with work():
                times = await _ask(listener.getsockname()[1])
        finally:
            gc.enable()
        server.should_exit = True
        await serving
        listener.close()
        return times

    works: dict[str, Work] = {
        "no job": _nothing,
        "1 job": lambda: _jobs(1),
        "windows that fire": lambda: _jobs(1, _windows_again),
        "10 jobs": lambda: _jobs(10),
    }
    report = Report(
        "R2", f"{_CLIENTS} clients of a FastAPI application (p99), collector off"
    )
    for name, work in works.items():
        times = asyncio.run(measured(work))
        p50, p99 = percentile(times, 0.5), percentile(times, 0.99)
        base = report.rows[0].seconds if report.rows else p99
        report.rows.append(Row("R2", name, 1, p99, base / p99))
        report.notes.append(
            f"{name}: p50 {1000 * p50:.1f} ms, p99 {1000 * p99:.1f} ms, "
            f"{len(times)} answers"
        )
    yield report


# R3: as a service runs, each case in a process of its own: the collector's settings, and
# what it has to visit, are those of a program.


_SERVICE: dict[str, Work] = {
    "idle": _nothing,
    "1 job": lambda: _jobs(1),
    f"windows of {_KEYS:,} keys": lambda: _jobs(1, _windows),
    "10 jobs": lambda: _jobs(10),
    "50 jobs": lambda: _jobs(50),
}
_SERVICE_S = 8.0
_MORE_MAX_S = {"p99": 0.005, "maximum": 0.020}


def service() -> Iterator[Report]:
    """Measure a ticker beside jobs, on two loops, with and without `tune_collector`."""
    loops = ["asyncio"]
    with contextlib.suppress(ImportError):
        import uvloop

        loops.append(uvloop.__name__)
    for loop in loops:
        for tuned in ("", "tuned"):
            yield _service(loop, tuned)


def _service(loop: str, tuned: str) -> Report:
    report = Report("R3", f"how late a ticker of 1 ms is (p99): {loop} {tuned}")
    found: dict[str, dict[str, float]] = {}
    for name in _SERVICE:
        command = [sys.executable, "-m", "tests.benchmarks.responsive", name, loop]
        done = subprocess.run([*command, tuned], capture_output=True, check=True)
        found[name] = one = json.loads(done.stdout)
        idle = found["idle"]
        report.rows.append(Row("R3", name, 1, one["p99"], idle["p99"] / one["p99"]))
        more = {what: one[what] - idle[what] for what in _MORE_MAX_S}
        report.judge(
            f"{name}: beyond idle p99 {_ms(more['p99'])}, maximum "
            f"{_ms(more['maximum'])}; processor time between two ticks p99 "
            f"{_ms(one['held_p99'])}, maximum {_ms(one['held'])}",
            reached=all(more[what] <= most for what, most in _MORE_MAX_S.items()),
        )
    return report


def _measure(name: str, loop: str, tuned: str) -> dict[str, float]:
    """Return what one case of R3 measures, in seconds; for a process of its own."""
    if tuned:
        am.tune_collector()
    factory = importlib.import_module(loop).new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        ticks = _ticks(_SERVICE[name], collector=True, seconds=_SERVICE_S)
        late, held = runner.run(ticks)
    return {
        "p99": percentile(late, 0.99),
        "maximum": max(late),
        "held_p99": percentile(held, 0.99),
        "held": max(held),
    }


if __name__ == "__main__":
    print(json.dumps(_measure(*sys.argv[1:])))
