"""What windows drop is counted, and a warning says how much and why."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa
import pytest

import aiomailbox as am

# The second record moves event time to 10 s; both that follow it are too late.
EVENTS = [("a", 1, 1_000), ("a", 2, 10_001), ("a", 3, 2_000), ("a", 4, 500)]
STRATEGY = am.WatermarkStrategy.for_monotonous_timestamps()


async def one_by_one() -> AsyncIterator[tuple[str, int, int]]:
    for event in EVENTS:
        yield event
        # Of virtual time: each record is a run, and the watermark follows it.
        await asyncio.sleep(1)


def rows(env: Any) -> Any:
    timed = STRATEGY.with_timestamp_assigner(lambda event: event[2])
    return env.from_async_iterable(one_by_one).assign_timestamps_and_watermarks(timed)


def keyed(env: Any) -> Any:
    return rows(env).key_by(lambda event: event[0])


def tumbling(env: Any) -> Any:
    windows = am.TumblingEventTimeWindows.of(am.seconds(1))
    return keyed(env).window(windows).reduce(lambda one, other: one)


def sliding(env: Any) -> Any:
    windows = am.SlidingEventTimeWindows.of(am.seconds(2), am.seconds(1))
    return keyed(env).window(windows).reduce(lambda one, other: one)


def sessions(env: Any) -> Any:
    windows = am.EventTimeSessionWindows.with_gap(am.seconds(1))
    return keyed(env).window(windows).reduce(lambda one, other: one)


def triggered(env: Any) -> Any:
    windows = am.TumblingEventTimeWindows.of(am.seconds(1))
    return (
        keyed(env)
        .window(windows)
        .trigger(am.EventTimeTrigger())
        .apply(lambda key, window, values: values)
    )


def interval(env: Any) -> Any:
    other = keyed(env)
    joined = keyed(env).interval_join(other).between(am.seconds(-1), am.seconds(1))
    return joined.process(lambda left, right: (left, right))


def pattern(env: Any) -> Any:
    first = am.pattern("first", lambda event: event[1] == 3)
    return keyed(env).match(first.within(am.seconds(5)))


@pytest.mark.parametrize("build", [tumbling, sliding, sessions, triggered, pattern])
async def test_an_operator_of_rows_says_how_many_and_how_late(
    build: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    await check(build(am.StreamExecutionEnvironment()), 2, 9_500, caplog)


async def test_a_join_says_how_many_and_how_late(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = interval(am.StreamExecutionEnvironment())
    await check(stream, 4, 9_500, caplog)


@pytest.mark.parametrize(
    "windows",
    [
        am.TumblingEventTimeWindows.of(am.seconds(1)),
        am.SlidingEventTimeWindows.of(am.seconds(2), am.seconds(1)),
        am.EventTimeSessionWindows.with_gap(am.seconds(1)),
    ],
)
async def test_an_operator_on_columns_says_how_many_and_how_late(
    windows: Any, caplog: pytest.LogCaptureFixture
) -> None:
    env = am.StreamExecutionEnvironment()
    keys, numbers, times = zip(*EVENTS, strict=True)
    # Batches of one record: event time moves between them.
    table = pa.table({"key": keys, "number": numbers, "at": times})
    batches = table.to_batches(max_chunksize=1)
    timed = STRATEGY.with_timestamp_assigner("at")
    events = env.from_arrow(batches).assign_timestamps_and_watermarks(timed)
    sums = events.key_by("key").window(windows).aggregate(am.sum_("number"))
    await check(sums, 2, 9_500, caplog)


async def check(
    stream: Any, count: int, farthest_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "aiomailbox"):
        await stream.collect()
    said = [one for one in caplog.records if "late records" in one.getMessage()]
    # At once, and the rest at the end of the task: a minute is not over.
    assert 1 <= len(said) <= 2
    fields: Any = said[-1]
    assert fields.levelname == "WARNING"
    assert (fields.total, fields.farthest_ms) == (count, farthest_ms)
    assert fields.operator


async def test_there_is_a_warning_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def events() -> AsyncIterator[tuple[int, int]]:
        yield 0, 100_000
        for second in range(150):
            yield second, 0
            await asyncio.sleep(1)

    env = am.StreamExecutionEnvironment()
    timed = STRATEGY.with_timestamp_assigner(lambda event: event[1])
    stream = env.from_async_iterable(events).assign_timestamps_and_watermarks(timed)
    windows = am.TumblingEventTimeWindows.of(am.seconds(1))
    with caplog.at_level(logging.WARNING, "aiomailbox"):
        await stream.window_all(windows).reduce(max).collect()
    said: list[Any] = [one for one in caplog.records if "late" in one.getMessage()]
    assert len(said) == 4
    assert sum(one.count for one in said) == said[-1].total == 150


async def test_windows_that_the_end_of_input_cuts_off_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = am.StreamExecutionEnvironment()
    windows = am.TumblingProcessingTimeWindows.of(am.hours(1))
    counts = env.from_collection([1, 2, 3]).key_by(lambda number: number)
    with caplog.at_level(logging.WARNING, "aiomailbox"):
        assert await counts.window(windows).aggregate(am.count()).collect() == []
    (said,) = (one for one in caplog.records if "processing time" in one.getMessage())
    fields: Any = said
    assert (fields.windows, fields.levelname) == (3, "WARNING")


async def test_windows_of_processing_time_that_ended_are_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def slowly() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(10)

    env = am.StreamExecutionEnvironment()
    windows = am.TumblingProcessingTimeWindows.of(am.seconds(1))
    stream = env.from_async_iterable(slowly).window_all(windows)
    with caplog.at_level(logging.WARNING, "aiomailbox"):
        assert await stream.aggregate(am.count()).collect() == [1]
    assert "the input ended before windows" not in caplog.text
