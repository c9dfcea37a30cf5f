"""One rate limit for several workers: who is granted what, and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from aiomailbox.clock import clock_of
from aiomailbox.errors import (
    BudgetExceededError,
    IllegalStateError,
    InvalidArgumentError,
)
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.runtime.limiter import LimiterService
from aiomailbox.runtime.peers.limits import LimitDesk, RemoteLimits
from aiomailbox.runtime.peers.messages import Granted, Lease, Pause, Used


class Job:
    """A parent's limits and its workers', joined by a way that takes time."""

    def __init__(
        self,
        *limits: RateLimit,
        delay_s: float = 0.0,
        lag_s: Callable[[], float] | None = None,
    ) -> None:
        self.limits = list(limits)
        self.lag_s = (lambda: delay_s) if lag_s is None else lag_s
        clock = clock_of(asyncio.get_running_loop())
        self.desk = LimitDesk(LimiterService(clock), self.limits)
        self.failures: list[BaseException] = []
        self.requests: list[Lease] = []

    def worker(self) -> RemoteLimits:
        return Link(self).limits


class Link:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.limits = RemoteLimits(job.limits, self.to_parent)
        self.arrives_s: dict[Any, float] = {}

    def to_parent(self, message: Any) -> None:
        self.later(self.at_parent, message)

    def send(self, message: Granted) -> None:
        self.later(self.limits.on_granted, message)

    def later(self, call: Any, message: Any) -> None:
        """Deliver it after a while, behind what was sent the same way before."""
        loop = asyncio.get_running_loop()
        at_s = max(self.arrives_s.get(call, 0.0), loop.time() + self.job.lag_s())
        self.arrives_s[call] = at_s
        loop.call_at(at_s, call, message)

    def at_parent(self, message: Any) -> None:
        if isinstance(message, Pause):
            self.job.desk.on_pause(message)
        elif isinstance(message, Used):
            self.job.desk.on_used(message, self)
        else:
            self.job.requests.append(message)
            self.job.desk.on_lease(message, self, self.job.failures.append)


async def use(limits: RemoteLimits, limit: RateLimit, count: int) -> list[float]:
    loop = asyncio.get_running_loop()
    times: list[float] = []

    async def call() -> None:
        await limits.get(limit).lease()
        times.append(loop.time())

    await asyncio.gather(*[call() for _ in range(count)])
    return times


@pytest.mark.parametrize("delay_s", [0.0, 0.003])
async def test_what_all_workers_use_keeps_to_the_limit(delay_s: float) -> None:
    limit = RateLimit(10, per=1.0)
    job = Job(limit, delay_s=delay_s)
    workers = [job.worker() for _ in range(3)]
    uses = await asyncio.gather(*[use(worker, limit, 15) for worker in workers])
    times = sorted(time for used in uses for time in used)
    assert len(times) == 45
    for first, last in zip(times, times[10:], strict=False):
        assert last - first > 1.0
    # Nothing is wasted: five windows of ten.
    assert times[-1] - times[0] < 4.5
    await job.desk.close()


@pytest.mark.parametrize("lag_max_s", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(5))
async def test_grants_that_are_late_do_not_meet_those_of_a_later_second(
    seed: int, lag_max_s: float
) -> None:
    """They are used whenever they arrive: the parent counts from then on."""
    random_ = random.Random(seed)
    limit = RateLimit(100, per=1.0)
    job = Job(limit, lag_s=lambda: random_.uniform(0.0, lag_max_s))
    workers = [job.worker() for _ in range(2)]
    uses = await asyncio.gather(*[use(worker, limit, 400) for worker in workers])
    times = sorted(time for used in uses for time in used)
    for first, last in zip(times, times[100:], strict=False):
        assert last - first > 1.0
    # A unit comes back a window and a way there and back after it was granted.
    assert times[-1] < 8 * (1.0 + 3 * lag_max_s)
    await job.desk.close()


async def test_what_a_lost_worker_held_counts_from_its_loss_on() -> None:
    limit = RateLimit(1, per=1.0)
    job = Job(limit, lag_s=lambda: 0.25)
    lost = Link(job)
    waiting = asyncio.ensure_future(use(lost.limits, limit, 1))
    # It has been granted one, and has not said that it used it.
    await asyncio.sleep(0.3)
    job.desk.forget(lost)
    (used,) = await use(job.worker(), limit, 1)
    assert used == pytest.approx(0.3 + 1.0 + 0.25, abs=0.01)
    waiting.cancel()
    await job.desk.close()


async def test_the_loss_of_a_worker_is_no_loss_of_what_others_have_asked_for() -> None:
    limit = RateLimit(1, per=10.0)
    job = Job(limit)
    lost, other = Link(job), Link(job)
    tasks = [asyncio.ensure_future(use(one.limits, limit, 2)) for one in (lost, other)]
    await asyncio.sleep(1)
    job.desk.forget(lost)
    times = await asyncio.wait_for(tasks[1], 60)
    assert len(times) == 2
    # Nor does a grant disturb that nobody has asked for in this attempt.
    other.limits.begin_attempt()
    text: Any = job.requests[0].limit
    other.limits.on_granted(Granted(text, 1))
    waiting = Link(job)
    tasks.append(asyncio.ensure_future(use(waiting.limits, limit, 3)))
    await asyncio.sleep(1)
    asked = list(job.desk._tasks)
    assert asked
    closing_s = asyncio.get_running_loop().time()
    await job.desk.close()
    assert asyncio.get_running_loop().time() == closing_s
    assert all(task.done() for task in asked)
    for task in tasks:
        task.cancel()


async def test_a_worker_cannot_use_what_it_was_not_granted() -> None:
    limit = RateLimit(1, per=1.0)
    job = Job(limit)
    stranger = Link(job)
    limiter: Any = stranger.limits.get(limit)
    for weight in (1.0, 1e300, float("nan"), -5.0):
        job.desk.on_used(Used(limiter._text, weight), stranger)
    times = await use(job.worker(), limit, 3)
    assert times[2] - times[0] > 2.0
    await job.desk.close()


async def test_a_worker_has_one_request_under_way() -> None:
    limit = RateLimit(1000, per=1.0)
    job = Job(limit, delay_s=0.01)
    await use(job.worker(), limit, 500)
    # The first waiter asks alone, and all who came meanwhile ask together.
    assert [len(request.weights) for request in job.requests] == [1, 499]
    await job.desk.close()


async def test_a_grant_whose_waiter_has_gone_is_for_the_next() -> None:
    limit = RateLimit(2, per=1.0)
    job = Job(limit, delay_s=0.01)
    limiter: Any = job.worker().get(limit)
    loop = asyncio.get_running_loop()
    first, second, third = [loop.create_task(limiter.lease()) for _ in range(3)]
    await asyncio.sleep(0.001)
    first.cancel()
    await asyncio.gather(second, third)
    assert loop.time() < 0.5
    assert first.cancelled()
    await job.desk.close()


async def test_the_parent_hears_of_each_grant_once_whatever_becomes_of_its_waiter() -> (
    None
):
    """Or its units would be held until the worker is gone, or be used twice."""
    limit, sent = RateLimit(5, per=1.0, budget=9), list[Any]()
    limiter: Any = RemoteLimits([limit], sent.append).get(limit)

    async def turn() -> list[Any]:
        for _ in range(3):
            await asyncio.sleep(0)
        said = [one.weights if isinstance(one, Lease) else one.weight for one in sent]
        sent.clear()
        return said

    def lease(weight: float) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(limiter.lease(weight))

    with pytest.raises(InvalidArgumentError, match="weight"):
        await lease(6)
    assert await turn() == []
    # Granted, and cancelled in the same turn of the loop.
    task = lease(1)
    assert await turn() == [[1]]
    limiter.on_granted(1)
    task.cancel()
    assert await turn() == [1]
    # Cancelled, and granted later; to nobody, or to one who needs no more.
    task = lease(2)
    assert await turn() == [[2]]
    task.cancel()
    assert await turn() == []
    gone, lighter, heavier = lease(1), lease(1), lease(3)
    assert await turn() == []
    gone.cancel()
    assert await turn() == []
    limiter.on_granted(1)
    assert await turn() == [[3], 2]
    assert lighter.done()
    assert not heavier.done()
    limiter.on_granted(1)
    assert await turn() == [3]
    # Granted to one who has gone, and too little for the next.
    task = lease(1)
    assert await turn() == [[1]]
    task.cancel()
    heavier = lease(3)
    assert await turn() == []
    limiter.on_granted(1)
    assert await turn() == [[3], 1]
    assert not heavier.done()
    limiter.on_granted(1)
    assert await turn() == [3]
    # Refused, and cancelled in the same turn.
    task = lease(1)
    assert await turn() == [[1]]
    limiter.on_refused(1)
    task.cancel()
    assert await turn() == []
    assert task.cancelled()


@pytest.mark.parametrize("budget", [3, 4, 5])
async def test_a_budget_of_several_workers_is_used_once_and_then_refused_to_all(
    budget: int,
) -> None:
    limit = RateLimit(10, per=1.0, budget=budget, unit="tokens")
    job = Job(limit, delay_s=0.01)
    workers = [job.worker() for _ in range(2)]
    for used in (budget, 0):
        leases = [worker.get(limit).lease() for worker in workers for _ in range(4)]
        async with asyncio.timeout(60):
            found = await asyncio.gather(*leases, return_exceptions=True)
        assert found.count(None) == used
        # In the order in which they were asked for.
        for mine in (found[:4], found[4:]):
            assert mine == sorted(mine, key=lambda one: one is not None)
        refused = [one for one in found if one is not None]
        assert {type(one) for one in refused} == {BudgetExceededError}
        assert f"{budget} tokens" in str(refused[0])
    assert job.failures == []
    # What has been answered is forgotten.
    assert not job.desk._tasks
    await job.desk.close()


async def test_a_wait_that_was_cancelled_before_it_was_asked_for_takes_no_units() -> (
    None
):
    limit = RateLimit(1, per=10.0)
    job = Job(limit, delay_s=0.01)
    limiter: Any = job.worker().get(limit)
    loop = asyncio.get_running_loop()
    first, second, third = [loop.create_task(limiter.lease()) for _ in range(3)]
    await asyncio.sleep(0.001)
    second.cancel()
    await asyncio.gather(first, third)
    assert loop.time() < 11
    await job.desk.close()


async def test_a_request_is_no_longer_than_a_frame_however_many_wait() -> None:
    limit = RateLimit(10_000, per=1.0)
    job = Job(limit, delay_s=0.001)
    await use(job.worker(), limit, 2500)
    assert [len(one.weights) for one in job.requests] == [1, 1024, 1024, 451]
    await job.desk.close()


async def test_closing_refuses_all_but_who_has_gone_already() -> None:
    limit = RateLimit(1, per=3600.0)
    limiter: Any = Job(limit, delay_s=1.0).worker().get(limit)
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(limiter.lease()) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[2].cancel()
    limiter.close()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    gone, refused = asyncio.CancelledError, IllegalStateError
    assert [type(one) for one in found] == [gone, refused, gone, refused]


async def test_a_pause_of_one_worker_holds_for_all() -> None:
    limit = RateLimit(10, per=1.0)
    job = Job(limit)
    one, other = job.worker(), job.worker()
    one.get(limit).pause(5.0)
    await asyncio.sleep(0.1)
    started = asyncio.get_running_loop().time()
    (used,) = await use(other, limit, 1)
    assert used - started == pytest.approx(4.9)
    await job.desk.close()


async def test_named_limits_are_one_and_unnamed_ones_their_operators() -> None:
    first, second = RateLimit(5), RateLimit(5)
    named = RateLimit(5, name="api")
    worker = Job(first, second, named).worker()
    assert worker.get(first) is worker.get(first)
    assert worker.get(first) is not worker.get(second)
    assert worker.get(named) is worker.get(RateLimit(5, name="api"))
    with pytest.raises(InvalidArgumentError, match="give it a name"):
        worker.get(RateLimit(5))


async def test_a_name_with_other_numbers_fails_the_job() -> None:
    job = Job(RateLimit(5, name="api"))
    one, other = job.worker(), job.worker()
    await use(one, RateLimit(5, name="api"), 1)
    waiting = asyncio.get_running_loop().create_task(
        use(other, RateLimit(6, name="api"), 1)
    )
    await asyncio.sleep(0.1)
    assert "two limits are named 'api'" in str(job.failures)
    waiting.cancel()
    await job.desk.close()


async def test_the_end_of_the_job_refuses_who_waits() -> None:
    limit = RateLimit(1, per=3600.0)
    job = Job(limit)
    worker = job.worker()
    await use(worker, limit, 1)
    waiting = asyncio.get_running_loop().create_task(use(worker, limit, 1))
    await asyncio.sleep(1)
    worker.close()
    with pytest.raises(IllegalStateError):
        await waiting
    with pytest.raises(IllegalStateError):
        await worker.get(limit).lease()
    await job.desk.close()


async def test_a_new_attempt_waits_behind_nothing_that_an_older_one_asked_for() -> None:
    limit = RateLimit(1, per=10.0)
    job = Job(limit)
    old = Link(job)
    await old.limits.get(limit).lease()
    waiting = [asyncio.create_task(old.limits.get(limit).lease()) for _ in range(5)]
    await asyncio.sleep(1)
    job.desk.begin_attempt()
    old.limits.begin_attempt()
    await asyncio.sleep(0)
    for task in waiting:
        with pytest.raises(IllegalStateError):
            await task
    # The same process goes on, and another one has taken the place of a dead one.
    loop = asyncio.get_running_loop()
    for limits in (old.limits, job.worker()):
        began = loop.time()
        await limits.get(limit).lease()
        assert loop.time() - began <= 10.1
    assert loop.time() == pytest.approx(20, abs=0.1)
    await job.desk.close()
