"""A pipeline of any length starts, runs, and can be cancelled."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

import aiomailbox as am

Stream = am.DataStream[Any]


class Pass(am.ProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(value)


class PassAsync(am.ProcessFunction):
    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        await asyncio.sleep(0)
        out.collect(value)


class Late(am.KeyedProcessFunction):
    """Emits from a timer, so that the whole chain hangs below a watermark."""

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        context.timer_service.register_event_time_timer(value)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        out.collect(timestamp)


async def same(value: Any) -> Any:
    return value


STEPS: dict[str, Callable[[Stream], Stream]] = {
    "map": lambda s: s.map(lambda value: value),
    "flat_map": lambda s: s.flat_map(lambda value: [value]),
    "flat_map generator": lambda s: s.flat_map(lambda value: (yield value)),
    "map async": lambda s: s.map(same),
    "map_async": lambda s: s.map_async(same),
    "process": lambda s: s.process(Pass()),
    "process async": lambda s: s.process(PassAsync()),
}


def long_pipeline(source: Stream, step: str, length: int) -> Stream:
    stream = source
    for _ in range(length):
        stream = STEPS[step](stream)
    return stream


@pytest.mark.parametrize("length", [10, 33, 138, 300])
@pytest.mark.parametrize("step", STEPS)
async def test_any_length_works(step: str, length: int) -> None:
    source = am.StreamExecutionEnvironment().from_collection([1, 2, 3])
    assert await long_pipeline(source, step, length).collect() == [1, 2, 3]


@pytest.mark.parametrize("step", ["process", "process async", "flat_map"])
async def test_any_length_can_be_cancelled(
    step: str, assert_nothing_left: Callable[[], None]
) -> None:
    async def ticks() -> Any:
        for number in itertools.count():
            yield number
            await asyncio.sleep(0.01)

    env = am.StreamExecutionEnvironment()
    seen = []
    source = env.from_async_iterable(ticks())
    long_pipeline(source, step, 138).sink_to(seen.append)
    async with env.start() as job:
        await asyncio.sleep(1)
        await job.cancel()
    assert seen
    assert_nothing_left()


async def test_timers_at_the_head_of_a_long_chain_find_room_below_them() -> None:
    env = am.StreamExecutionEnvironment()
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    timed = env.from_collection(
        range(1, 2_001), strategy.with_timestamp_assigner(lambda value: value)
    )
    stream = timed.key_by(lambda value: value % 7).process(Late())
    found = await long_pipeline(stream, "process", 100).collect()
    assert sorted(found) == list(range(1, 2_001))


async def test_a_union_of_many_streams_is_one_stream() -> None:
    env = am.StreamExecutionEnvironment()
    streams = [env.from_collection([number]) for number in range(150)]
    together = streams[0].union(*streams[1:])
    nested = env.from_collection([150])
    for stream in streams:
        nested = nested.union(stream)
    assert sorted(await together.collect()) == list(range(150))
    assert sorted(await nested.collect()) == list(range(151))
