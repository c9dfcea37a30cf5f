"""Job-wide rate limits across processes: workers ask, the parent grants in time.

Theory of operation: the parent has the one limiter. A worker asks for as many leases as
it has waiters and has one request per limit under way, so that what travels does not
grow with what is called. A grant whose waiter has gone meanwhile goes to the next one.
Units are held by the parent until the worker says that they are used, and count from
then on: however late a grant arrives, no window sees more uses than the limit allows.
A way that takes a second therefore slows a limit of a second down to a half.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from aiomailbox.errors import (
    BudgetExceededError,
    IllegalStateError,
    InvalidArgumentError,
)
from aiomailbox.operators.core.context import Limiter
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.runtime.limiter import RateLimiter
from aiomailbox.runtime.peers.messages import Granted, Lease, LimitText, Pause, Used
from aiomailbox.runtime.services import Limiters

_WEIGHTS_MAX: Final = 1024
Send = Callable[[Lease | Used | Pause], None]
"""Sends a message to the parent."""

_Waiter = tuple[float, "asyncio.Future[None]"]


def text_of(limit: RateLimit, number: int) -> LimitText:
    """Return a limit for the way."""
    return LimitText(
        number,
        limit.count,
        limit.per_s,
        limit.name,
        limit.burst,
        limit.budget,
        limit.unit,
        limit.on_refusal,
    )


def limit_from_text(text: LimitText) -> RateLimit:
    """Return the limit that was sent."""
    return RateLimit(
        text.count,
        per=text.per_s,
        name=text.name,
        burst=text.burst,
        budget=text.budget,
        unit=text.unit,
        on_refusal=text.on_refusal,
    )


class GrantTaker(Protocol):
    """Receives what is granted: a worker."""

    def send(self, message: Granted) -> None:
        """Send it a grant."""


class RemoteLimiter:
    """A worker's `Limiter`: the parent has the real one.

    Args:
        limit: What it allows.
        text: What the parent knows it by.
        send: Sends a message to the parent.
    """

    def __init__(self, limit: RateLimit, text: LimitText, send: Send) -> None:
        self.limit: RateLimit = limit
        self._text = text
        self._send = send
        self._waiters: deque[_Waiter] = deque()
        self._asked: deque[_Waiter] = deque()
        self._is_closed = False
        self._used = 0.0

    @property
    def free(self) -> None:
        """Not known here: the parent counts."""

    async def lease(self, weight: float = 1.0) -> None:
        """Wait until ``weight`` more units may be used.

        Raises:
            InvalidArgumentError: If ``weight`` can never be granted.
            IllegalStateError: If the job has ended.
        """
        self.limit.check_weight(weight)
        if self._is_closed:
            raise _closed()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Asked together with all that wait, when the answer before has come.
        self._waiters.append((weight, future))
        self._ask()
        try:
            await future
        except asyncio.CancelledError:
            # Granted and cancelled in one turn of the loop: it has cost units.
            if not future.cancelled() and future.exception() is None:
                self._pass_on(weight)
            raise
        self._use(weight)

    def pause(self, delay_s: float) -> None:
        """Have nothing granted for ``delay_s`` seconds."""
        self._send(Pause(self._text, delay_s))

    def on_granted(self, count: int) -> None:
        """Let the first of those go on that were asked for."""
        for _ in range(min(count, len(self._asked))):
            weight, future = self._asked.popleft()
            # The grant has cost units, so it goes to another waiter.
            if future.done():
                self._pass_on(weight)
            else:
                future.set_result(None)
        self._ask()

    def on_refused(self, count: int) -> None:
        """Let the first of those fail that were asked for: the budget is exhausted."""
        for _ in range(min(count, len(self._asked))):
            _, future = self._asked.popleft()
            if not future.done():
                budget = self.limit.budget or 0.0
                error = BudgetExceededError(self.limit.label, budget, self.limit.unit)
                future.set_exception(error)
        self._ask()

    def close(self) -> None:
        """Refuse all leases from now on, those that wait included."""
        self._is_closed = True
        for _, future in [*self._asked, *self._waiters]:
            if not future.done():
                future.set_exception(_closed())
        self._asked.clear()
        self._waiters.clear()

    def _ask(self) -> None:
        # One request is under way: what waits goes with the next.
        if self._asked:
            return
        while self._waiters and len(self._asked) < _WEIGHTS_MAX:
            waiter = self._waiters.popleft()
            if not waiter[1].done():
                self._asked.append(waiter)
        if self._asked:
            self._send(Lease(self._text, [weight for weight, _ in self._asked]))

    def _pass_on(self, weight: float) -> None:
        """Give a grant whose waiter is gone to the first one not yet asked for."""
        while self._waiters and self._waiters[0][1].done():
            self._waiters.popleft()
        # Not more than was granted, and to the first only: no waiter is overtaken.
        if self._waiters and self._waiters[0][0] <= weight:
            needed, future = self._waiters.popleft()
            future.set_result(None)
            weight -= needed
        self._use(weight)

    def _use(self, weight: float) -> None:
        """Tell the parent, at the end of this turn of the loop, with others."""
        if weight and not self._used:
            asyncio.get_running_loop().call_soon(self._tell_used)
        self._used += weight

    def _tell_used(self) -> None:
        used, self._used = self._used, 0.0
        if not self._is_closed:
            self._send(Used(self._text, used))


class RemoteLimits:
    """Finds a worker's limiters; the counterpart of `LimiterService`.

    Args:
        shipped: The limits that came with the job, in the parent's order.
        send: Sends a message to the parent.
    """

    def __init__(self, shipped: list[RateLimit], send: Send) -> None:
        self._send = send
        self._numbers = {id(limit): number for number, limit in enumerate(shipped)}
        # Kept alive, so that ids stay unique.
        self._shipped = shipped
        self._by_key: dict[tuple[int, str | None], RemoteLimiter] = {}
        # Not called here: the parent's own limiters tell it.
        self.on_exhausted: Callable[[RateLimit], None] | None = None

    def get(self, limit: RateLimit) -> Limiter:
        """Return the limiter for a limit.

        Raises:
            InvalidArgumentError: If it has no name and did not come with the job: then
                the other processes cannot know it.
        """
        number = self._numbers.get(id(limit), -1)
        if number < 0 and limit.name is None:
            raise InvalidArgumentError(
                "limit",
                "a limit without a name was made in a worker process",
                "Make it where the job is described, or give it a name.",
            )
        key = (-1, limit.name) if limit.name is not None else (number, None)
        known = self._by_key.get(key)
        if known is None:
            known = RemoteLimiter(limit, text_of(limit, number), self._send)
            self._by_key[key] = known
        return known

    def begin_attempt(self) -> None:
        """Forget what an older attempt has asked for: it is no longer granted."""
        for limiter in self._by_key.values():
            limiter.close()
        self._by_key.clear()

    def on_granted(self, message: Granted) -> None:
        """Take a grant of the parent."""
        text = message.limit
        key = (-1, text.name) if text.name is not None else (text.number, None)
        limiter = self._by_key.get(key)
        if limiter is None:
            return
        if message.is_refused:
            limiter.on_refused(message.count)
        else:
            limiter.on_granted(message.count)

    def close(self) -> None:
        """Close all limiters; at the end of the job."""
        for limiter in self._by_key.values():
            limiter.close()


class LimitDesk:
    """The parent's side: leases for workers, from the job's own limiters.

    Args:
        limiters: The job's.
        shipped: The limits that the workers know by number.
    """

    def __init__(self, limiters: Limiters, shipped: list[RateLimit]) -> None:
        self._limiters = limiters
        self._shipped = shipped
        self._tasks: dict[asyncio.Task[None], GrantTaker] = {}
        self._held: dict[GrantTaker, dict[RateLimiter, float]] = {}

    def on_lease(
        self,
        message: Lease,
        worker: GrantTaker,
        on_failed: Callable[[BaseException], None],
    ) -> None:
        """Grant a worker's leases as their time comes."""
        task = asyncio.get_running_loop().create_task(
            self._grant_all(message, worker, on_failed), name="rate limit of workers"
        )
        self._tasks[task] = worker
        task.add_done_callback(self._tasks.pop)

    def begin_attempt(self) -> None:
        """Grant nothing of what an older attempt has asked for."""
        for worker in {*self._tasks.values(), *self._held}:
            self.forget(worker)

    def forget(self, worker: GrantTaker) -> None:
        """Grant nothing of what a worker has asked for that is gone."""
        for task, asker in self._tasks.items():
            if asker is worker:
                task.cancel()
        # Nobody knows whether it has used them: if so, then not after this moment.
        for limiter, weight in self._held.pop(worker, {}).items():
            limiter.use(weight)

    def on_used(self, message: Used, worker: GrantTaker) -> None:
        """Count what a worker has used of its grants."""
        held = self._held.get(worker, {})
        limiter = self._limiter(message.limit)
        # Not more than was granted to it in this attempt.
        weight = min(message.weight, held.get(limiter, 0.0))
        if weight > 0:
            held[limiter] -= weight
            limiter.use(weight)

    def on_pause(self, message: Pause) -> None:
        """Pause a limit.

        Raises:
            InvalidArgumentError: If its name is known with other numbers.
        """
        self._limiter(message.limit).pause(message.delay_s)

    async def close(self) -> None:
        """Grant nothing any more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _grant_all(
        self,
        message: Lease,
        worker: GrantTaker,
        on_failed: Callable[[BaseException], None],
    ) -> None:
        batch = _Batch(worker, message.limit)
        try:
            limiter = self._limiter(message.limit)
            for place, weight in enumerate(message.weights):
                try:
                    await limiter.hold(weight)
                except BudgetExceededError:
                    # All that are left: a budget that refuses one refuses those after
                    # it.
                    batch.refuse(len(message.weights) - place)
                    return
                held = self._held.setdefault(worker, {})
                held[limiter] = held.get(limiter, 0.0) + weight
                batch.add()
        except IllegalStateError:
            # The job ends, and with it all waiters.
            return
        except Exception as error:  # noqa: BLE001 -- it fails the job
            on_failed(error)

    def _limiter(self, text: LimitText) -> RateLimiter:
        if 0 <= text.number < len(self._shipped):
            found = self._limiters.get(self._shipped[text.number])
        else:
            found = self._limiters.get(limit_from_text(text))
        assert isinstance(found, RateLimiter), "the parent has the real ones"
        return found


class _Batch:
    """Counts grants of one turn of the loop, to send them as one."""

    def __init__(self, worker: GrantTaker, limit: LimitText) -> None:
        self._worker = worker
        self._limit = limit
        self._count = 0

    def add(self) -> None:
        # At the end of this turn of the loop: grants that come together go together.
        if not self._count:
            asyncio.get_running_loop().call_soon(self._flush)
        self._count += 1

    def refuse(self, count: int) -> None:
        """Refuse all that are left, after those that were granted."""
        self._flush()
        self._worker.send(Granted(self._limit, count, is_refused=True))

    def _flush(self) -> None:
        count, self._count = self._count, 0
        if count:
            self._worker.send(Granted(self._limit, count))


def _closed() -> IllegalStateError:
    return IllegalStateError("the limiter is closed: its job has ended")
