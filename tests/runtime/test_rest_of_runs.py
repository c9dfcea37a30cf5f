"""Where awaited records are suddenly slow, timers and checkpoints wait for one of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import JobFailedError, StateError

FAST = 1_000
COUNT = FAST + 200


class Slow:
    """Waits for each value from 1,000 on."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds

    async def __call__(self, value: int) -> int:
        if value >= FAST:
            await asyncio.sleep(self.seconds)
        return value


class Ticking(am.KeyedProcessFunction):
    """Passes records on, and notes how late a timer every two seconds is."""

    def __init__(self, late_s: list[float]) -> None:
        self.late_s = late_s

    def open(self, context: Any) -> None:
        self.is_ticking = False

    def process_element(self, value: int, context: Any, out: Any) -> None:
        timers = context.timer_service
        if not self.is_ticking:
            self.is_ticking = True
            now = timers.current_processing_time()
            timers.register_processing_time_timer(now + 2_000)
        out.collect(value)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        timers = context.timer_service
        self.late_s.append((timers.current_processing_time() - timestamp) / 1000)
        timers.register_processing_time_timer(timestamp + 2_000)


def environment(**settings: Any) -> Any:
    env = am.StreamExecutionEnvironment(parallelism=settings.pop("parallelism", 1))
    return env.enable_checkpointing(None, **settings)


async def test_a_timer_before_the_slow_operator_waits_for_one_record() -> None:
    late_s: list[float] = []
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(range(COUNT)).key_by(lambda value: 0)
    results = await stream.process(Ticking(late_s)).map(Slow()).collect()
    assert results == list(range(COUNT))
    assert len(late_s) > 90
    assert max(late_s) <= 1.01


def one_task(env: Any) -> Any:
    """Return a stream whose source and slow function are in one task."""
    return env.from_collection(range(COUNT)).map(lambda value: value).map(Slow())


def two_tasks(env: Any) -> Any:
    """Return a stream whose slow function has a task, fused with another before."""
    return (
        env.from_collection(range(COUNT))
        .rebalance()
        .map(lambda value: value)
        .map(Slow())
    )


def generated(env: Any) -> Any:
    """Return a stream of which one record gives many to the slow function."""

    def many(start: int) -> Any:
        yield from range(start, start + 20)

    return env.from_collection(range(0, COUNT, 20)).flat_map(many).map(Slow())


def batched(env: Any) -> Any:
    """Return a stream whose slow function gets many records at once."""
    return (
        env.from_collection(range(COUNT))
        .batch(100)
        .flat_map(lambda batch: batch)
        .map(Slow())
    )


def between(env: Any) -> Any:
    """Return a stream with awaited functions before and behind the slow one."""
    return env.from_collection(range(COUNT)).map(Slow(0)).map(Slow()).map(Slow(0))


SHAPES = [one_task, two_tasks, generated, batched, between]


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_barrier_waits_for_one_record(shape: Any) -> None:
    env = environment(unaligned=shape is two_tasks)
    done: list[int] = []
    shape(env).sink_to(done.append)
    loop = asyncio.get_running_loop()
    async with env.start() as job:
        took: list[float] = []
        while len(done) < FAST:
            await asyncio.sleep(0.01)
        for _ in range(20):
            await asyncio.sleep(2.3)
            before = loop.time()
            await job.trigger_checkpoint()
            took.append(loop.time() - before)
        await job.result()
    assert done == list(range(COUNT))
    # What one record of the source gives is one record.
    longest = 20 if shape is generated else 100 if shape is batched else 1
    assert max(took) <= longest + 0.01


@pytest.mark.parametrize("moment_s", [0.5, 7.3, 31.5])
@pytest.mark.parametrize("shape", SHAPES)
async def test_what_goes_on_from_a_checkpoint_among_slow_records_loses_nothing(
    shape: Any, moment_s: float, tmp_path: Path
) -> None:
    done: list[int] = []

    def program() -> Any:
        env = environment(
            directory=tmp_path,
            retention=am.Retention.ON_CANCELLATION,
            unaligned=shape is two_tasks,
        )
        counted = shape(env).uid("slow").key_by(lambda value: 0).process(Counting())
        counted.uid("count").sink_to(done.append)
        return env

    async with program().start("slow") as job:
        while len(done) < FAST - 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(moment_s)
        completed = await job.trigger_checkpoint()
        await job.cancel()
    assert FAST - 2 <= len(done) < COUNT
    done.clear()
    await program().execute("slow", restore_from=completed.place)
    assert done[-1] == COUNT
    assert done == list(range(done[0], COUNT + 1))


class Counting(am.KeyedProcessFunction):
    """Emits how many records it has had; raises if they are not in order."""

    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_value(
            am.ValueStateDescriptor("seen", int, default=0)
        )

    def process_element(self, value: int, context: Any, out: Any) -> None:
        seen = self.seen.value()
        assert value == seen, f"{value} instead of {seen}"
        self.seen.update(seen + 1)
        out.collect(seen + 1)


async def test_a_barrier_waits_for_one_record_of_a_sink() -> None:
    env = environment()
    done: list[int] = []
    slow = Slow()

    async def write(value: int) -> None:
        done.append(await slow(value))

    env.from_collection(range(COUNT)).sink_to(write)
    loop = asyncio.get_running_loop()
    async with env.start() as job:
        while len(done) < FAST:
            await asyncio.sleep(0.01)
        for _ in range(20):
            await asyncio.sleep(2.3)
            before = loop.time()
            await job.trigger_checkpoint()
            assert loop.time() - before <= 1.01
        await job.result()
    assert done == list(range(COUNT))


async def test_watermarks_stay_behind_the_records_before_them() -> None:
    env = am.StreamExecutionEnvironment()
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    stream = env.from_collection(
        [(value, value * 100) for value in range(300)]
    ).assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(lambda record: record[1])
    )

    async def slow(record: Any) -> Any:
        if record[0] % 64 == 13:
            await asyncio.sleep(1)
        return record

    windows = (
        stream.map(slow)
        .key_by(lambda record: 0)
        .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
        .aggregate(am.count())
    )
    assert await windows.collect() == [10] * 30


async def test_a_job_that_is_stopped_finishes_what_stands_before_an_operator() -> None:
    done: list[int] = []
    env = am.StreamExecutionEnvironment()

    async def endless() -> Any:
        value = 0
        while True:
            yield value
            value += 1
            if value % 100 == 0:
                await asyncio.sleep(0)

    async def slow(value: int) -> int:
        if value >= FAST:
            await asyncio.sleep(0.1)
        return value

    env.from_async_iterable(endless).map(slow).sink_to(done.append)
    async with env.start() as job:
        while len(done) < FAST:
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.234)
        await job.stop(drain=True)
    assert len(done) > FAST + 10
    assert done == list(range(len(done)))


async def test_a_function_that_is_awaited_no_more_cannot_take_over_the_rest(
    tmp_path: Path,
) -> None:
    env = environment(directory=tmp_path, retention=am.Retention.ON_CANCELLATION)
    env.from_collection(range(COUNT)).uid("numbers").map(Slow()).uid("slow").sink_to(
        lambda value: None
    )
    async with env.start("job") as job:
        await asyncio.sleep(3.5)
        completed = await job.trigger_checkpoint()
        await job.cancel()
    env = environment(directory=tmp_path)
    env.from_collection(range(COUNT)).uid("numbers").map(lambda value: value).uid(
        "slow"
    ).sink_to(lambda value: None)
    with pytest.raises(JobFailedError, match="had an async def function") as caught:
        await env.execute("job", restore_from=completed.place)
    assert isinstance(caught.value.__cause__, StateError)
