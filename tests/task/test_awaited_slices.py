"""What is awaited belongs to the slice: mail and timers wait for one record at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.core.operator import Operator
from aiomailbox.operators.functions.process import (
    CoProcessOperator,
    KeyedCoProcessOperator,
    KeyedProcessOperator,
    ProcessOperator,
)
from aiomailbox.operators.joins.interval import IntervalJoinOperator
from aiomailbox.operators.keyed.operators import (
    KeyedAggregateOperator,
    KeyedReduceOperator,
)
from aiomailbox.operators.stateless.fused import StageKind
from aiomailbox.operators.stateless.operators import (
    AsyncStatelessOperator,
    FlatMapOperator,
    MapOperator,
)
from aiomailbox.records.run import ListRun
from aiomailbox.windowing.build import window_operator

_RECORD_S = 0.010
_PERIOD_MS = 50


class _SlowWithTimer(am.KeyedProcessFunction):
    """Takes 10 ms for each record, and notes how late a timer every 50 ms is."""

    def __init__(self, late_ms: list[int]) -> None:
        self.late_ms = late_ms
        self.started = False

    async def process_element(self, value: int, context: Any, out: Any) -> None:
        timers = context.timer_service
        if not self.started:
            self.started = True
            timers.register_processing_time_timer(
                timers.current_processing_time() + _PERIOD_MS
            )
        await asyncio.sleep(_RECORD_S)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        timers = context.timer_service
        self.late_ms.append(timers.current_processing_time() - timestamp)
        timers.register_processing_time_timer(timestamp + _PERIOD_MS)


async def test_a_timer_beside_slow_awaits_is_one_record_late_at_most() -> None:
    late_ms: list[int] = []
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(range(2_000)).key_by(lambda value: value % 7)
    await stream.process(_SlowWithTimer(late_ms)).collect()
    assert len(late_ms) > 300
    # Growing slices made it 20, 30, 110, 270, ..., 10,190 ms.
    assert max(late_ms) <= 2 * _RECORD_S * 1000 + 2


class _SuddenlySlow(_SlowWithTimer):
    """Does not wait at first, so that slices are long when it begins to."""

    async def process_element(self, value: int, context: Any, out: Any) -> None:
        if value % 1_000 < 900:
            timers = context.timer_service
            if not self.started:
                self.started = True
                timers.register_processing_time_timer(
                    timers.current_processing_time() + _PERIOD_MS
                )
            return
        await super().process_element(value, context, out)


async def test_a_timer_is_one_record_late_at_most_where_records_become_slow() -> None:
    late_ms: list[int] = []
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(range(5_000)).key_by(lambda value: value % 7)
    await stream.process(_SuddenlySlow(late_ms)).collect()
    assert len(late_ms) > 50
    assert max(late_ms) <= 2 * _RECORD_S * 1000 + 2


async def test_mail_of_an_operator_behind_waits_for_one_awaited_record(
    bench: Any,
) -> None:
    loop = asyncio.get_running_loop()
    waited: list[float] = []

    async def function(value: int) -> int:
        if value >= 5_000:
            await asyncio.sleep(_RECORD_S)
        return value

    def send(self: Any) -> None:
        self.context.mailbox.execute(note, self, loop.time())

    def note(self: Any, sent: float) -> None:
        waited.append(loop.time() - sent)
        loop.call_later(0.003, send, self)

    (producer,) = bench.input(permits=200)
    bench.add(lambda: AsyncStatelessOperator(StageKind.MAP, function))
    bench.logged("behind", open=send)
    bench.output(permits=200)
    bench.start()
    for start in range(0, 5_200, 100):
        producer.send(*range(start, start + 100))
    await asyncio.sleep(200 * _RECORD_S)
    assert len(waited) > 100
    assert max(waited) <= _RECORD_S + 0.001


class _Ticking(am.KeyedProcessFunction):
    """Passes records on, and notes how late a timer every 50 ms is."""

    def __init__(self, late_ms: list[int]) -> None:
        self.late_ms = late_ms

    def process_element(self, value: int, context: Any, out: Any) -> None:
        timers = context.timer_service
        if not value:
            timers.register_processing_time_timer(
                timers.current_processing_time() + _PERIOD_MS
            )
        out.collect(value)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        timers = context.timer_service
        self.late_ms.append(timers.current_processing_time() - timestamp)
        timers.register_processing_time_timer(timestamp + _PERIOD_MS)


async def test_a_timer_does_not_wait_for_a_slow_consumer() -> None:
    late_ms: list[int] = []
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(range(100_000)).key_by(lambda value: value % 7)
    pulled = aiter(stream.process(_Ticking(late_ms)))
    await anext(pulled)
    # Nobody pulls meanwhile, and the job has results for more than there is room.
    await asyncio.sleep(5)
    assert len(late_ms) >= 98
    assert max(late_ms) <= 2
    await pulled.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("calls_are_slow_from", [0, 500])
async def test_mail_waits_for_one_call_of_map_async_at_most(
    bench: Any, calls_are_slow_from: int
) -> None:
    """Also when calls become slow all of a sudden, after long slices of fast ones."""
    loop = asyncio.get_running_loop()

    async def call(value: int) -> int:
        if value >= calls_are_slow_from:
            await asyncio.sleep(0.050)
        return value

    (producer,) = bench.input(permits=64)
    bench.add(lambda: AsyncMapOperator(call, concurrency=4))
    consumer = bench.output(permits=64)
    task = bench.start()
    for start in range(0, 1_000, 100):
        producer.send(*range(start, start + 100))
    await bench.settle()
    waited: list[float] = []
    while len(consumer.elements) < 1_000:
        sent = loop.time()
        arrived = loop.create_future()
        task.processor.main_executor.execute(arrived.set_result, None)
        await arrived
        waited.append(loop.time() - sent)
        await asyncio.sleep(0.007)
        consumer.read()
    assert len(waited) > 100
    # It was up to 6.5 s, the time of a whole slice of them.
    assert max(waited) <= 0.051


_FAST = 1_000


class _Slow:
    """Waits for each value from 1,000 on."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def __call__(self, value: Any) -> Any:
        if value >= _FAST:
            await asyncio.sleep(self.seconds)
        return value

    async def reduce(self, reduced: Any, value: Any) -> Any:
        return await self(value)

    async def join(self, left: Any, right: Any) -> Any:
        return await self(left)


class _SlowAggregate(am.AggregateFunction):
    def __init__(self, slow: _Slow) -> None:
        self.slow = slow

    def create_accumulator(self) -> Any:
        return 0

    async def add(self, value: Any, accumulator: Any) -> Any:
        return await self.slow(value)

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, first: Any, second: Any) -> Any:
        return max(first, second)


class _SlowFunction(am.ProcessFunction):
    def __init__(self, slow: _Slow) -> None:
        self.slow = slow

    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(await self.slow(value))


class _SlowKeyed(am.KeyedProcessFunction):
    def __init__(self, slow: _Slow) -> None:
        self.slow = slow

    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(await self.slow(value))


class _SlowCo(am.CoProcessFunction):
    def __init__(self, slow: _Slow) -> None:
        self.slow = slow

    async def process_element1(self, value: Any, context: Any, out: Any) -> None:
        out.collect(await self.slow(value))

    async def process_element2(self, value: Any, context: Any, out: Any) -> None:
        out.collect(await self.slow(value))


class _SlowKeyedCo(am.KeyedCoProcessFunction):
    process_element1 = _SlowCo.process_element1
    process_element2 = _SlowCo.process_element2

    def __init__(self, slow: _Slow) -> None:
        self.slow = slow


class _SlowWindow(am.ProcessWindowFunction):
    def __init__(self, slow: _Slow) -> None:
        self.slow = slow

    async def process(self, key: Any, context: Any, elements: Any, out: Any) -> None:
        for element in elements:
            out.collect(await self.slow(element))


class _SlowOperator(Operator):
    def __init__(self, slow: _Slow) -> None:
        self.slow = slow

    async def process_element(self, value: Any, timestamp: int | None) -> None:
        emitted = self.output.emit_run(ListRun([await self.slow(value)]))
        assert emitted is None


def _same(value: Any) -> Any:
    return value


def _one(value: Any) -> int:
    return 1


def _map_of(slow: _Slow) -> Any:
    return AsyncStatelessOperator(StageKind.MAP, slow)


def _counting_windows(**functions: Any) -> Any:
    trigger = am.PurgingTrigger(am.CountTrigger(1))
    return window_operator(_one, am.GlobalWindows(), trigger=trigger, **functions)


_KEYED = ("keyed process", "reduce", "aggregate", "window function", "window aggregate")
_SHAPES: dict[str, Callable[[_Slow], list[Callable[[], Any]]]] = {
    "at the head": lambda slow: [lambda: _map_of(slow)],
    "after a fused map": lambda slow: [
        lambda: MapOperator(_same),
        lambda: MapOperator(_same),
        lambda: _map_of(slow),
    ],
    "between two others": lambda slow: [
        lambda: AsyncStatelessOperator(StageKind.MAP, _Slow(0)),
        lambda: _map_of(slow),
        lambda: MapOperator(_same),
    ],
    "after a flat_map": lambda slow: [
        lambda: FlatMapOperator(lambda value: [value]),
        lambda: _map_of(slow),
    ],
    "two of them": lambda slow: [lambda: _map_of(slow), lambda: _map_of(slow)],
    "process": lambda slow: [lambda: ProcessOperator(_SlowFunction(slow))],
    "keyed process": lambda slow: [
        lambda: KeyedProcessOperator(_one, _SlowKeyed(slow))
    ],
    "reduce": lambda slow: [lambda: KeyedReduceOperator(_one, slow.reduce)],
    "aggregate": lambda slow: [
        lambda: KeyedAggregateOperator(_one, _SlowAggregate(slow))
    ],
    "window function": lambda slow: [
        lambda: _counting_windows(window_function=_SlowWindow(slow))
    ],
    "window aggregate": lambda slow: [
        lambda: _counting_windows(aggregate=_SlowAggregate(slow))
    ],
    "by default": lambda slow: [lambda: _SlowOperator(slow)],
}


@pytest.mark.parametrize("seconds", [_RECORD_S, 1.0])
@pytest.mark.parametrize("shape", list(_SHAPES))
async def test_mail_waits_for_one_record_where_records_are_suddenly_slow(
    bench: Any, shape: str, seconds: float
) -> None:
    (producer,) = bench.input(permits=64)
    for factory in _SHAPES[shape](_Slow(seconds)):
        bench.add(factory)
        bench.plans[-1].is_keyed = shape in _KEYED
    consumer = bench.output(permits=64)
    task = bench.start()
    for start in range(0, _FAST + 100, 100):
        producer.send(*range(start, start + 100))
    waited = await _time_of_mail(task, consumer, _FAST + 100)
    # One record of each of the two that are slow.
    assert max(waited) <= (2 if shape == "two of them" else 1) * seconds + 0.001
    assert sum(waited) > 60 * seconds
    assert consumer.elements == list(range(_FAST + 100))


@pytest.mark.parametrize("seconds", [_RECORD_S, 1.0])
@pytest.mark.parametrize("shape", ["join", "functions", "keyed functions"])
async def test_mail_waits_for_one_record_of_two_streams(
    bench: Any, shape: str, seconds: float
) -> None:
    slow = _Slow(seconds)
    first, second = bench.input(permits=64)[0], bench.input(permits=64)[0]
    if shape == "join":
        bench.add(lambda: IntervalJoinOperator(_same, _same, 0, 0, slow.join))
    elif shape == "functions":
        bench.add(lambda: CoProcessOperator(_SlowCo(slow)))
    else:
        bench.add(lambda: KeyedCoProcessOperator(_same, _same, _SlowKeyedCo(slow)))
    bench.plans[-1].is_keyed = shape != "functions"
    consumer = bench.output(permits=64)
    task = bench.start()
    for start in range(0, _FAST + 100, 100):
        values = list(range(start, start + 100))
        for producer in (first, second):
            producer.writer.emit_run(ListRun(values, values))
    count = (_FAST + 100) * (1 if shape == "join" else 2)
    waited = await _time_of_mail(task, consumer, count)
    assert max(waited) <= seconds + 0.001
    assert sum(waited) > 60 * seconds
    assert sorted(set(consumer.elements)) == list(range(_FAST + 100))


async def _time_of_mail(task: Any, consumer: Any, count: int) -> list[float]:
    """Return how long mail of the task waited until all records have come."""
    loop = asyncio.get_running_loop()
    waited: list[float] = []
    while len(consumer.elements) < count:
        sent, arrived = loop.time(), loop.create_future()
        task.processor.main_executor.execute(arrived.set_result, None)
        await arrived
        waited.append(loop.time() - sent)
        await asyncio.sleep(0.001)
        consumer.read()
    return waited
