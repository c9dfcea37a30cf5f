"""A job that goes on from a savepoint tells nobody what was known before it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am

Build = Callable[[am.StreamExecutionEnvironment, list[Any]], object]

BY_NUMBER = am.WatermarkStrategy.for_monotonous_timestamps()
BY_NUMBER = BY_NUMBER.with_timestamp_assigner(lambda number: number)


def key(_: int) -> str:
    return "k"


class Clock:
    """Lets each number of a source come a second after the one before."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = numbers
        self._begin = asyncio.get_running_loop().time()

    async def records(self, after: int | None = None) -> AsyncIterator[tuple[int, int]]:
        loop = asyncio.get_running_loop()
        for place, number in enumerate(self._numbers, 1):
            if place > (after or 0):
                await asyncio.sleep(self._begin + place - loop.time())
                yield number, place

    def source(self) -> am.AsyncIterableSource:
        return am.AsyncIterableSource(self.records, offset=lambda one: one[1])


def numbers(
    env: am.StreamExecutionEnvironment,
    clock: Clock,
    strategy: am.WatermarkStrategy | None = None,
) -> am.DataStream[int]:
    strategy = strategy or am.WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(lambda one: one[0])
    stream = env.from_source(clock.source(), strategy, name="numbers").uid("numbers")
    return stream.map(lambda one: one[0]).uid("bare")


async def cut(
    directory: Path, after_s: float, first: Build, second: Build | None = None
) -> list[Any]:
    """Run a job, stop it with a savepoint, and resume it; return what both found."""
    found: list[Any] = []
    env = am.StreamExecutionEnvironment()
    first(env, found)
    env.enable_checkpointing(None)
    async with env.start("first") as job:
        await asyncio.sleep(after_s)
        await job.stop_with_savepoint(directory / "saved")
    found.append("resumed")
    env = am.StreamExecutionEnvironment()
    (second or first)(env, found)
    await env.execute(
        "second", restore_from=directory / "saved", allow_unmatched_state=True
    )
    return found


class SetsBehind(am.KeyedProcessFunction):
    """Sets a timer four milliseconds before each record."""

    def process_element(self, value: int, context: Any, out: Any) -> None:
        context.timer_service.register_event_time_timer(value - 4)
        out.collect(f"e{value}")

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        out.collect(f"t{timestamp}")


@pytest.mark.parametrize("parallelism", [1, 2])
async def test_a_timer_that_was_set_behind_the_watermark_waits_for_the_next_one(
    tmp_path: Path, parallelism: int
) -> None:
    clock = Clock([10, 9, 8, 15])

    def build(env: am.StreamExecutionEnvironment, found: list[Any]) -> None:
        keyed = numbers(env, clock).key_by(key)
        timers = keyed.process(SetsBehind()).uid("timers")
        timers.set_parallelism(parallelism).sink_to(found.append).uid("seen")

    found = await cut(tmp_path, 2.5, build)
    # As one that was never stopped: the next watermark, 14, fires what 9 and 8 have set.
    before = ["e10", "t6", "e9"]
    assert found == [*before, "resumed", "e8", "e15", "t4", "t5", "t11"]


async def test_a_trigger_that_asked_for_a_time_behind_the_watermark_waits(
    tmp_path: Path,
) -> None:
    clock = Clock([20, 1, 21, 40])

    def build(env: am.StreamExecutionEnvironment, found: list[Any]) -> None:
        windows = numbers(env, clock).key_by(lambda number: number % 2)
        counts = (
            windows.window(am.TumblingEventTimeWindows.of(am.millis(100)))
            .trigger(am.ContinuousEventTimeTrigger.of(am.millis(5)))
            .process(Contents())
            .uid("windows")
        )
        counts.sink_to(found.append).uid("seen")

    found = await cut(tmp_path, 2.5, build)
    # Event time is at 19 when the record of 1 asks for 5.
    assert found[:2] == ["resumed", (20, [1, 21])]


class Contents(am.ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Any, out: Any) -> None:
        out.collect((context.current_watermark, list(elements)))


async def test_a_late_record_is_late_again_and_its_window_does_not_come_back(
    tmp_path: Path,
) -> None:
    """The window from 0 to 100 fires before the savepoint; 20 comes after it."""
    clock = Clock([10, 250, 20, 260, 400])
    late = am.OutputTag("late")

    def build(env: am.StreamExecutionEnvironment, found: list[Any]) -> None:
        keyed = numbers(env, clock).key_by(key)
        windows = keyed.window(am.TumblingEventTimeWindows.of(am.millis(100)))
        sums = windows.side_output_late_data(late).reduce(lambda a, b: a + b)
        sums = sums.uid("windows")
        sums.sink_to(found.append).uid("seen")
        sums.get_side_output(late).sink_to(
            lambda number: found.append(("late", number))
        ).uid("late")

    found = await cut(tmp_path, 2.5, build)
    assert found == [10, "resumed", ("late", 20), 510, 400]


class Watermarks(am.ProcessFunction):
    """Tells how far event time is at each record."""

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect((value, context.current_watermark))


def passed(one: am.DataStream[int], _: am.DataStream[int]) -> am.DataStream[int]:
    return one.map(lambda number: number).uid("middle")


def joined(one: am.DataStream[int], two: am.DataStream[int]) -> am.DataStream[int]:
    both = one.connect(two)
    return both.map(lambda number: number, lambda number: number).uid("middle")


def assigned(one: am.DataStream[int], _: am.DataStream[int]) -> am.DataStream[int]:
    return one.assign_timestamps_and_watermarks(BY_NUMBER).uid("middle")


def awaited(one: am.DataStream[int], _: am.DataStream[int]) -> am.DataStream[int]:
    async def same(number: int) -> int:
        return number

    return one.map_async(same).uid("middle")


@pytest.mark.parametrize("middle", [passed, joined, assigned, awaited])
@pytest.mark.parametrize("is_chained", [True, False])
async def test_an_operator_that_is_new_is_told_how_far_event_time_is(
    tmp_path: Path, middle: Any, is_chained: bool
) -> None:
    clock, other = Clock([10, 5, 20]), Clock([10, 7])

    def build(
        env: am.StreamExecutionEnvironment, found: list[Any], is_second: bool
    ) -> None:
        one = numbers(env, clock)
        two = env.from_source(
            other.source(),
            am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
                lambda one: one[0]
            ),
        ).uid("others")
        two = two.map(lambda one: one[0]).uid("bare others")
        if middle is not joined:
            two.sink_to(lambda _: None).uid("others seen")
        stream = middle(one, two)
        if not is_chained:
            stream = stream.rebalance()
        if is_second:
            stream = stream.process(Watermarks()).uid("new")
        stream.sink_to(found.append).uid("seen")

    found = await cut(
        tmp_path,
        1.5,
        lambda env, found: build(env, found, is_second=False),
        lambda env, found: build(env, found, is_second=True),
    )
    first = found.index("resumed") + 1
    assert (5, 9) in found[first:]


def joined_with_itself(one: am.DataStream[int]) -> am.DataStream[int]:
    return joined(one, one.map(lambda number: number).uid("same"))


def assigned_with_idleness(one: am.DataStream[int]) -> am.DataStream[int]:
    strategy = BY_NUMBER.with_idleness(am.seconds(2))
    return one.assign_timestamps_and_watermarks(strategy).uid("middle")


@pytest.mark.parametrize(
    "middle", [lambda one: one, joined_with_itself, assigned_with_idleness]
)
async def test_a_stream_that_is_idle_holds_nobody_back_after_rescaling(
    tmp_path: Path, middle: Any
) -> None:
    quiet, busy = Clock([3]), Clock(list(range(10, 40)))
    idle = am.WatermarkStrategy.for_monotonous_timestamps().with_idleness(am.seconds(2))

    async def then_nothing(after: int | None) -> AsyncIterator[tuple[int, int]]:
        async for one in quiet.records(after):
            yield one
        await asyncio.sleep(1000)

    def build(
        env: am.StreamExecutionEnvironment, found: list[Any], parallelism: int
    ) -> None:
        silent = am.AsyncIterableSource(then_nothing, offset=lambda one: one[1])
        strategy = idle.with_timestamp_assigner(lambda one: one[0])
        stream = env.from_source(silent, strategy).uid("quiet")
        one = middle(stream.map(lambda one: one[0]).uid("bare quiet"))
        both = numbers(env, busy).union(one)
        seen = both.process(Watermarks()).set_parallelism(parallelism).uid("both")
        seen.sink_to(found.append).uid("seen").set_parallelism(1)

    found = await cut(
        tmp_path,
        10.5,
        lambda env, found: build(env, found, 1),
        lambda env, found: build(env, found, 2),
    )
    resumed = found.index("resumed")
    assert (19, 17) in found[:resumed]
    assert (39, 37) in found[resumed:]
