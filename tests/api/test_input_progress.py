"""Event time across several inputs: the slowest one counts, unless it is idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import aiomailbox as am

Row = tuple[str, int]
LONG_S = 300.0


async def busy() -> AsyncIterator[Row]:
    """Yield a row a second, for twenty seconds of event time."""
    for time in range(0, 20_000, 1000):
        await asyncio.sleep(1)
        yield "k", time


async def quiet() -> AsyncIterator[Row]:
    """Yield one row, and one more much later."""
    yield "k", 0
    await asyncio.sleep(LONG_S)
    yield "k", 19_000


class Timers(am.KeyedCoProcessFunction):
    """Emits the time of each timer of the first stream."""

    def process_element1(self, value: Row, context: Any, out: Any) -> None:
        context.timer_service.register_event_time_timer(value[1])

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        out.collect(timestamp)


def by_key(row: Row) -> str:
    return row[0]


def windowed(stream: Any) -> Any:
    return stream.window(am.TumblingEventTimeWindows.of(am.seconds(2)))


def union(first: Any, second: Any) -> Any:
    return windowed(first.union(second).key_by(by_key)).aggregate(am.count())


def connect(first: Any, second: Any) -> Any:
    return first.key_by(by_key).connect(second.key_by(by_key)).process(Timers())


def co_group(first: Any, second: Any) -> Any:
    grouped = first.co_group(second).where(by_key).equal_to(by_key)
    return windowed(grouped).apply(lambda firsts, seconds: [len(firsts)])


def as_of_join(first: Any, second: Any) -> Any:
    return first.key_by(by_key).as_of_join(second.key_by(by_key))


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("is_idle", [False, True])
@pytest.mark.parametrize("combine", [union, connect, co_group, as_of_join])
async def test_an_idle_input_does_not_hold_event_time_back(
    combine: Callable[[Any, Any], Any], is_idle: bool, parallelism: int
) -> None:
    time = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda row: row[1]
    )
    env = am.StreamExecutionEnvironment(parallelism=parallelism)
    second = env.from_async_iterable(
        quiet, time.with_idleness(am.seconds(2)) if is_idle else time
    )
    results = combine(env.from_async_iterable(busy, time), second)
    loop = asyncio.get_running_loop()
    started = loop.time()
    moments = [moment - started async for moment in results.map(lambda _: loop.time())]
    early = [moment for moment in moments if moment < 100]
    assert len(moments) >= 10
    # What comes after the last watermark of the busy stream waits for the end.
    if is_idle:
        assert len(early) >= len(moments) - 2
    else:
        assert len(early) <= 1
