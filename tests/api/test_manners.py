"""What we leave alone in the program that we are part of."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import threading

import pytest
import structlog

import aiomailbox as am
from aiomailbox import errors

BUILD_AND_EXPLAIN = """
import asyncio, sys

def refuse(*_, **__):
    raise SystemExit("an event loop was touched")

for name in ("get_event_loop", "get_running_loop", "new_event_loop", "set_event_loop"):
    setattr(asyncio, name, refuse)

import aiomailbox as am

async def call(n):
    return n

tag = am.OutputTag("failed")
env = am.StreamExecutionEnvironment(parallelism=2)
strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.seconds(1))
numbers = env.from_collection([1], strategy.with_timestamp_assigner(lambda n: n))
calls = numbers.map_async(call, retry=am.Retry(), limit=am.RateLimit(5),
                          cache=am.Cache(lambda n: n), on_error=am.dead_letter(tag))
windows = calls.key_by(lambda n: n).window(am.TumblingEventTimeWindows.of(am.days(1)))
windows.aggregate(am.count()).sink_to(print)
calls.get_side_output(tag).sink_to(print)
env.explain()
print(*sorted({"pyspark", "pyarrow", "uvloop", "pandas", "aiostream"} & set(sys.modules)))
"""


def run_python(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_importing_imports_nothing_heavy() -> None:
    heavy = {"pyspark", "pyarrow", "uvloop", "pandas", "numpy", "aiostream"}
    loaded = run_python("import sys, aiomailbox; print(*sys.modules)")
    assert heavy & {name.partition(".")[0] for name in loaded.split()} == set()


def test_building_a_pipeline_touches_no_event_loop_and_imports_nothing_heavy() -> None:
    assert run_python(BUILD_AND_EXPLAIN) == ""


def test_a_pipeline_can_be_built_in_another_thread() -> None:
    built: list[am.DataStream[int]] = []

    def build() -> None:
        env = am.StreamExecutionEnvironment()
        built.append(env.from_collection([1]).map(lambda n: n + 1))

    thread = threading.Thread(target=build)
    thread.start()
    thread.join()
    assert am.run(built[0].collect()) == [2]


def signal_handlers() -> dict[int, object]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


@pytest.mark.real_time
async def test_a_job_configures_no_logging_and_installs_no_signal_handler() -> None:
    root = logging.getLogger()
    seen: list[tuple[object, ...]] = []

    def look(_: object) -> None:
        seen.append(look_around())

    def look_around() -> tuple[object, ...]:
        return (
            signal_handlers(),
            list(root.handlers),
            root.level,
            list(logging.getLogger("aiomailbox").handlers),
            structlog.get_config() | {},
            structlog.is_configured(),
            sys.excepthook,
            threading.excepthook,
            asyncio.get_running_loop().get_exception_handler(),
            asyncio.get_running_loop().get_task_factory(),
        )

    before = look_around()
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(look)
    await env.execute()
    assert seen == [before]
    assert look_around() == before


def test_the_blocking_door_puts_the_interrupt_handler_back() -> None:
    before = signal_handlers()
    am.run(am.StreamExecutionEnvironment().from_collection([1]).collect())
    assert signal_handlers() == before


INTERRUPTED = """
import asyncio, os, signal
import aiomailbox as am

async def numbers():
    try:
        while True:
            yield 1
            await asyncio.sleep(0.01)
    finally:
        print("closed")

async def interrupt(n):
    os.kill(os.getpid(), signal.SIGINT)

env = am.StreamExecutionEnvironment()
env.from_async_iterable(numbers).sink_to(interrupt)
try:
    am.run(env.execute())
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_cancels_the_job_and_is_raised_after_its_clean_up() -> None:
    assert run_python(INTERRUPTED).split() == ["closed", "interrupted"]


@pytest.mark.real_time
async def test_a_job_does_not_close_or_replace_the_loop() -> None:
    loop = asyncio.get_running_loop()
    await am.StreamExecutionEnvironment().from_collection([1]).collect()
    assert asyncio.get_running_loop() is loop
    assert not loop.is_closed()


def test_every_error_is_where_the_other_names_are() -> None:
    """What programs catch is ``am.…``; the rest, asked for there, says where it is."""
    found = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, BaseException)
    }
    caught = {*errors.__all__}
    assert caught < found
    assert caught <= {*am.__all__}
    for name in found - caught:
        with pytest.raises(AttributeError, match=rf"write aiomailbox\.errors\.{name}$"):
            getattr(am, name)


@pytest.mark.parametrize(
    ("ours", "of_python"),
    [
        (errors.InvalidArgumentError, ValueError),
        (errors.WrongTypeError, TypeError),
        (errors.AsyncTimeoutError, TimeoutError),
        (errors.DeadlineExceededError, TimeoutError),
        (errors.TargetExistsError, FileExistsError),
        (errors.MissingExtraError, ImportError),
    ],
)
def test_an_error_is_one_of_python_too_where_one_fits(
    ours: type[Exception], of_python: type[Exception]
) -> None:
    assert issubclass(ours, of_python)
    assert issubclass(ours, am.AioMailboxError)


@pytest.mark.parametrize("on_error", [am.fail, am.skip])
@pytest.mark.parametrize("is_source", [True, False])
@pytest.mark.parametrize(
    ("first", "unit"),
    [
        (1_790_000_000, "seconds"),
        (1_790_000_000_000, ""),
        (1_790_000_000_000_000, "microseconds"),
        (1_790_000_000_000_000_000, "nanoseconds"),
        (1000, ""),
    ],
)
async def test_event_times_in_another_unit_give_one_warning(
    env: am.StreamExecutionEnvironment,
    caplog: pytest.LogCaptureFixture,
    first: int,
    unit: str,
    is_source: bool,
    on_error: am.OnError,
) -> None:
    time = am.WatermarkStrategy.for_monotonous_timestamps()
    time = time.with_timestamp_assigner(lambda value: value)
    values = list(range(first, first + 5000))
    if is_source:
        stream = env.from_collection(values, time)
    else:
        stream = env.from_collection(values).assign_timestamps_and_watermarks(
            time, on_error=on_error
        )
    assert await stream.collect() == values
    said = [r.message for r in caplog.records if "event times look like" in r.message]
    assert len(said) == bool(unit)
    assert all(f" {unit} since" in text for text in said)
