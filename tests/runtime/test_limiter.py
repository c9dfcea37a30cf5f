"""Laws of job-wide limiters."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.clock import clock_of
from aiomailbox.errors import (
    BudgetExceededError,
    CorruptStreamError,
    IllegalStateError,
    InvalidArgumentError,
)
from aiomailbox.policies.rate_limit import RateLimit, RateWindow
from aiomailbox.runtime.limiter import LimiterService, RateLimiter


def now_s() -> float:
    return asyncio.get_running_loop().time()


def new(limit: RateLimit) -> RateLimiter:
    return RateLimiter(limit, clock_of(asyncio.get_running_loop()))


async def test_a_lease_with_units_left_does_not_suspend() -> None:
    lease = new(RateLimit(1)).lease()
    with pytest.raises(StopIteration):
        lease.send(None)


async def test_leases_are_granted_in_the_order_asked_for_heavy_ones_included() -> None:
    limiter, order = new(RateLimit(10, per=1.0)), []

    async def lease(name: str, weight: float) -> None:
        await limiter.lease(weight)
        order.append((name, round(now_s(), 3)))

    async with asyncio.TaskGroup() as group:
        for name, weight in [("a", 6), ("heavy", 10), ("light", 1)]:
            group.create_task(lease(name, weight))
    assert order == [("a", 0), ("heavy", 1), ("light", 2)]


async def test_no_window_holds_more_than_the_count_for_any_mix_of_askers() -> None:
    limiter, uses = new(RateLimit(20, per=1.0)), []
    rng = random.Random(7)

    async def ask(count: int) -> None:
        for _ in range(count):
            weight = rng.randint(1, 5)
            await limiter.lease(weight)
            uses.append((now_s(), weight))
            await asyncio.sleep(rng.random() * 0.2)

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(ask(25))
    for start, _ in uses:
        inside = [weight for at, weight in uses if start <= at <= start + 1.0]
        assert sum(inside) <= 20


async def test_a_cancelled_wait_takes_no_units_and_lets_the_next_one_through() -> None:
    limiter = new(RateLimit(2, per=1.0))
    await limiter.lease(1)
    heavy = asyncio.create_task(limiter.lease(2))
    light = asyncio.create_task(limiter.lease(1))
    await asyncio.sleep(0.1)
    heavy.cancel()
    await light
    assert now_s() == pytest.approx(0.1)
    assert limiter.waiting == 0


@pytest.mark.parametrize("is_granted", [True, False])
async def test_a_lease_cancelled_between_grant_and_use_takes_no_units(
    is_granted: bool,
) -> None:
    limiter = new(RateLimit(1, per=1.0))
    await limiter.lease()
    first = asyncio.create_task(limiter.lease())
    second = asyncio.create_task(limiter.lease())
    await asyncio.sleep(0)
    limiter._disarm()
    await asyncio.sleep(1.5)
    # The grant and the cancellation in one step: the waiter has not gone on yet.
    if is_granted:
        limiter._grant()
    first.cancel()
    limiter._grant()
    await second
    assert first.cancelled()
    assert now_s() == pytest.approx(1.5)


async def test_a_pause_holds_back_all_who_share_the_limit() -> None:
    limiter, granted = new(RateLimit(1000)), []

    async def ask() -> None:
        await limiter.lease()
        granted.append(now_s())

    limiter.pause(3.0)
    limiter.pause(0.5)
    with pytest.raises(InvalidArgumentError, match="delay_s"):
        limiter.pause(-1)
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(ask())
    assert granted == [pytest.approx(3.0)] * 5


async def test_one_refusal_may_hold_back_its_own_call_only() -> None:
    limiter = new(RateLimit(10, per=2.0, on_refusal="call"))
    limiter.pause(5.0)
    await limiter.lease()
    await asyncio.sleep(2.5)
    # More than a window later: still a first one.
    limiter.pause(5.0)
    await asyncio.sleep(1.0)
    assert now_s() == 3.5
    limiter.pause(5.0)
    await limiter.lease()
    assert now_s() == 8.5


async def test_a_pause_reaches_those_who_wait_already() -> None:
    limiter = new(RateLimit(1, per=1.0))
    await limiter.lease()
    waiter = asyncio.create_task(limiter.lease())
    await asyncio.sleep(0.5)
    limiter.pause(2.0)
    await waiter
    assert now_s() == pytest.approx(2.5)


async def test_a_weight_that_can_never_be_granted_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="weight"):
        await new(RateLimit(5)).lease(6)


async def test_closing_refuses_waiters_and_newcomers_and_leaves_no_timer() -> None:
    limiter = new(RateLimit(1, per=3600))
    await limiter.lease()
    waiter = asyncio.create_task(limiter.lease())
    cancelled = asyncio.create_task(limiter.lease())
    await asyncio.sleep(0)
    cancelled.cancel()
    limiter.close()
    with pytest.raises(IllegalStateError):
        await waiter
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(IllegalStateError):
        await limiter.lease()
    assert limiter._timer is None


async def test_limits_of_one_name_are_one_limiter() -> None:
    service = LimiterService(clock_of(asyncio.get_running_loop()))
    first = service.get(RateLimit(5, per=1.0, name="api"))
    assert service.get(RateLimit(5, per=1.0, name="api")) is first
    assert service.get(RateLimit(5, per=1.0, name="other")) is not first


async def test_the_end_of_a_job_closes_all_its_limiters() -> None:
    service = LimiterService(clock_of(asyncio.get_running_loop()))
    limits = [RateLimit(1, per=3600), RateLimit(1, per=3600, name="api")]
    for limit in limits:
        await service.get(limit).lease()
    waiting = [asyncio.create_task(service.get(limit).lease()) for limit in limits]
    await asyncio.sleep(1)
    service.close()
    for waiter in waiting:
        with pytest.raises(IllegalStateError):
            await waiter


async def test_whatever_the_limit_that_a_budget_is_of_the_job_hears_that_it_is_used() -> (
    None
):
    service, told = LimiterService(clock_of(asyncio.get_running_loop())), list[Any]()
    service.on_exhausted = told.append
    limits = [RateLimit(5, budget=1), RateLimit(5, budget=1, name="api")]
    for limit in limits:
        with pytest.raises(BudgetExceededError):
            await service.get(limit).lease(2)
    assert told == limits


async def test_one_name_with_other_numbers_is_refused_naming_both() -> None:
    service = LimiterService(clock_of(asyncio.get_running_loop()))
    service.get(RateLimit(5, name="api"))
    with pytest.raises(InvalidArgumentError, match=r"5 units.*6 units"):
        service.get(RateLimit(6, name="api"))


async def test_a_limit_without_a_name_is_shared_by_those_who_have_the_object() -> None:
    service = LimiterService(clock_of(asyncio.get_running_loop()))
    limit = RateLimit(5)
    assert service.get(limit) is service.get(limit)
    assert service.get(RateLimit(5)) is not service.get(limit)


async def test_a_limit_goes_on_from_where_it_was_in_another_program() -> None:
    """A burst before the crash and one after it are one burst to the server."""
    clock = clock_of(asyncio.get_running_loop())
    limit = RateLimit(10, per=5.0, name="service")
    before = LimiterService(clock)
    # Beside one of which nothing but the total is known any more.
    await before.get(RateLimit(1, per=0.1, name="other")).lease()
    for _ in range(8):
        await before.get(limit).lease()
    await asyncio.sleep(2)
    kept = before.snapshot()
    # The program is down for a second.
    await asyncio.sleep(1)
    after = LimiterService(clock)
    after.restore(kept)
    limiter = after.get(limit)
    assert isinstance(limiter, RateLimiter)
    assert limiter.used == 8
    began = now_s()
    for _ in range(2):
        await limiter.lease()
    assert now_s() == began
    await limiter.lease()
    assert now_s() - began == pytest.approx(2, abs=0.01)
    assert limiter.used == 11


async def test_a_pause_and_what_is_reserved_are_part_of_a_snapshot() -> None:
    clock = clock_of(asyncio.get_running_loop())
    limit = RateLimit(2, per=1.0, name="service")
    before = LimiterService(clock)
    before.get(limit).pause(10)
    kept = before.snapshot()
    after = LimiterService(clock)
    after.restore(kept)
    began = now_s()
    await after.get(limit).lease()
    assert now_s() - began == pytest.approx(10, abs=0.01)
    window = RateWindow(RateLimit(2, per=1.0))
    window.reserve(2, now_s=0.0)
    again = RateWindow(RateLimit(2, per=1.0))
    again.restore(window.snapshot(0.0), now_s=100.0, elapsed_s=0.25)
    assert again.delay_s(1, 100.0) == pytest.approx(0.75, abs=0.01)


async def test_a_limit_without_a_name_is_found_by_its_operator() -> None:
    clock = clock_of(asyncio.get_running_loop())
    mine, other = RateLimit(1, per=9.0), RateLimit(1, per=9.0)
    before = LimiterService(clock, [("ask", mine), ("tell", other)])
    await before.get(mine).lease()
    kept = before.snapshot()
    mine, other = RateLimit(1, per=9.0), RateLimit(1, per=9.0)
    after = LimiterService(clock, [("tell", other), ("ask", mine)])
    after.restore(kept)
    began = now_s()
    await after.get(other).lease()
    assert now_s() == began
    await after.get(mine).lease()
    assert now_s() - began == pytest.approx(9, abs=0.01)


async def test_a_burst_goes_on_evenly_after_a_restore() -> None:
    limit = RateLimit(10, per=10.0, burst=2)
    window = RateWindow(limit)
    for _ in range(2):
        window.reserve(1, 0.0)
        window.use(1, 0.0)
    again = RateWindow(limit)
    again.restore(window.snapshot(0.0), now_s=50.0, elapsed_s=0.0)
    assert again.delay_s(1, 50.0) == pytest.approx(window.delay_s(1, 0.0))


async def test_what_is_no_snapshot_of_limits_is_refused() -> None:
    service = LimiterService(clock_of(asyncio.get_running_loop()))
    with pytest.raises(CorruptStreamError, match="no totals of limits"):
        service.restore(b"nothing")


async def test_a_job_that_goes_on_keeps_its_limit(tmp_path: Path) -> None:
    """Three of five units are used when the first program fails, half a minute later."""
    called: list[float] = []
    programs = 0
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "file.txt").write_text("a\nb\nc\nd\ne\n")

    async def call(line: str) -> str:
        called.append(now_s())
        return line

    async def fail_once(line: str) -> str:
        if programs == 1:
            await asyncio.sleep(30)
            message = "stumbled"
            raise RuntimeError(message)
        return line

    def program() -> am.StreamExecutionEnvironment:
        env = am.StreamExecutionEnvironment()
        env.enable_checkpointing(
            am.seconds(5), directory=tmp_path, retention=am.Retention.ON_FAILURE
        )
        env.configure(restart=am.restart.none())
        limit = am.RateLimit(3, per=60.0)
        # It never ends, so that checkpoints do not wait for the last call.
        lines = env.from_source(am.FileSource(tmp_path / "lines", "text", watch=1))
        lines.map_async(call, limit=limit, concurrency=1).uid("call").sink_to(print)
        lines.map_async(fail_once).uid("fail").sink_to(print)
        return env

    programs += 1
    with pytest.raises(am.JobFailedError):
        await program().execute("limited")
    assert len(called) == 3
    programs += 1
    async with program().start("limited", restore_from="latest") as job:
        while len(called) < 5:
            await asyncio.sleep(1)
        await job.cancel()
    # With a limit that had forgotten them, the others would have been called at once.
    assert len(called) == 5
    assert called[3] - called[0] >= 60


async def test_units_that_are_about_to_be_used_count_for_the_budget() -> None:
    limiter = new(RateLimit(10, budget=5))
    await limiter.hold(4)
    with pytest.raises(BudgetExceededError):
        await limiter.lease(2)


async def test_after_a_lease_beyond_the_budget_no_lighter_one_is_granted() -> None:
    limiter, told = new(RateLimit(10, budget=5)), list[RateLimit]()
    limiter.on_exhausted = told.append
    await limiter.lease(5)
    assert told == []
    for weight in (2, 1):
        with pytest.raises(BudgetExceededError):
            await limiter.lease(weight)
    # And its sources are stopped once.
    assert told == [limiter.limit]


async def test_all_that_wait_behind_a_lease_beyond_the_budget_are_refused() -> None:
    limiter = new(RateLimit(2, per=1.0, budget=3))
    await limiter.lease(2)
    async with asyncio.timeout(10):
        found = await asyncio.gather(
            *(limiter.lease() for _ in range(3)), return_exceptions=True
        )
    # Each fits when it is asked for, and one of them when they are granted.
    assert found[0] is None
    assert [type(one) for one in found[1:]] == [BudgetExceededError] * 2
    assert limiter.waiting == 0
