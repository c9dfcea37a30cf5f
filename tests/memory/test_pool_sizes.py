"""Which sizes local pools have, with Flink's numbers, and who gets what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import InsufficientBuffersError
from aiomailbox.memory.buffer import MemorySegment
from aiomailbox.memory.local_pool import (
    Demand,
    LocalBufferPool,
    NetworkBufferPool,
    redistribute,
)

Drain = Callable[[LocalBufferPool], list[MemorySegment]]
Take = Callable[[LocalBufferPool, int], Coroutine[Any, Any, list[MemorySegment]]]
TOTAL = 1024


def sizes(network: NetworkBufferPool) -> list[int]:
    return [pool.size for pool in network.local_pools]


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ([(1, 1), (1, 2)], [1, 2]),
        ([(1, None)], [TOTAL]),
        ([(24, 24), (1, None)], [24, TOTAL - 24]),
        ([(1, None), (1, None)], [TOTAL // 2] * 2),
        ([(TOTAL // 2, None), (TOTAL // 2, None)], [TOTAL // 2] * 2),
        ([(1, 10), (1, 10)], [10, 10]),
    ],
)
def test_pools_have_what_they_can_use_while_there_is_plenty(
    wishes: list[tuple[int, int | None]], expected: list[int]
) -> None:
    """NET-39, NET-40, NET-41, NET-42, NET-43."""
    network = NetworkBufferPool(TOTAL)
    for required, maximum in wishes:
        network.create_local_pool(required, maximum)
    assert sizes(network) == expected


def test_each_new_pool_makes_the_others_smaller_down_to_what_they_require() -> None:
    """NET-44."""
    network = NetworkBufferPool(3)
    found = []
    for _ in range(3):
        network.create_local_pool(1, 10)
        found.append(sorted(sizes(network)))
    assert found == [[3], [1, 2], [1, 1, 1]]


def test_bounded_and_unbounded_pools_share_by_headroom() -> None:
    """NET-46, NET-47, NET-48: by (required, maximum), which Flink 2.3 still does.

    The weighted scheme of these scenarios would give 10, 16, 30 and 38, 20, 12.
    """
    network = NetworkBufferPool(TOTAL)
    for maximum in (10, 10, None):
        network.create_local_pool(1, maximum)
    assert sum(sizes(network)) == TOTAL
    assert max(sizes(network)[:2]) <= 10
    network = NetworkBufferPool(64)
    assert network.try_request_unpooled(8) is not None
    for required, maximum in ((5, 12), (9, 24), (17, 40)):
        network.create_local_pool(required, maximum)
    assert sizes(network) == [8, 18, 30]
    demands = [Demand(8, 1000), Demand(20, 40), Demand(12, 24)]
    # Headrooms of 30, 20 and 12 share 30: running sums give 14, 10 and 6.
    assert redistribute(30, demands) == [22, 30, 18]


def test_unpooled_segments_that_return_can_all_be_taken_again() -> None:
    """NET-25."""
    network = NetworkBufferPool(10)
    taken = network.try_request_unpooled(5)
    assert taken is not None
    assert network.available_segments == 5
    network.recycle_unpooled(taken)
    assert network.available_segments == 10
    assert network.create_local_pool(10).size == 10


def test_a_global_pool_that_is_empty_in_between_trips_nobody(drain: Drain) -> None:
    """NET-61."""
    network = NetworkBufferPool(4)
    pool, hog = network.create_local_pool(1), network.create_local_pool(1)
    held = [pool.try_request(), pool.try_request()]
    taken = drain(hog)
    assert network.available_segments == 0
    assert pool.try_request() is None
    for segment in held:
        assert segment is not None
        pool.recycle(segment)
    assert pool.available
    pool.lazy_destroy()
    for segment in taken:
        hog.recycle(segment)
    hog.lazy_destroy()
    network.check_leaks()
    assert network.available_segments == 4


@pytest.mark.parametrize("overdraft_max", [0, 5])
async def test_what_exceeds_a_fair_share_satisfies_those_who_wait_for_theirs(
    drain: Drain, take: Take, overdraft_max: int
) -> None:
    """NET-65."""
    network = NetworkBufferPool(TOTAL)
    greedy = network.create_local_pool(1, TOTAL, overdraft_max=overdraft_max)
    held = drain(greedy)
    needy = network.create_local_pool(1, TOTAL, overdraft_max=overdraft_max)
    share = needy.size

    taking = asyncio.get_running_loop().create_task(take(needy, share))
    await asyncio.sleep(0)
    assert not taking.done()
    while held:
        greedy.recycle(held.pop())
        await asyncio.sleep(0)
    assert len(await taking) == share
    assert share == TOTAL // 2


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(1, 9), st.none() | st.integers(0, 30)),
            st.integers(0, 20),
        ),
        max_size=30,
    )
)
def test_sizes_are_shared_out_anew_whichever_pools_come_and_go(
    steps: list[Any],
) -> None:
    """Also where that is not computed: each pool has its maximum while all can."""
    network = NetworkBufferPool(100)
    for step in steps:
        if isinstance(step, int):
            for pool in network.local_pools[step : step + 1]:
                pool.lazy_destroy()
        else:
            required, more = step
            with suppress(InsufficientBuffersError):
                network.create_local_pool(
                    required, None if more is None else required + more
                )
        pools = network.local_pools
        demands = [
            Demand(pool.options.required_segments, pool.options.segments_max)
            for pool in pools
        ]
        spare = 100 - sum(demand.required for demand in demands)
        assert sizes(network) == redistribute(spare, demands)


def test_a_thousand_pools_are_not_resized_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resized = []
    resize = LocalBufferPool.resize

    def counted(pool: LocalBufferPool, segments: int) -> None:
        resized.append(pool)
        resize(pool, segments)

    monkeypatch.setattr(LocalBufferPool, "resize", counted)
    network = NetworkBufferPool(20_000)
    pools = [network.create_local_pool(2, 10) for _ in range(1_000)]
    assert sizes(network) == [10] * 1_000
    for pool in pools:
        pool.lazy_destroy()
    assert len(resized) == 1_000
    network.check_leaks()
