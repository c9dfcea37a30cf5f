"""What a running job says about event time, operator by operator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.operators.core.event_progress import WatermarkTicks

MAX = 2**63 - 1


async def rows() -> AsyncIterator[int]:
    for time in (1000, 2000, 3000):
        yield time
        await asyncio.sleep(1)
    await asyncio.sleep(1000)


def strategy() -> am.WatermarkStrategy:
    ordered = am.WatermarkStrategy.for_monotonous_timestamps()
    return ordered.with_timestamp_assigner(lambda time: time).with_idleness(
        am.seconds(60)
    )


async def test_a_job_shows_the_watermark_of_each_operator_also_inside_a_chain() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_async_iterable(rows, strategy()).map(lambda n: n).name("plus")
    counts = stream.key_by(lambda n: 0).window(
        am.TumblingEventTimeWindows.of(am.seconds(1))
    )
    counts.aggregate(am.count()).name("count").sink_to(lambda n: None)
    async with env.start("shown") as job:
        await asyncio.sleep(10)
        shown = job.watermarks()
        assert set(shown) == set(job.metrics().operators)
        assert {place.timestamp_ms for place in shown.values()} == {2999}
        assert not any(place.is_idle for place in shown.values())
        await asyncio.sleep(100)
        assert all(place.is_idle for place in job.watermarks().values())
        await job.cancel()


async def test_an_operator_with_two_inputs_is_where_the_slower_one_is() -> None:
    env = am.StreamExecutionEnvironment()
    ends = env.from_collection([5], strategy())
    stays = env.from_async_iterable(rows, strategy())
    both = ends.connect(stays).map(lambda n: n, lambda n: n).name("both")
    both.sink_to(lambda n: None)
    async with env.start("two") as job:
        await asyncio.sleep(10)
        assert job.watermarks()["both"].timestamp_ms == 2999
        await job.cancel()


class SecondBehindTheClock:
    """Promises that records are at most a second behind the time of day."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def on_run(self, timestamps: list[int], output: Any) -> None:
        """Nothing: records tell it nothing."""

    def on_periodic_emit(self, output: Any) -> None:
        output.emit_watermark(int(self._clock() * 1000) - 1000)


@pytest.mark.parametrize("behind", [False, True], ids=["of a source", "behind one"])
async def test_a_users_generator_looks_at_the_time_while_no_record_comes(
    behind: bool,
) -> None:
    clock = asyncio.get_running_loop().time
    begin = clock()
    own = am.WatermarkStrategy[int].for_generator(lambda: SecondBehindTheClock(clock))

    async def one() -> AsyncIterator[int]:
        yield int(begin * 1000) + 5_000
        await asyncio.sleep(1000)

    env = am.StreamExecutionEnvironment()
    timed = own.with_timestamp_assigner(lambda time: time)
    if behind:
        stream = env.from_async_iterable(one).assign_timestamps_and_watermarks(timed)
    else:
        stream = env.from_async_iterable(one, timed)
    fired: list[float] = []
    windows = stream.window_all(am.TumblingEventTimeWindows.of(am.seconds(1)))
    windows.aggregate(am.count()).sink_to(lambda n: fired.append(clock() - begin))
    async with env.start("timed") as job:
        await asyncio.sleep(30)
        # The record's window ends in its sixth second, and the promise is one behind.
        assert [6.9 <= at <= 7.5 for at in fired] == [True], fired
        await job.cancel()


async def test_only_a_users_generator_wakes_an_idle_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    built_in = am.WatermarkStrategy[int].for_monotonous_timestamps()
    own = am.WatermarkStrategy[int].for_generator(
        lambda: SecondBehindTheClock(loop.time)
    )
    ticks: list[int] = []
    look = WatermarkTicks._tick

    def noted(self: WatermarkTicks, at_ms: int) -> Any:
        ticks.append(at_ms)
        return look(self, at_ms)

    monkeypatch.setattr(WatermarkTicks, "_tick", noted)

    async def none() -> AsyncIterator[int]:
        await asyncio.sleep(1000)
        yield 0

    for strategy_, woken in (built_in, 0), (own, 50):
        env = am.StreamExecutionEnvironment()
        timed = strategy_.with_timestamp_assigner(lambda time: time)
        env.from_async_iterable(none, timed).sink_to(lambda n: None)
        async with env.start("idle") as job:
            await asyncio.sleep(10.1)
            assert abs(len(ticks) - woken) <= 1
            await job.cancel()
        told = len(ticks)
        await asyncio.sleep(10)
        assert len(ticks) == told, "a job that has ended wakes no more"
