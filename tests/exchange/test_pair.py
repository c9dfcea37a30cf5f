"""Two asyncio tasks and a channel between them: bounds, wake-ups, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from aiomailbox.exchange.writer import ForwardPartitioner, RecordWriter
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun

Wire = Callable[..., Any]


async def produce(wiring: Any, runs: int, length: int) -> None:
    writer = RecordWriter(
        wiring.partition, ForwardPartitioner(), flush_interval_ms=None
    )
    for number in range(runs):
        await wiring.partition.writable()
        writer.emit_run(ListRun(list(range(number * length, (number + 1) * length))))
        assert wiring.permits_out <= wiring.pool.size
    writer.finish()


async def consume(wiring: Any, records: list[int], pause: float) -> None:
    async for _, buffer in wiring.gate:
        with buffer:
            if pause:
                await asyncio.sleep(pause)
            for run in buffer.elements:
                records += run.values


@pytest.mark.parametrize("permits", [1, 2, 8])
@pytest.mark.parametrize("length", [1, 700, RUN_LENGTH_MAX])
@pytest.mark.parametrize("pause", [0, 1])
async def test_everything_arrives_in_order_within_the_bound(
    wire: Wire, permits: int, length: int, pause: float
) -> None:
    wiring = wire(permits=permits).connect()
    records: list[int] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(produce(wiring, 20, length))
        group.create_task(consume(wiring, records, pause))
    assert records == list(range(20 * length))
    assert wiring.memory.available_segments == permits
    assert len(wiring.registry) == 0


async def run_with_cancel(wiring: Any, victim: str, after_turns: int) -> None:
    """Cancel one side after some turns of the loop; then let go as a job would."""
    producer = asyncio.create_task(produce(wiring, 30, 300))
    consumer = asyncio.create_task(consume(wiring, [], 0.001))
    for _ in range(after_turns):
        await asyncio.sleep(0)
    (producer if victim == "producer" else consumer).cancel()
    await asyncio.sleep(10)
    for task in (producer, consumer):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("victim", ["producer", "consumer"])
@pytest.mark.parametrize("first", ["gate", "partition"])
async def test_no_permit_is_lost_wherever_a_side_is_cancelled(
    wire: Wire, victim: str, first: str
) -> None:
    """NET-75."""
    for after_turns in range(25):
        wiring = wire(permits=3).connect()
        await run_with_cancel(wiring, victim, after_turns)
        if first == "gate":
            wiring.gate.close()
            wiring.partition.release()
        else:
            wiring.partition.release()
            wiring.gate.close()
        assert wiring.permits_out == 0
        assert wiring.memory.available_segments == 3
        wiring.memory.check_leaks()


async def test_a_consumer_that_leaves_lets_the_producer_go_on(wire: Wire) -> None:
    wiring = wire(permits=2).connect()
    producer = asyncio.create_task(produce(wiring, 50, RUN_LENGTH_MAX))
    await asyncio.sleep(1)
    assert not producer.done()
    wiring.gate.close()
    await producer
    assert wiring.permits_out == 0


async def test_a_producer_waits_while_the_consumer_holds_buffers(wire: Wire) -> None:
    wiring = wire(permits=2).connect()
    producer = asyncio.create_task(produce(wiring, 3, RUN_LENGTH_MAX))
    await asyncio.sleep(1)
    held = [wiring.gate.poll_next()[1], wiring.gate.poll_next()[1]]
    await asyncio.sleep(1)
    assert (producer.done(), wiring.gate.poll_next()) == (False, None)
    for buffer in held:
        buffer.recycle()
    await producer


async def test_one_channel_at_its_quota_holds_the_producer_back(wire: Wire) -> None:
    wiring = wire(permits=8, subpartitions=2, per_channel_max=2).connect()
    run = ListRun(list(range(RUN_LENGTH_MAX)))
    wiring.partition.emit_run(run, 0)
    assert wiring.partition.availability.available
    wiring.partition.emit_run(run, 0)
    assert not wiring.partition.availability.available
    wiring.gates[0].poll_next()[1].recycle()
    assert wiring.partition.availability.available
