"""The adapter against the real aiostream."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable

import pytest
from aiostream import pipe, stream

import aiomailbox as am
from aiomailbox.connectors.aiostream import (
    aiostream_from_stream,
    source_from_aiostream,
)

Env = am.StreamExecutionEnvironment


@pytest.fixture
def env() -> Env:
    return Env()


class Ticks:
    """Numbers for ever, ten a second, as an aiostream Stream; counts its ends."""

    def __init__(self) -> None:
        self.closed = 0

    async def _ticks(self) -> AsyncIterator[int]:
        number = 0
        try:
            while True:
                yield number
                number += 1
                await asyncio.sleep(0.1)
        finally:
            self.closed += 1

    def stream(self) -> object:
        return stream.call(self._ticks) | pipe.flatten()


def nothing_left() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_aiostream_stream_is_a_source(env: Env) -> None:
    squares = stream.range(5) | pipe.map(lambda n: n * n)
    records = env.from_source(source_from_aiostream(squares)).map(str)
    assert await records.collect() == ["0", "1", "4", "9", "16"]


async def test_each_job_reads_the_stream_anew(env: Env) -> None:
    records = env.from_source(source_from_aiostream(stream.range(3)))
    assert await records.collect() == [0, 1, 2]
    assert await records.collect() == [0, 1, 2]


async def test_operators_with_tasks_of_their_own_are_left_when_the_job_ends_early(
    env: Env,
) -> None:
    first, second = Ticks(), Ticks()
    merged = stream.merge(first.stream(), second.stream())
    records = await env.from_source(source_from_aiostream(merged)).take(4)
    assert len(records) == 4
    assert (first.closed, second.closed) == (1, 1)
    assert nothing_left()


async def test_a_failure_in_the_stream_fails_the_job(env: Env) -> None:
    broken = stream.range(3) | pipe.map(lambda n: 1 // (1 - n))
    with pytest.raises(am.JobFailedError, match="division"):
        await env.from_source(source_from_aiostream(broken)).collect()
    assert nothing_left()


async def test_cancelling_the_job_closes_the_stream(env: Env) -> None:
    ticks = Ticks()
    records = env.from_source(source_from_aiostream(ticks.stream()))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await records.collect()
    assert ticks.closed == 1
    assert nothing_left()


async def test_our_stream_is_a_source_for_aiostream(env: Env) -> None:
    records = env.from_collection([1, 2, 3, 4]).map(lambda n: n * 10)
    chunks = aiostream_from_stream(records) | pipe.chunks(3) | pipe.list()
    assert await chunks == [[10, 20, 30], [40]]
    assert nothing_left()


async def test_a_failure_of_the_job_comes_out_of_aiostream(env: Env) -> None:
    records = env.from_collection([0]).map(lambda n: 1 / n)
    with pytest.raises(am.JobFailedError, match="division"):
        await (aiostream_from_stream(records) | pipe.list())
    assert nothing_left()


async def test_leaving_the_context_of_aiostream_cancels_the_job(env: Env) -> None:
    ticks = Ticks()
    records = env.from_source(source_from_aiostream(ticks.stream()))
    env.configure(buffer_timeout=am.millis(0))
    async with (aiostream_from_stream(records) | pipe.take(2)).stream() as taken:
        assert [n async for n in taken] == [0, 1]
    assert ticks.closed == 1
    assert nothing_left()


async def test_event_times_are_taken_from_the_items(env: Env) -> None:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    counts = (
        env.from_source(
            source_from_aiostream(stream.range(0, 10_000, 1_000)),
            strategy.with_timestamp_assigner(lambda n: n),
        )
        .key_by(lambda n: "all")
        .window(am.TumblingEventTimeWindows.of(am.seconds(5)))
        .aggregate(am.count())
    )
    assert await counts.collect() == [5, 5]


@pytest.mark.parametrize("adapt", [source_from_aiostream, aiostream_from_stream])
def test_what_is_no_stream_is_refused_by_name(adapt: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="stream: 3 "):
        adapt(3)


def test_without_aiostream_it_is_said_what_to_install() -> None:
    script = (
        "import sys; sys.modules['aiostream'] = None\n"
        "import aiomailbox\n"
        "try: import aiomailbox.connectors.aiostream\n"
        "except aiomailbox.UsageError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "pip install " in done.stdout
    assert "[aiostream]" in done.stdout
