"""What a task shows of its time and of the buffers around it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomailbox.availability import Availability
from aiomailbox.exchange.core.contract import ChannelCredit, ChannelStatistics
from aiomailbox.exchange.gate import InputChannel, InputGate
from aiomailbox.mailbox.metrics import PeriodMeter
from aiomailbox.memory.local_pool import LocalBufferPool, NetworkBufferPool
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun
from aiomailbox.task.environment import TaskPlan
from aiomailbox.task.task_metrics import MeasuredAvailability, buffer_metrics
from aiomailbox.testing import ManualClock

SHARES = ["busy", "idle", "soft_backpressured", "hard_backpressured"]


def shares(task: Any) -> list[float]:
    metrics = task.metrics()
    return [metrics[f"{name}_time_ms_per_second"] for name in SHARES]


async def test_a_task_that_waits_for_input_is_idle(bench: Any) -> None:
    bench.input()
    bench.logged("a")
    bench.output()
    task = bench.start()
    await asyncio.sleep(7)
    assert shares(task) == pytest.approx([0, 1000, 0, 0])


async def test_an_await_inside_of_a_record_is_busy(bench: Any) -> None:
    (producer,) = bench.input()

    async def nap(self: Any, run: Any) -> None:
        await asyncio.sleep(2)

    bench.logged("a", run=nap)
    bench.output()
    task = bench.start()
    await asyncio.sleep(1)
    producer.send(1)
    await asyncio.sleep(3)
    assert shares(task) == pytest.approx([500, 500, 0, 0])


async def test_waiting_for_room_between_buffers_is_soft_backpressure(
    bench: Any,
) -> None:
    (producer,) = bench.input()
    bench.logged("a")
    bench.output(permits=2)
    task = bench.start()
    await asyncio.sleep(1)
    for _ in range(5):
        producer.send(*range(RUN_LENGTH_MAX))
    await asyncio.sleep(3)
    assert shares(task) == pytest.approx([0, 250, 750, 0], abs=5)
    assert task.metrics()["backpressured_time_ms_per_second"] == pytest.approx(
        750, abs=5
    )


async def test_waiting_for_room_inside_of_a_record_is_hard_backpressure(
    bench: Any,
) -> None:
    (producer,) = bench.input()

    async def burst(self: Any, run: Any) -> None:
        for _ in range(4):
            await self.output.availability.wait()
            self.output.emit_run(ListRun(list(range(RUN_LENGTH_MAX))))

    bench.logged("a", run=burst)
    consumer = bench.output(permits=2)
    task = bench.start()
    producer.send(1)
    await asyncio.sleep(2)
    assert shares(task) == pytest.approx([0, 0, 0, 1000], abs=5)
    assert task.metrics()["backpressured_ms"] == pytest.approx(2000, abs=5)
    while consumer.read():
        await bench.settle(20)
    await asyncio.sleep(2)
    assert shares(task) == pytest.approx([0, 500, 0, 500], abs=5)


async def test_a_task_that_has_ended_spends_no_time(bench: Any) -> None:
    bench.input()
    bench.logged("a")
    bench.output()
    task = bench.start()
    await asyncio.sleep(1)
    task.cancel()
    await bench.settle(20)
    idle_ms = task.metrics()["idle_ms"]
    await asyncio.sleep(5)
    assert shares(task) == [0, 0, 0, 0]
    assert task.metrics()["idle_ms"] == idle_ms == pytest.approx(1000, abs=5)


async def test_queues_are_counted_in_buffers_records_and_bytes(bench: Any) -> None:
    (producer,) = bench.input()
    bench.logged("a")
    bench.output(permits=2)
    task = bench.start()
    for _ in range(6):
        producer.send(*range(RUN_LENGTH_MAX))
    await bench.settle(100)
    metrics = task.metrics()
    read = metrics["output_queue_records"]
    assert 0 < read <= 3 * RUN_LENGTH_MAX
    assert metrics["output_queue_length"] >= 2
    assert metrics["output_queue_size_bytes"] > metrics["output_queue_records"]
    assert metrics["input_queue_records"] > 0
    assert (
        metrics["input_queue_length"] == metrics["input_queue_records"] / RUN_LENGTH_MAX
    )
    assert metrics["input_queue_size_bytes"] > metrics["input_queue_records"]
    assert metrics["in_pool_usage"] is None
    assert metrics["out_pool_usage"] is None


def test_usage_counts_what_is_lent_beyond_the_pool() -> None:
    memory = NetworkBufferPool(8)
    pools = [memory.create_local_pool(2, 2, subpartitions=1) for _ in range(2)]
    plan = TaskPlan([], pools=pools)
    assert buffer_metrics(plan)["out_pool_usage"] == 0
    segments = [pools[0].request_elastic(0) for _ in range(3)]
    metrics = buffer_metrics(plan)
    assert metrics["out_pool_usage"] == 0.75
    assert metrics["overdraft_buffers"] == 1
    for segment in segments:
        pools[0].recycle(segment, 0)
    assert buffer_metrics(plan)["out_pool_usage"] == 0
    for pool in pools:
        pool.lazy_destroy()
    memory.destroy()


class FarChannel(InputChannel):
    """A channel that another process feeds, as its numbers show it."""

    def __init__(self, credit: ChannelCredit, pool: LocalBufferPool) -> None:
        super().__init__()
        self._credit = credit
        self._pool = pool

    def statistics(self) -> ChannelStatistics:
        return ChannelStatistics(queued_buffers=1, queued_records=7, queued_bytes=90)

    def credit(self) -> ChannelCredit:
        return self._credit

    def floating_pool(self) -> LocalBufferPool:
        return self._pool


class FarGate(InputGate):
    """A gate that has asked its producers for smaller buffers."""

    debloated_buffer_size_bytes = 4096


def test_a_gate_between_processes_shows_credit_and_the_usage_of_its_buffers() -> None:
    memory = NetworkBufferPool(8)
    pool = memory.create_local_pool(8, 8)
    for _ in range(6):
        pool.try_request()
    both = [ChannelCredit(2, 1, 2, 2, 0), ChannelCredit(0, 0, 2, 0, 5)]
    far = [FarChannel(credit, pool) for credit in both]
    near = InputGate([InputChannel()])
    mixed = InputGate([*far, InputChannel()])
    metrics = buffer_metrics(TaskPlan([], gates=[near, mixed]))
    assert metrics["exclusive_buffers_usage"] == 0.5
    assert metrics["floating_buffers_usage"] == 0.75
    assert metrics["in_pool_usage"] == 8 / 12
    assert metrics["input_queue_records"] == 14
    assert "debloated_buffer_size_bytes" not in metrics
    asked = buffer_metrics(TaskPlan([], gates=[FarGate(far)]))
    assert asked["debloated_buffer_size_bytes"] == 4096


async def test_waiting_for_room_is_measured_only_while_it_lasts() -> None:
    clock = ManualClock()
    source, meter = Availability(available=True), PeriodMeter(clock)
    measured = MeasuredAvailability(source, meter)
    await measured.wait()
    assert measured.available
    source.reset()
    assert not measured.available
    waiting = asyncio.ensure_future(measured.wait())
    await asyncio.sleep(0)
    clock.advance(3)
    source.set_available()
    await waiting
    clock.advance(4)
    assert meter.total_ms() == pytest.approx(3000)
    source.reset()
    waiting = asyncio.ensure_future(measured.wait())
    await asyncio.sleep(0)
    clock.advance(1)
    waiting.cancel()
    await asyncio.wait([waiting])
    clock.advance(4)
    assert meter.total_ms() == pytest.approx(4000)


async def test_callbacks_go_to_what_is_measured() -> None:
    source = Availability()
    measured = MeasuredAvailability(source, PeriodMeter(ManualClock()))
    called: list[str] = []

    def forget() -> None:
        called.append("forgotten")

    measured.on_available(lambda: called.append("kept"))
    measured.on_available(forget)
    measured.discard(forget)
    waiter = measured.waiter()
    source.set_available()
    await waiter
    assert called == ["kept"]
