"""What is awaited belongs to the slice: mail and timers wait for one record at most."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.operators import AsyncMapOperator, AsyncStatelessOperator, StageKind

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


async def test_records_that_are_suddenly_slow_hold_mail_back_for_64_at_most(
    bench: Any,
) -> None:
    loop = asyncio.get_running_loop()

    async def function(value: int) -> int:
        if value >= 5_000:
            await asyncio.sleep(_RECORD_S)
        return value

    (producer,) = bench.input(permits=200)
    bench.add(lambda: AsyncStatelessOperator(StageKind.MAP, function))
    consumer = bench.output(permits=200)
    task = bench.start()
    for start in range(0, 5_200, 100):
        producer.send(*range(start, start + 100))
    waited: list[float] = []
    while len(consumer.elements) < 5_200:
        sent = loop.time()
        arrived = loop.create_future()
        task.processor.main_executor.execute(arrived.set_result, None)
        await arrived
        waited.append(loop.time() - sent)
        await asyncio.sleep(0.001)
        consumer.read()
    slow = [seconds for seconds in waited if seconds > 0]
    assert max(slow) <= 64 * _RECORD_S + 0.001
    assert sum(seconds > 2 * _RECORD_S for seconds in slow) <= 1
