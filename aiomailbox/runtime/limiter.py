"""Rate limits of a job: one queue for all callers that share a limit.

Theory of operation: leases are granted strictly in the order asked for; a heavy one at
the head holds lighter ones behind it back, so that it is not overtaken for ever. A grant
reserves its units; they count as used when the waiter really goes on, so that a busy
loop between the two cannot push uses of different windows together.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from aiomailbox.clock import Clock
from aiomailbox.errors import (
    BudgetExceededError,
    CorruptStreamError,
    IllegalStateError,
    InvalidArgumentError,
)
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.operators.core.context import Limiter
from aiomailbox.policies.rate_limit import RateLimit, RateUsage, RateWindow
from aiomailbox.signatures import check_number

_Waiter = tuple[float, "asyncio.Future[None]"]


class RateLimiter:
    """A `Limiter` of one loop: leases in order, at most one timer.

    Args:
        limit: What it allows.
        clock: The job's clock.

    Concept:
        A sliding window; see `RateWindow`.

    Example:
        >>> import asyncio
        >>> from aiomailbox.clock import SystemClock
        >>> async def main():
        ...     limiter = RateLimiter(RateLimit(100), SystemClock())
        ...     await limiter.lease(60)
        ...     return limiter.waiting
        >>> asyncio.run(main())
        0
    """

    def __init__(self, limit: RateLimit, clock: Clock) -> None:
        self.limit: RateLimit = limit
        self._clock = clock
        self._window = RateWindow(limit)
        self._waiters: deque[_Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._refused_s = -math.inf
        self._is_exhausted = False
        self.on_exhausted: Callable[[RateLimit], None] | None = None

    @property
    def waiting(self) -> int:
        """How many leases are waiting."""
        return len(self._waiters)

    @property
    def used(self) -> float:
        """How many units have been used, also before the job was started again."""
        return self._window.total

    @property
    def free(self) -> float:
        """Units that may be used now."""
        return self._window.free(self._clock.monotonic())

    def snapshot(self) -> RateUsage:
        """Return how far the limit is used."""
        return self._window.snapshot(self._clock.monotonic())

    def restore(self, usage: RateUsage, elapsed_s: float) -> None:
        """Go on from a snapshot that was taken ``elapsed_s`` seconds ago."""
        self._window.restore(usage, self._clock.monotonic(), elapsed_s)

    async def lease(self, weight: float = 1.0) -> None:
        """Wait until ``weight`` more units may be used; cancelling takes none.

        Raises:
            BudgetExceededError: If that is more than the budget has left.
            InvalidArgumentError: If ``weight`` can never be granted.
            IllegalStateError: If the limiter has been closed.
        """
        now_s = self._clock.monotonic()
        if self._hold_now(weight, now_s):
            self._window.use(weight, now_s)
            return
        await self._wait(weight)
        # Counted as used now and not when it was granted: the loop may have been busy
        # in between.
        self.use(weight)

    async def hold(self, weight: float) -> None:
        """Wait for ``weight`` units of somebody who will `use` them later.

        Raises:
            As `lease`.
        """
        if not self._hold_now(weight, self._clock.monotonic()):
            await self._wait(weight)

    def use(self, weight: float) -> None:
        """Count units that were held as used now."""
        self._window.use(weight, self._clock.monotonic())
        self._grant()

    def pause(self, delay_s: float) -> None:
        """Grant nothing for ``delay_s`` seconds (a server's Retry-After).

        A first refusal holds nothing back where the limit says ``on_refusal="call"``.
        """
        check_number(delay_s, "delay_s", minimum=0)
        now_s = self._clock.monotonic()
        refused_s, self._refused_s = self._refused_s, now_s
        if self.limit.on_refusal == "call" and now_s - refused_s > self.limit.per_s:
            return
        # The timer that is armed finds the pause when it fires, and waits on.
        self._window.pause(now_s + delay_s)

    def close(self) -> None:
        """Refuse all leases from now on, those that wait included."""
        self._closed = True
        self._disarm()
        # Those that are being cancelled take themselves out.
        leaving = deque(waiter for waiter in self._waiters if waiter[1].cancelled())
        for _, future in self._waiters:
            if not future.cancelled():
                future.set_exception(_closed())
        self._waiters = leaving

    def _hold_now(self, weight: float, now_s: float) -> bool:
        """Hold units if no waiter is ahead, and there is room; say whether."""
        self.limit.check_weight(weight)
        self._require_open()
        self._require_budget(weight)
        # Without a future, which would cost ten times as much.
        if self._waiters or self._window.delay_s(weight, now_s) != 0:
            return False
        self._window.reserve(weight, now_s)
        return True

    async def _wait(self, weight: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (weight, future)
        self._waiters.append(waiter)
        self._grant()
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._waiters.remove(waiter)
            elif future.exception() is None:
                # Granted and cancelled in one turn of the loop: the units go to the
                # next one.
                self._window.release(weight)
            # It may have held up all others, at the head of the queue.
            self._grant()
            raise

    def _grant(self) -> None:
        """Wake the first waiters, as many as there are units; set the timer."""
        waiters, window = self._waiters, self._window
        if not waiters:
            return
        now_s = self._clock.monotonic()
        while waiters:
            weight, future = waiters[0]
            if future.cancelled():
                # It leaves in a moment, by itself, and comes back here.
                return
            # Strictly in order: lighter ones behind a heavy one wait, or it would wait
            # for ever.
            delay_s = window.delay_s(weight, now_s)
            if delay_s > 0:
                self._arm(delay_s)
                return
            waiters.popleft()
            try:
                self._require_budget(weight)
            except BudgetExceededError as error:
                future.set_exception(error)
                continue
            window.reserve(weight, now_s)
            future.set_result(None)

    def _arm(self, delay_s: float) -> None:
        # One timer for all: only the first one is ever waited for.
        self._disarm()
        # Infinity: the holder of the units reports when they are used or released.
        if math.isfinite(delay_s):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay_s, self._on_timer)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        self._grant()

    def _require_budget(self, weight: float) -> None:
        """Refuse a lease beyond the budget, and all leases after it."""
        budget = self.limit.budget
        if budget is None:
            return
        if not self._is_exhausted and self._window.committed + weight <= budget:
            return
        # Told once: the sources are stopped by it, and leases go on to fail.
        if not self._is_exhausted:
            self._is_exhausted = True
            if self.on_exhausted is not None:
                self.on_exhausted(self.limit)
        raise BudgetExceededError(self.limit.label, budget, self.limit.unit)

    def _require_open(self) -> None:
        if self._closed:
            raise _closed()


class LimiterService:
    """Finds the limiter that a limit means, for one job.

    Limits of one name mean one limiter. A limit without a name means a limiter of its
    own, shared by all that were given that very object: the subtasks of an operator.

    Args:
        clock: The job's clock.
        owners: The operators' ids and the limits that were given to them: what a limit
            without a name is found by when the job is started again.
    """

    def __init__(
        self, clock: Clock, owners: Iterable[tuple[str, RateLimit]] = ()
    ) -> None:
        self._clock = clock
        self._named: dict[str, RateLimiter] = {}
        # By identity; the limiter keeps the object alive, so that ids stay unique.
        self._unnamed: dict[int, RateLimiter] = {}
        self._owned = {owner: limit for owner, limit in owners if limit.name is None}
        self._restored: dict[str, RateUsage] = {}
        self._restored_at_ms = 0
        self.on_exhausted: Callable[[RateLimit], None] | None = None

    def snapshot(self) -> bytes:
        """Return how far all limits are used, for `restore` in another process."""
        usages = {
            f"name:{name}": limiter.snapshot() for name, limiter in self._named.items()
        }
        for owner, limit in self._owned.items():
            limiter = self._unnamed.get(id(limit))
            if limiter is not None:
                usages[f"operator:{owner}"] = limiter.snapshot()
        # Totals alone are the same at any time, and so are the bytes of two snapshots.
        goes_on = any(
            one.uses or one.even_in_s or one.paused_for_s for one in usages.values()
        )
        at_ms = self._clock.now_ms() if goes_on else 0
        return msgspec.json.encode(_Usages(at_ms, usages))

    def restore(self, snapshot: bytes) -> None:
        """Let limits resume from a snapshot; before any is used.

        Raises:
            CorruptStreamError: If it is none.
        """
        try:
            usages = msgspec.json.decode(snapshot, type=_Usages)
        except msgspec.MsgspecError as error:
            raise CorruptStreamError(f"no totals of limits: {error}") from error
        self._restored = usages.limits
        self._restored_at_ms = usages.at_ms
        for owner, limit in self._owned.items():
            if f"operator:{owner}" in usages.limits:
                limiter = self._new(limit, f"operator:{owner}")
                # A limit that several operators share is restored once.
                self._unnamed.setdefault(id(limit), limiter)

    def get(self, limit: RateLimit) -> Limiter:
        """Return the limiter for a limit.

        Raises:
            InvalidArgumentError: If the name is known with other numbers.
        """
        # By identity: two limits with equal numbers are two limits, unless they have a
        # name.
        if limit.name is None:
            key = id(limit)
            if key not in self._unnamed:
                self._unnamed[key] = self._new(limit)
            return self._unnamed[key]
        known = self._named.get(limit.name)
        if known is None:
            known = self._named[limit.name] = self._new(limit, f"name:{limit.name}")
        elif known.limit != limit:
            raise InvalidArgumentError(
                "limit",
                f"two limits are named {limit.name!r}: {known.limit} and {limit}",
                "Give them the same numbers, or different names.",
            )
        return known

    def close(self) -> None:
        """Close all limiters; at the end of the job."""
        for limiter in [*self._named.values(), *self._unnamed.values()]:
            limiter.close()

    def _tell_exhausted(self, limit: RateLimit) -> None:
        if self.on_exhausted is not None:
            self.on_exhausted(limit)

    def _new(self, limit: RateLimit, key: str = "") -> RateLimiter:
        limiter = RateLimiter(limit, self._clock)
        limiter.on_exhausted = self._tell_exhausted
        usage = self._restored.pop(key, None)
        if usage is not None:
            # A clock that was set back meanwhile makes a wait longer, never shorter.
            elapsed_ms = max(self._clock.now_ms() - self._restored_at_ms, 0)
            limiter.restore(usage, elapsed_ms / 1000)
        return limiter


class _Usages(msgspec.Struct):
    at_ms: int
    limits: dict[str, RateUsage]


def _closed() -> IllegalStateError:
    return IllegalStateError("the limiter is closed: its job has ended")


def limits_of(graph: JobGraph) -> list[tuple[str, RateLimit]]:
    """Return the limits that a job's operators were given, each with an operator's id."""
    return [
        (str(node.operator_id), limit)
        for node in graph.nodes
        if (limit := node.transformation.limit) is not None
    ]
