"""The global pool: promises, unpooled requests, sizes of the shares."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aiomailbox.errors import (
    BufferRecycledError,
    IllegalStateError,
    InsufficientBuffersError,
    InvalidArgumentError,
    PoolDestroyedError,
)
from aiomailbox.memory.buffer import MemorySegment
from aiomailbox.memory.local_pool import LocalBufferPool, NetworkBufferPool

Drain = Callable[[LocalBufferPool], list[MemorySegment]]


def _sizes(network: NetworkBufferPool) -> list[int]:
    return [pool.size for pool in network.local_pools]


def test_a_fresh_pool_has_everything_and_a_destroyed_one_nothing() -> None:
    """NET-21, NET-22, NET-23."""
    network = NetworkBufferPool(10, 128)
    assert (network.total_segments, network.available_segments) == (10, 10)
    assert network.try_request_unpooled(1) is not None
    assert network.available_segments == 9
    network.destroy()
    assert (network.total_segments, network.available_segments) == (0, 0)


def test_a_destroyed_pool_makes_no_shares() -> None:
    """NET-20."""
    network = NetworkBufferPool(10)
    network.destroy()
    network.destroy()
    with pytest.raises(PoolDestroyedError):
        network.create_local_pool(1)
    with pytest.raises(PoolDestroyedError):
        network.try_request_unpooled(1)


def test_draining_all_shares_gives_exactly_the_total(drain: Drain) -> None:
    """NET-24."""
    network = NetworkBufferPool(10)
    pools = [network.create_local_pool(2, 2), network.create_local_pool(1, 1)]
    pools.append(network.create_local_pool(5))
    taken = [drain(pool) for pool in pools]
    assert sum(map(len, taken)) == 10
    network.destroy_all_local_pools()
    for pool, segments in zip(pools, taken, strict=True):
        with pytest.raises(PoolDestroyedError):
            pool.try_request()
        for segment in segments:
            pool.recycle(segment)
    assert network.available_segments == 10
    assert network.create_local_pool(10).size == 10


def test_more_than_is_unpromised_is_refused_and_nothing_is_lost() -> None:
    """NET-26, NET-27, NET-36, NET-37."""
    network = NetworkBufferPool(10)
    with pytest.raises(InsufficientBuffersError, match="required 11, but only 10"):
        network.try_request_unpooled(11)
    first = network.create_local_pool(6)
    with pytest.raises(InsufficientBuffersError, match="required 6, but only 4"):
        network.create_local_pool(6)
    assert first.size == 10
    with pytest.raises(InvalidArgumentError, match="count"):
        network.try_request_unpooled(-1)
    assert network.try_request_unpooled(0) == []


def test_sizes_follow_pools_and_unpooled_segments_as_they_come_and_go() -> None:
    """NET-45."""
    network = NetworkBufferPool(10)
    first = network.create_local_pool(1)
    taken = [network.try_request_unpooled(2)]
    sizes = [_sizes(network)]
    network.create_local_pool(1)
    sizes.append(_sizes(network))
    for _ in range(2):
        taken.append(network.try_request_unpooled(2))
        sizes.append(_sizes(network))
    for segments in taken:
        assert segments is not None
        network.recycle_unpooled(segments)
        sizes.append(_sizes(network))
    first.lazy_destroy()
    sizes.append(_sizes(network))
    expected = [[8], [4, 4], [3, 3], [2, 2], [3, 3], [4, 4], [5, 5], [10]]
    assert sizes == expected


def test_shares_that_took_too_much_fall_back_and_their_excess_moves_on(
    drain: Drain,
) -> None:
    """NET-38."""
    network = NetworkBufferPool(10)
    greedy = network.create_local_pool(5)
    held = drain(greedy)
    needy = network.create_local_pool(5)
    assert (greedy.size, needy.size, needy.available) == (5, 5, False)
    assert greedy.try_request() is None
    greedy.recycle(held.pop())
    assert needy.available


def test_availability_follows_the_last_free_segment() -> None:
    """NET-33."""
    network = NetworkBufferPool(2)
    woken: list[str] = []
    first = network.try_request_unpooled(1)
    assert network.availability.available
    second = network.try_request_unpooled(1)
    assert not network.availability.available
    network.availability.on_available(lambda: woken.append("woken"))
    assert first is not None
    assert second is not None
    network.recycle_unpooled(first)
    assert woken == ["woken"]


def test_an_unpooled_segment_cannot_be_returned_twice() -> None:
    network = NetworkBufferPool(2)
    segments = network.try_request_unpooled(1)
    assert segments is not None
    network.recycle_unpooled(segments)
    with pytest.raises(BufferRecycledError):
        network.recycle_unpooled(segments)
    assert network.available_segments == 2


def test_a_leak_names_the_owner_until_the_segment_is_back() -> None:
    network = NetworkBufferPool(4)
    pool = network.create_local_pool(1, owner="map (2/4)", subpartitions=2)
    segment = pool.try_request(1)
    assert segment is not None
    assert network.leaks() == []
    pool.lazy_destroy()
    assert network.leaks() == [("map (2/4)", 1, (0, 1))]
    with pytest.raises(IllegalStateError, match=r"map \(2/4\).*1"):
        network.check_leaks()
    pool.recycle(segment, 1)
    network.check_leaks()
    assert network.available_segments == 4


def test_a_segment_recycled_after_the_pool_was_destroyed_is_freed() -> None:
    network = NetworkBufferPool(2)
    pool = network.create_local_pool(1)
    segment = pool.try_request()
    assert segment is not None
    network.destroy()
    pool.lazy_destroy()
    pool.recycle(segment)
    assert segment.is_freed


@pytest.mark.parametrize(
    ("arguments", "parameter"),
    [((0,), "total_segments"), ((1, 0), "segment_size")],
)
def test_a_pool_of_nothing_is_refused(
    arguments: tuple[int, ...], parameter: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=parameter):
        NetworkBufferPool(*arguments)
