"""A traceback shows the user's lines, and of the engine's hardly any."""

from __future__ import annotations

import traceback
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
    assert sum(PACKAGE in line for line in lines if 'File "' in line) <= 2
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
        assert sum(PACKAGE in frame.filename for frame in frames) <= 3


def test_the_blocking_door_adds_one_line() -> None:
    async def main(env: am.StreamExecutionEnvironment) -> None:
        await env.from_collection([1]).map(deep).collect()

    for work, users in [
        (lambda env: env.from_collection([1]).map(deep).collect(), 0),
        (main, 1),
    ]:
        with pytest.raises(am.JobFailedError) as caught:
            am.run(work(am.StreamExecutionEnvironment()))
        here, door, *others = traceback.extract_tb(caught.value.__traceback__)
        assert here.name == "test_the_blocking_door_adds_one_line"
        assert door.name == "run"
        names = [frame.name for frame in others]
        # The line of the user's that awaited, and the one of the engine that raised.
        assert names == ["main", "shortly"][: 2 * users]


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
