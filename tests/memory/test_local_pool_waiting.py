"""Those who wait for a local pool: listeners, tasks, reservations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aiomailbox.errors import (
    BufferTimeoutError,
    InvalidArgumentError,
    PoolDestroyedError,
)
from aiomailbox.memory.buffer import MemorySegment
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.memory.network_pool import NetworkBufferPool

Drain = Callable[[LocalBufferPool], list[MemorySegment]]
MakeListener = Callable[[LocalBufferPool, str, list[str]], Any]


def test_listeners_are_called_once_each_in_the_order_they_came(
    listener: MakeListener, drain: Drain
) -> None:
    """NET-56."""
    pool = NetworkBufferPool(1).create_local_pool(1)
    (segment,) = drain(pool)
    log: list[str] = []
    assert pool.add_listener(listener(pool, "first", log))
    assert pool.add_listener(listener(pool, "second", log))
    pool.recycle(segment)
    assert log == ["first", "second"]
    assert not pool.add_listener(listener(pool, "late", log))
    assert pool.available


def test_a_declined_segment_goes_to_the_next_and_then_becomes_idle(
    listener: MakeListener, drain: Drain
) -> None:
    pool = NetworkBufferPool(1).create_local_pool(1)
    (segment,) = drain(pool)
    log: list[str] = []
    for name in ("first", "second"):
        declining = listener(pool, name, log)
        declining.accepts = False
        pool.add_listener(declining)
    pool.recycle(segment)
    assert log == ["first", "second"]
    assert pool.try_request() is segment


def test_a_listener_learns_once_that_the_pool_was_destroyed(
    listener: MakeListener, drain: Drain
) -> None:
    """NET-57."""
    network = NetworkBufferPool(1)
    pool = network.create_local_pool(1)
    (segment,) = drain(pool)
    log: list[str] = []
    pool.add_listener(listener(pool, "waiting", log))
    pool.lazy_destroy()
    pool.recycle(segment)
    assert log == ["waiting destroyed"]
    assert network.available_segments == 1
    assert not pool.add_listener(listener(pool, "late", log))


def test_listeners_are_served_by_segments_of_the_global_pool_too(
    listener: MakeListener, drain: Drain
) -> None:
    """NET-67."""
    network = NetworkBufferPool(2)
    hog = network.create_local_pool(1)
    held = drain(hog)
    pool = network.create_local_pool(1)
    log: list[str] = []
    waiting = listener(pool, "waiting", log)
    waiting.keeps = True
    assert pool.add_listener(waiting)
    hog.recycle(held.pop())
    assert log == ["waiting"]
    assert len(waiting.kept) == 1


def test_listeners_are_served_when_the_pool_grows(
    listener: MakeListener, drain: Drain
) -> None:
    network = NetworkBufferPool(4)
    other = network.create_local_pool(2)
    pool = network.create_local_pool(1)
    held = drain(pool)
    log: list[str] = []
    pool.add_listener(listener(pool, "waiting", log))
    other.lazy_destroy()
    assert log == ["waiting"]
    assert len(held) < pool.size


async def test_tasks_are_granted_segments_in_the_order_of_asking(drain: Drain) -> None:
    pool = NetworkBufferPool(2).create_local_pool(1, subpartitions=1)
    held = drain(pool)
    requests = [asyncio.ensure_future(pool.request(0)) for _ in range(2)]
    await asyncio.sleep(0)
    pool.recycle(held.pop())
    await asyncio.sleep(0)
    assert [request.done() for request in requests] == [True, False]
    pool.recycle(held.pop())
    await requests[1]
    assert pool.statistics().used_by_channel == (2,)


async def test_a_request_that_need_not_wait_does_not_suspend() -> None:
    pool = NetworkBufferPool(2).create_local_pool(1)
    request = pool.request()
    with pytest.raises(StopIteration):
        request.send(None)


async def test_a_cancelled_request_leaves_the_segment_to_the_next(
    drain: Drain,
) -> None:
    pool = NetworkBufferPool(1).create_local_pool(1)
    (segment,) = drain(pool)
    first = asyncio.ensure_future(pool.request())
    second = asyncio.ensure_future(pool.request())
    await asyncio.sleep(0)
    first.cancel()
    pool.recycle(segment)
    assert await second is segment
    assert first.cancelled()
    assert pool.statistics().waiting == 0


async def test_a_cancelled_request_leaves_the_queue_at_once(drain: Drain) -> None:
    pool = NetworkBufferPool(1).create_local_pool(1)
    drain(pool)
    request = asyncio.ensure_future(pool.request())
    await asyncio.sleep(0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert pool.statistics().waiting == 0


async def test_a_request_cancelled_after_its_grant_gives_the_segment_back(
    drain: Drain,
) -> None:
    pool = NetworkBufferPool(1).create_local_pool(1, subpartitions=1)
    (segment,) = drain(pool)
    request = asyncio.ensure_future(pool.request(0))
    await asyncio.sleep(0)
    pool.recycle(segment)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert pool.available
    assert pool.statistics().used_by_channel == (0,)


async def test_destroying_the_pool_fails_waiting_requests_promptly(
    drain: Drain,
) -> None:
    """NET-66."""
    pool = NetworkBufferPool(1).create_local_pool(1, owner="sink")
    drain(pool)
    request = asyncio.ensure_future(pool.request())
    sleeper = asyncio.ensure_future(pool.availability.wait())
    await asyncio.sleep(0)
    pool.lazy_destroy()
    with pytest.raises(PoolDestroyedError, match="sink"):
        await request
    await sleeper


async def test_reserved_segments_are_counted() -> None:
    """NET-68."""
    network = NetworkBufferPool(10)
    pool = network.create_local_pool(3)
    await pool.reserve(3)
    assert (pool.statistics().requested, pool.statistics().idle) == (3, 3)
    assert network.available_segments == 7
    with pytest.raises(InvalidArgumentError, match="requires"):
        await pool.reserve(4)


async def test_a_reservation_waits_for_the_global_pool(drain: Drain) -> None:
    network = NetworkBufferPool(4)
    hog = network.create_local_pool(1)
    held = drain(hog)
    pool = network.create_local_pool(2)
    reservation = asyncio.ensure_future(pool.reserve(2))
    await asyncio.sleep(0)
    for segment in held:
        assert not reservation.done()
        hog.recycle(segment)
        await asyncio.sleep(0)
        if pool.statistics().requested == 2:
            break
    await reservation
    assert pool.statistics().idle == 2


async def test_a_reservation_fails_when_time_is_over_or_the_pool_is_destroyed(
    drain: Drain,
) -> None:
    network = NetworkBufferPool(2, request_timeout_s=0.05)
    drain(network.create_local_pool(1))
    pool = network.create_local_pool(1)
    with pytest.raises(BufferTimeoutError, match="timeout"):
        await pool.reserve(1)
    reservation = asyncio.ensure_future(pool.reserve(1))
    await asyncio.sleep(0)
    pool.lazy_destroy()
    with pytest.raises(PoolDestroyedError):
        await reservation
    with pytest.raises(PoolDestroyedError):
        await pool.reserve(1)


async def test_two_pools_that_wait_for_a_hog_both_finish(drain: Drain) -> None:
    """NET-35."""
    network = NetworkBufferPool(20)
    hog = network.create_local_pool(1)
    held = drain(hog)
    pools = [network.create_local_pool(5, 10) for _ in range(2)]

    async def take(pool: LocalBufferPool, count: int) -> list[MemorySegment]:
        return [await pool.request() for _ in range(count)]

    tasks = [asyncio.ensure_future(take(pool, 9)) for pool in pools]
    while held:
        hog.recycle(held.pop())
        await asyncio.sleep(0)
    hog.lazy_destroy()
    taken = await asyncio.gather(*tasks)
    assert [len(segments) for segments in taken] == [9, 9]
