"""Local pools: availability, quota, overdraft, elastic requests, resizing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aiomailbox.errors import (
    BufferRecycledError,
    InvalidArgumentError,
    OverdraftCeilingError,
    PoolDestroyedError,
)
from aiomailbox.memory.buffer import MemorySegment
from aiomailbox.memory.local_pool import LocalBufferPool, NetworkBufferPool

Drain = Callable[[LocalBufferPool], list[MemorySegment]]


def _take(pool: LocalBufferPool, count: int) -> list[MemorySegment]:
    taken = [pool.try_request() for _ in range(count)]
    assert None not in taken
    return [segment for segment in taken if segment is not None]


def _state(pool: LocalBufferPool) -> tuple[int, int, int, bool]:
    now = pool.statistics()
    return now.overdraft, now.requested, now.idle, now.available


def test_shrinking_turns_nothing_into_overdraft_that_fits() -> None:
    """NET-49."""
    pool = NetworkBufferPool(20).create_local_pool(2, 10, overdraft_max=2)
    pool.resize(7)
    _take(pool, 5)
    pool.resize(5)
    assert _state(pool) == (0, 5, 0, False)


def test_shrinking_keeps_an_idle_segment_within_the_new_size() -> None:
    """NET-50."""
    pool = NetworkBufferPool(20).create_local_pool(2, 10)
    pool.resize(6)
    _take(pool, 2)
    pool.resize(4)
    assert _state(pool) == (0, 3, 1, True)


def test_overdraft_in_use_may_exceed_the_maximum_after_shrinking() -> None:
    """NET-51."""
    pool = NetworkBufferPool(20).create_local_pool(2, 10, overdraft_max=3)
    pool.resize(9)
    _take(pool, 9)
    pool.resize(5)
    assert _state(pool) == (4, 9, 0, False)
    assert pool.try_request() is None


def test_growing_absorbs_overdraft_before_anything_becomes_idle() -> None:
    """NET-52."""
    pool = NetworkBufferPool(20).create_local_pool(2, 10, overdraft_max=2)
    pool.resize(5)
    _take(pool, 7)
    states = []
    for size in (6, 7, 8):
        pool.resize(size)
        states.append(_state(pool))
    assert [(s[0], s[2], s[3]) for s in states] == [
        (1, 0, False),
        (0, 0, False),
        (0, 1, True),
    ]


def test_excess_goes_back_at_once_if_idle_and_when_recycled_if_lent() -> None:
    """NET-53, NET-54."""
    network = NetworkBufferPool(10)
    pool = network.create_local_pool(2)
    held = _take(pool, 10)
    pool.resize(5)
    free = []
    for segment in held:
        pool.recycle(segment)
        free.append(network.available_segments)
    assert free == [1, 2, 3, 4, 5, 5, 5, 5, 5, 5]
    pool.resize(2)
    assert network.available_segments == 8


def test_a_size_below_what_is_required_is_refused() -> None:
    """NET-55."""
    pool = NetworkBufferPool(10).create_local_pool(3)
    with pytest.raises(InvalidArgumentError, match="required 3"):
        pool.resize(2)


def test_resizing_is_capped_by_the_maximum() -> None:
    """NET-58."""
    pool = NetworkBufferPool(10).create_local_pool(1, 2)
    for size, expected in ((1, 1), (2, 2), (3, 2), (1, 1)):
        pool.resize(size)
        assert pool.size == expected


def test_resizing_a_destroyed_pool_fetches_nothing() -> None:
    """NET-63."""
    network = NetworkBufferPool(10)
    pool = network.create_local_pool(1)
    pool.lazy_destroy()
    pool.resize(5)
    assert (pool.size, network.available_segments) == (5, 10)


def test_a_channel_over_its_quota_is_granted_but_makes_the_pool_unavailable() -> None:
    """NET-59."""
    pool = NetworkBufferPool(10).create_local_pool(
        10, subpartitions=3, per_channel_max=2
    )
    held = [pool.try_request(0)]
    assert pool.available
    held.append(pool.try_request(0))
    assert not pool.available
    held.append(pool.try_request(0))
    states = []
    for segment in held:
        assert segment is not None
        pool.recycle(segment, 0)
        states.append(pool.available)
    assert states == [False, True, True]
    assert pool.statistics().used_by_channel == (0, 0, 0)


@pytest.mark.parametrize("overdraft_max", [0, 1, 2])
def test_overdraft_is_granted_once_the_size_is_reached_and_drains_first(
    overdraft_max: int,
) -> None:
    """NET-62."""
    pool = NetworkBufferPool(20).create_local_pool(
        4, 4, subpartitions=2, per_channel_max=3, overdraft_max=overdraft_max
    )
    held = [pool.try_request(channel) for channel in (0, 0, 0, 1)]
    held += [pool.try_request(1) for _ in range(overdraft_max)]
    assert None not in held
    assert [pool.try_request(channel) for channel in (0, 1, None)] == [None] * 3
    for segment in held[4:]:
        assert segment is not None
        pool.recycle(segment, 1)
        assert not pool.available
    assert held[0] is not None
    pool.recycle(held[0], 0)
    assert pool.available


def test_availability_walks_with_takes_recycles_and_sizes() -> None:
    """NET-60."""
    pool = NetworkBufferPool(10).create_local_pool(1, 4)
    pool.resize(2)
    held = _take(pool, 2)
    assert not pool.available
    woken: list[bool] = []
    pool.availability.on_available(lambda: woken.append(pool.available))
    pool.resize(3)
    assert woken == [True]
    pool.recycle(held.pop())
    pool.resize(2)
    assert pool.available
    pool.resize(1)
    assert not pool.available
    pool.recycle(held.pop())
    assert pool.available


def test_what_is_out_when_destroyed_returns_to_the_global_pool() -> None:
    """NET-64."""
    network = NetworkBufferPool(10)
    pool = network.create_local_pool(1)
    held = _take(pool, 10)
    pool.lazy_destroy()
    pool.lazy_destroy()
    assert network.available_segments == 0
    assert pool.available
    for segment in held:
        pool.recycle(segment)
    assert network.available_segments == 10
    with pytest.raises(PoolDestroyedError, match="destroyed"):
        pool.try_request()
    with pytest.raises(PoolDestroyedError):
        pool.request_elastic()


def test_a_segment_cannot_be_recycled_twice_or_to_another_pool() -> None:
    network = NetworkBufferPool(10)
    pool, other = network.create_local_pool(1), network.create_local_pool(1)
    (segment,) = _take(pool, 1)
    with pytest.raises(BufferRecycledError):
        other.recycle(segment)
    pool.recycle(segment)
    with pytest.raises(BufferRecycledError, match="twice"):
        pool.recycle(segment)


def test_an_elastic_request_goes_from_ordinary_to_overdraft_to_beyond() -> None:
    network = NetworkBufferPool(10)
    pool = network.create_local_pool(2, 2, overdraft_max=1, subpartitions=1)
    held = [pool.request_elastic(0) for _ in range(5)]
    now = pool.statistics()
    assert (now.used, now.overdraft, now.elastic) == (3, 1, 2)
    assert now.used_by_channel == (5,)
    assert network.available_segments == 7
    assert len(set(map(id, held))) == 5


def test_a_pool_is_unavailable_until_all_elastic_excess_has_drained() -> None:
    pool = NetworkBufferPool(10).create_local_pool(2, 2)
    woken: list[int] = []
    held = [pool.request_elastic() for _ in range(5)]
    pool.availability.on_available(lambda: woken.append(pool.outstanding))
    for segment in held[:3]:
        pool.recycle(segment)
        assert not pool.available
        assert pool.try_request() is None
    pool.recycle(held[3])
    assert woken == [1]
    assert pool.try_request() is not None


def test_an_elastic_request_takes_an_idle_segment_before_it_makes_one() -> None:
    pool = NetworkBufferPool(10).create_local_pool(2, 2)
    held = [pool.request_elastic() for _ in range(4)]
    pool.recycle(held[0])
    assert pool.try_request() is None
    pool.request_elastic()
    assert (pool.statistics().elastic, pool.outstanding) == (2, 4)


def test_beyond_the_ceiling_an_elastic_request_fails_the_task_and_names_it() -> None:
    pool = NetworkBufferPool(10).create_local_pool(
        1, 1, owner="flat_map", overdraft_ceiling=2
    )
    held = [pool.request_elastic() for _ in range(3)]
    with pytest.raises(OverdraftCeilingError, match=r"flat_map.*ceiling"):
        pool.request_elastic()
    for segment in held:
        pool.recycle(segment)
    assert pool.available
    assert pool.statistics().elastic == 0


def test_an_elastic_segment_has_bytes_of_its_own() -> None:
    network = NetworkBufferPool(1, 8)
    pool = network.create_local_pool(1)
    ordinary, extra = pool.request_elastic(), pool.request_elastic()
    ordinary.view[:] = b"a" * 8
    extra.view[:] = b"b" * 8
    assert bytes(ordinary.view) == b"a" * 8


def test_a_recycler_returns_the_segment_for_its_channel() -> None:
    pool = NetworkBufferPool(4).create_local_pool(1, subpartitions=2)
    segment = pool.try_request(1)
    assert segment is not None
    assert pool.recycler(1) is pool.recycler(1)
    pool.recycler(1)(segment)
    assert pool.statistics().used_by_channel == (0, 0)


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"required_segments": 0}, "required_segments"),
        ({"required_segments": 3, "segments_max": 2}, "segments_max"),
        ({"required_segments": 1, "subpartitions": -1}, "subpartitions"),
        ({"required_segments": 1, "overdraft_max": -1}, "overdraft_max"),
        ({"required_segments": 1, "overdraft_ceiling": -1}, "overdraft_ceiling"),
        ({"required_segments": 1, "per_channel_max": 0}, "per_channel_max"),
    ],
)
def test_impossible_options_are_refused(
    options: dict[str, int], parameter: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=parameter):
        NetworkBufferPool(10).create_local_pool(**options)  # type: ignore[arg-type]
