"""W5: one record at a time from one asyncio task to another; how long it takes.

The sender hands over one record, lets the loop run until it has arrived, and only then
hands over the next one. The record is the time at which it was handed over.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Awaitable, Callable

from aiomailbox.exchange.gate import (
    InputGate,
    LocalInputChannel,
    PartitionRegistry,
)
from aiomailbox.exchange.partition import ResultPartition
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.local_pool import NetworkBufferPool
from aiomailbox.records.run import ListRun

Send = Callable[[int], None]
Receive = Callable[[list[int]], Awaitable[None]]
_now = time.perf_counter_ns


async def _hops(count: int, send: Send, receive: Receive) -> list[int]:
    taken: list[int] = []
    receiver = asyncio.get_running_loop().create_task(receive(taken))
    await asyncio.sleep(0)
    for sent in range(1, count + 1):
        send(_now())
        while len(taken) < sent:
            await asyncio.sleep(0)
    receiver.cancel()
    await asyncio.wait([receiver])
    return taken


async def bare(count: int) -> list[int]:
    """Hop over a deque and a future."""
    items: deque[int] = deque()
    waiter: asyncio.Future[None] | None = None

    def send(item: int) -> None:
        items.append(item)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def receive(taken: list[int]) -> None:
        nonlocal waiter
        loop = asyncio.get_running_loop()
        while True:
            while items:
                taken.append(_now() - items.popleft())
            waiter = loop.create_future()
            await waiter

    return await _hops(count, send, receive)


async def queue(count: int) -> list[int]:
    """Hop over an asyncio.Queue."""
    items: asyncio.Queue[int] = asyncio.Queue()

    async def receive(taken: list[int]) -> None:
        while True:
            sent = await items.get()
            taken.append(_now() - sent)

    return await _hops(count, items.put_nowait, receive)


async def channel(count: int) -> list[int]:
    """Hop over a partition and a gate, each record in a buffer of its own."""
    pool = NetworkBufferPool(4).create_local_pool(4, owner="sender")
    partition_id = PartitionId(TaskId(VertexId(0), 0, 0), 0)
    partition = ResultPartition(partition_id, pool, 1)
    registry = PartitionRegistry()
    registry.register(partition)
    gate = InputGate([LocalInputChannel(registry, partition_id, 0)])
    gate.request_partitions()

    def send(item: int) -> None:
        partition.emit_run(ListRun([item]), 0)
        partition.flush(0)

    async def receive(taken: list[int]) -> None:
        async for _, buffer in gate:
            with buffer:
                for run in buffer.elements:
                    taken += [_now() - sent for sent in run.values]

    return await _hops(count, send, receive)


def latencies(hop: Callable[[int], Awaitable[list[int]]], count: int) -> list[int]:
    """Return the nanoseconds that each hop took, without the first ones."""
    gc.collect()

    async def work() -> list[int]:
        return await hop(count + count // 10)

    return asyncio.run(work())[count // 10 :]
