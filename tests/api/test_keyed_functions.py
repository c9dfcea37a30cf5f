"""Functions with state on keyed streams, through the whole engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import Any

import pytest

import aiomailbox as am

SEEN = am.ValueStateDescriptor("seen", int, default=0)


class Numbered(am.KeyedAsyncProcessFunction):
    """Numbers the records of a key and tells at the end how many there were."""

    def __init__(self) -> None:
        self.running: set[str] = set()

    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_value(SEEN)

    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        key, number = value
        assert key not in self.running
        self.running.add(key)
        seen = self.seen.value()
        await asyncio.sleep(0.001 * (number % 7))
        self.seen.update(seen + 1)
        self.running.discard(key)
        context.timer_service.register_event_time_timer(10_000)
        out.collect((key, "row", number, seen))

    async def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        await asyncio.sleep(0.001)
        out.collect((context.current_key, "timer", timestamp, self.seen.value()))


@pytest.mark.parametrize("parallelism", [1, 3])
async def test_process_async_keeps_the_order_of_each_key_in_every_subtask(
    parallelism: int,
) -> None:
    env = am.StreamExecutionEnvironment(parallelism=parallelism)
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    rows = [(f"key{number % 10}", number) for number in range(200)]
    results = await (
        env.from_collection(rows)
        .assign_timestamps_and_watermarks(
            strategy.with_timestamp_assigner(lambda row, _: row[1])
        )
        .key_by(lambda row: row[0])
        .process_async(Numbered(), concurrency=8)
        .collect()
    )
    by_key = defaultdict(list)
    for key, *rest in results:
        by_key[key].append(rest)
    assert by_key == {
        f"key{digit}": [
            *(["row", 10 * nth + digit, nth] for nth in range(20)),
            ["timer", 10_000, 20],
        ]
        for digit in range(10)
    }


async def test_a_row_that_fails_is_told_with_its_line() -> None:
    async def fails(value: Any, context: Any, out: Any) -> None:
        raise ValueError("no such thing")

    keyed = am.StreamExecutionEnvironment().from_collection(["a"]).key_by(str)
    with pytest.raises(am.JobFailedError, match=r"process_async.*no such thing"):
        await keyed.process_async(fails).collect()


async def test_a_rate_limit_and_dead_letters_work_as_with_map_async() -> None:
    failed = am.OutputTag("failed")

    async def odd(value: int, context: Any, out: Any) -> None:
        if value % 2 == 0:
            raise ValueError(value)
        out.collect(value)

    keyed = am.StreamExecutionEnvironment().from_collection(range(6)).key_by(int)
    stream = keyed.process_async(
        odd, limit=am.RateLimit(100, per=1.0), on_error=am.dead_letter(failed)
    )
    letters = stream.get_side_output(failed).map(lambda letter: -letter.record)
    assert sorted(await stream.union(letters).collect()) == [-4, -2, 0, 1, 3, 5]


def test_explain_says_that_many_run_at_once_and_the_bound() -> None:
    async def nothing(value: Any, context: Any, out: Any) -> None: ...

    env = am.StreamExecutionEnvironment()
    keyed = env.from_collection(["a"]).key_by(str)
    keyed.process_async(nothing, capacity=77, concurrency=5).sink_to(print)
    plan = env.explain()
    assert "77 records" in plan
    assert "one record at a time" not in plan


async def test_a_window_function_has_what_its_open_returned() -> None:
    events = []

    class Sizes(am.ProcessWindowFunction):
        @contextlib.asynccontextmanager
        async def open(self, context: Any) -> Any:
            events.append("entered")
            yield "client"
            events.append("left")

        async def process(
            self, key: Any, context: Any, elements: Any, out: Any
        ) -> None:
            await asyncio.sleep(0.001)
            out.collect((key, len(elements), context.resource))

    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    stream = (
        am.StreamExecutionEnvironment()
        .from_collection([1, 2, 3])
        .assign_timestamps_and_watermarks(
            strategy.with_timestamp_assigner(lambda value, _: value)
        )
        .key_by(lambda value: value % 2)
        .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
        .process(Sizes())
    )
    found = sorted(await stream.collect())
    assert found == [(0, 1, "client"), (1, 2, "client")]
    assert events == ["entered", "left"]
