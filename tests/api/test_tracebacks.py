"""A traceback shows the user's lines, and of the engine's hardly any."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am

PACKAGE = str(Path(am.__file__).parent)


def deep(number: int) -> int:
    return deeper(number)


def deeper(number: int) -> int:
    raise ValueError(number)


async def awaits(number: int) -> int:
    return deeper(number)


@pytest.mark.parametrize(
    ("run", "users"),
    [
        (lambda s: s.map(deep).collect(), ["deep", "deeper"]),
        (lambda s: s.map(awaits).count(), ["awaits", "deeper"]),
        (lambda s: s.map_async(awaits).take(1), ["awaits", "deeper"]),
        (lambda s: s.key_by(deep).reduce(max).show(), ["deep", "deeper"]),
    ],
)
async def test_a_failing_function_is_seen_before_the_engine(
    run: Any, users: list[str]
) -> None:
    env = am.StreamExecutionEnvironment()
    with pytest.raises(am.JobFailedError) as caught:
        await run(env.from_collection([1]))
    error: BaseException | None = caught.value
    while error is not None and not isinstance(error, ValueError):
        error = error.__cause__
    assert error is not None
    frames = traceback.extract_tb(error.__traceback__)
    assert [frame.name for frame in frames] == users
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    assert not [line for line in lines if PACKAGE in line and 'File "' in line]
    assert caught.value.engine_traceback.count(PACKAGE) > 5


async def test_executing_and_waiting_are_short_too() -> None:
    env = am.StreamExecutionEnvironment()
    numbers = env.from_collection([1]).map(deep)
    numbers.sink_to(print)
    with pytest.raises(am.JobFailedError) as executed:
        await env.execute()
    numbers.sink_to(print)
    with pytest.raises(am.JobFailedError) as waited:
        async with env.start() as job:
            await job.result()
    for caught in (executed, waited):
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert [PACKAGE in frame.filename for frame in frames] == [False]


async def test_what_is_refused_shows_the_users_lines_only() -> None:
    env = am.StreamExecutionEnvironment()

    def changed() -> am.DataStream[int]:
        scores = env.from_collection([1]).map(deep)
        # As a statement, which changes nothing.
        scores.uid("scores")
        return scores

    async def started() -> None:
        changed().sink_to(print)
        async with env.start():
            raise AssertionError("it does not start")

    async def executed(execute: Any) -> None:
        changed().sink_to(print)
        await execute()

    async def iterated() -> None:
        async for _ in changed():
            raise AssertionError("it does not start")

    for run in (
        started(),
        executed(env.execute),
        executed(env.execute_async),
        changed().collect(),
        iterated(),
    ):
        with pytest.raises(am.UsageError, match="as it was before") as caught:
            await run
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert [frame.name for frame in frames if PACKAGE in frame.filename] == []
        assert not hasattr(caught.value, "__notes__")


def test_the_blocking_door_adds_no_line() -> None:
    async def main(env: am.StreamExecutionEnvironment) -> None:
        await env.from_collection([1]).map(deep).collect()

    for work, users in [
        (lambda env: env.from_collection([1]).map(deep).collect(), 0),
        (main, 1),
    ]:
        with pytest.raises(am.JobFailedError) as caught:
            am.run(work(am.StreamExecutionEnvironment()))
        names = [each.name for each in traceback.extract_tb(caught.value.__traceback__)]
        # After this line, the one of the user's that awaited.
        assert names == ["test_the_blocking_door_adds_no_line", "main"][: 1 + users]


def test_a_mistake_outside_of_a_job_shows_the_users_lines_through_the_blocking_door() -> (
    None
):
    async def main() -> None:
        deep(1)

    with pytest.raises(ValueError, match="1") as caught:
        am.run(main())
    names = [each.name for each in traceback.extract_tb(caught.value.__traceback__)]
    assert names[1:] == ["main", "deep", "deeper"]


@pytest.mark.real_time
def test_an_interrupt_shows_the_line_that_ran_the_job() -> None:
    def interrupt(number: int) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return number

    async def numbers() -> AsyncIterator[int]:
        while True:
            yield 1
            await asyncio.sleep(0)

    stream = am.StreamExecutionEnvironment().from_async_iterable(numbers)
    with pytest.raises(KeyboardInterrupt) as caught:
        am.run(stream.map(interrupt).count())
    (frame,) = traceback.extract_tb(caught.value.__traceback__)
    assert frame.name == "test_an_interrupt_shows_the_line_that_ran_the_job"


async def _blocks(
    env: am.StreamExecutionEnvironment, stream: am.DataStream[int]
) -> None:
    stream.sink_to(print)
    async with env.start():
        await asyncio.Event().wait()


async def _executes(
    env: am.StreamExecutionEnvironment, stream: am.DataStream[int]
) -> None:
    stream.sink_to(print)
    await env.execute()


async def _waits_in_the_background(
    env: am.StreamExecutionEnvironment, stream: am.DataStream[int]
) -> None:
    stream.sink_to(print)
    await (await env.execute_async()).result()


async def _collects(
    env: am.StreamExecutionEnvironment, stream: am.DataStream[int]
) -> None:
    await stream.collect()


async def _iterates(
    env: am.StreamExecutionEnvironment, stream: am.DataStream[int]
) -> None:
    async for _ in stream:
        pass


WAYS = [_blocks, _executes, _waits_in_the_background, _collects, _iterates]


@pytest.mark.parametrize("way", WAYS)
async def test_of_a_failure_only_lines_of_the_users_are_shown(way: Any) -> None:
    env = am.StreamExecutionEnvironment()
    with pytest.raises(am.JobFailedError) as caught:
        await way(env, env.from_collection([1]).map(deep))
    names = [each.name for each in traceback.extract_tb(caught.value.__traceback__)]
    assert names[1:] == [way.__name__]


@pytest.mark.parametrize("way", WAYS)
async def test_of_a_cancellation_only_lines_of_the_users_are_shown(way: Any) -> None:
    has_begun = asyncio.Event()

    async def numbers() -> AsyncIterator[int]:
        yield 1
        has_begun.set()
        await asyncio.Event().wait()

    env = am.StreamExecutionEnvironment()
    task = asyncio.create_task(way(env, env.from_async_iterable(numbers)))
    await has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert way.__name__ in [frame.name for frame in frames]
    assert not [frame for frame in frames if frame.filename.startswith(PACKAGE)]


async def test_a_target_that_exists_is_told_without_lines_of_the_library(
    tmp_path: Path,
) -> None:
    (tmp_path / "there").touch()
    env = am.StreamExecutionEnvironment()
    env.from_collection([{"a": 1}]).sink_to(am.FileSink(tmp_path, "jsonl"))
    with pytest.raises(am.JobFailedError) as caught:
        await env.execute()
    cause = caught.value.__cause__
    assert isinstance(cause, am.TargetExistsError)
    assert not traceback.extract_tb(cause.__traceback__)


@pytest.mark.parametrize("text", ["short", "of two\nlines", "long " * 100])
async def test_the_last_lines_name_operator_line_and_record(text: str) -> None:
    def refuse(number: int) -> int:
        raise ValueError(text)

    numbers = am.StreamExecutionEnvironment().from_collection([7])
    with pytest.raises(am.JobFailedError) as caught:
        await numbers.map(refuse).name("check").uid("check-1").collect()
    failed = caught.value
    line = refuse.__code__.co_firstlineno + 1
    *_, where, record = "".join(traceback.format_exception(failed)).splitlines()
    assert where == (
        f"in operator 'check' (uid 'check-1'), at {__file__}:{line}: "
        "raise ValueError(text)"
    )
    assert record == "the record: 7"
    assert failed.operator == "check"
    assert failed.uid == "check-1"
    assert failed.location == f"{__file__}:{line}"
    assert failed.record == "7"


async def test_a_failure_that_is_about_no_record_names_none() -> None:
    class Broken(am.ProcessFunction):
        def open(self, context: Any) -> None:
            raise ValueError("no table")

        def process_element(self, value: Any, context: Any, out: Any) -> None:
            out.collect(value)

    numbers = am.StreamExecutionEnvironment().from_collection([7])
    with pytest.raises(am.JobFailedError) as caught:
        await numbers.process(Broken()).name("look up").collect()
    last = "".join(traceback.format_exception(caught.value)).splitlines()[-1]
    assert last.startswith(f"in operator 'look up', at {__file__}:")
    assert caught.value.record is None


async def test_the_log_shows_the_user_s_frames_and_one_of_the_engine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(am.JobFailedError) as caught:
        await am.StreamExecutionEnvironment().from_collection([1]).map(deep).collect()
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    text = record.getMessage()
    assert text.count(PACKAGE) == 1
    assert text.index("in deep\n") < text.index("in deeper\n") < text.index(PACKAGE)
    # To format it has not touched what is raised.
    assert caught.value.engine_traceback.count(PACKAGE) > 5


async def test_who_asks_twice_gets_the_same() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).map(deep).sink_to(print)
    texts = []
    with pytest.raises(am.JobFailedError):
        async with env.start() as job:
            for _ in range(2):
                with pytest.raises(am.JobFailedError) as caught:
                    await job.result()
                texts.append(caught.value.engine_traceback)
            raise caught.value
    assert texts[0] == texts[1]
    assert "deeper" in texts[0]
