"""Those who wait for a local pool: listeners and tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiomailbox.errors import PoolDestroyedError
from aiomailbox.memory.buffer import MemorySegment
from aiomailbox.memory.local_pool import LocalBufferPool, NetworkBufferPool

Drain = Callable[[LocalBufferPool], list[MemorySegment]]
Take = Callable[[LocalBufferPool, int], Awaitable[list[MemorySegment]]]
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


async def test_destroying_the_pool_wakes_who_waits_for_it(drain: Drain) -> None:
    """NET-66."""
    pool = NetworkBufferPool(1).create_local_pool(1, owner="sink")
    drain(pool)
    sleeper = asyncio.ensure_future(pool.availability.wait())
    await asyncio.sleep(0)
    pool.lazy_destroy()
    await sleeper
    with pytest.raises(PoolDestroyedError, match="sink"):
        pool.try_request()


async def test_two_pools_that_wait_for_a_hog_both_finish(
    drain: Drain, take: Take
) -> None:
    """NET-35."""
    network = NetworkBufferPool(20)
    hog = network.create_local_pool(1)
    held = drain(hog)
    pools = [network.create_local_pool(5, 10) for _ in range(2)]

    tasks = [asyncio.ensure_future(take(pool, 9)) for pool in pools]
    while held:
        hog.recycle(held.pop())
        await asyncio.sleep(0)
    hog.lazy_destroy()
    taken = await asyncio.gather(*tasks)
    assert [len(segments) for segments in taken] == [9, 9]
