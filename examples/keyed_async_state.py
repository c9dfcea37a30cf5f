"""Payments are checked per user, by the answers of a service and by state.

The function asks a slow risk service about each payment. The answer alone decides
nothing: the function also remembers, per user, the payments of the last minute and
whether the user is blocked. It decides the payments of a user one after the other, so
that two of them never see the same history. Payments of different users wait for the
service at the same time. The function blocks a user with too many payments in a minute.
Ten minutes later, in event time, a timer or the next payment lifts the block, whichever
comes first: so what it decides does not depend on when watermarks come.

The service fails now and then. The job then repeats the payment, from the history before
it: no change of a failed attempt stays.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Any, NamedTuple

import aiomailbox as am

MINUTE_MS = 60_000
PAYMENTS_PER_MINUTE = 3
BLOCKED_FOR_MS = 10 * MINUTE_MS
LARGE = 500
CONCURRENCY = 50


class Payment(NamedTuple):
    user: str
    number: int
    amount: int
    time_ms: int


class Decision(NamedTuple):
    user: str
    number: int
    verdict: str


class RiskService:
    """Says how risky an amount is; counts who waits for it."""

    def __init__(self) -> None:
        self.opened = 0
        self.asked = 0
        self.failed: set[Payment] = set()
        self.at_once = 0
        self._waiting: Counter[str] = Counter()
        self.most_of_one_user = 0

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncGenerator[RiskService]:
        """Open a connection, which takes a moment."""
        await asyncio.sleep(0.01)
        self.opened += 1
        yield self

    async def risk(self, payment: Payment) -> float:
        """Return a number from 0 to 1; a tenth of the payments fail at first."""
        self.asked += 1
        fails = payment.number % 10 == 0 and payment not in self.failed
        self._waiting[payment.user] += 1
        self.at_once = max(self.at_once, self._waiting.total())
        self.most_of_one_user = max(self.most_of_one_user, self._waiting[payment.user])
        try:
            await asyncio.sleep(0.02)
        finally:
            self._waiting[payment.user] -= 1
        if fails:
            self.failed.add(payment)
            raise ConnectionError("the risk service is not there")
        return min(payment.amount / 1_000, 1.0)


# The graph holds names only; this is what the name stands for in this process.
SERVICE = RiskService()


class CheckPayments(am.KeyedAsyncProcessFunction):
    """Decides about the payments of each user."""

    def open(self, context: Any) -> Any:
        state = context.keyed_state
        self.recent = state.get_list(am.ListStateDescriptor("recent", int))
        self.blocked_until = state.get_value(am.ValueStateDescriptor("until", int))
        # Entered now, once a subtask, and left at the end; see context.resource.
        return SERVICE.connect()

    async def process_element(self, payment: Payment, context: Any, out: Any) -> None:
        until = self.blocked_until.value()
        if until is not None and payment.time_ms < until:
            out.collect(Decision(payment.user, payment.number, "blocked"))
            return
        if until is not None:
            # The payment has overtaken the watermark that would have fired the timer.
            context.timer_service.delete_event_time_timer(until)
            self.free(payment.user, out)
        since_ms = payment.time_ms - MINUTE_MS
        recent = [time_ms for time_ms in self.recent.get() if time_ms > since_ms]
        self.recent.update([*recent, payment.time_ms])
        if len(recent) >= PAYMENTS_PER_MINUTE:
            until = payment.time_ms + BLOCKED_FOR_MS
            self.blocked_until.update(until)
            context.timer_service.register_event_time_timer(until)
            out.collect(Decision(payment.user, payment.number, "too many"))
            return
        risk = await context.resource.risk(payment)
        verdict = "refused" if risk > LARGE / 1_000 else "accepted"
        out.collect(Decision(payment.user, payment.number, verdict))

    async def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        self.free(context.current_key, out)

    def free(self, user: str, out: Any) -> None:
        self.blocked_until.clear()
        out.collect(Decision(user, 0, "free again"))


def check(payments: am.DataStream[Payment]) -> am.DataStream[Decision]:
    """Return a decision for each payment, and who is free again."""
    in_time = am.WatermarkStrategy.for_monotonous_timestamps()
    return (
        payments.assign_timestamps_and_watermarks(
            in_time.with_timestamp_assigner(lambda payment, _: payment.time_ms)
        )
        .key_by("user")
        .process_async(
            CheckPayments(),
            concurrency=CONCURRENCY,
            timeout=5.0,
            retry=am.Retry(4, initial=0.01, retry_on=ConnectionError),
        )
        .name("check")
    )


def payments(users: int) -> list[Payment]:
    """Every user pays every 40 s; user 0 does it every 10 s, and large sums at times."""
    found: list[Payment] = []
    for number in range(1, 121):
        for user in range(users):
            pace = 1 if user == 0 else 4
            if number % pace == 0:
                amount = 900 if number % 24 == 0 else 20
                found.append(Payment(f"user{user}", number, amount, number * 10_000))
    return found


async def arriving(rows: list[Payment]) -> AsyncIterator[Payment]:
    """Yield payments with a short pause after each minute of event time."""
    minute = 0
    for payment in rows:
        if payment.time_ms // MINUTE_MS > minute:
            minute = payment.time_ms // MINUTE_MS
            await asyncio.sleep(0.01)
        yield payment


async def main(users: int = 40) -> list[Decision]:
    """Check, print what happened, and return the decisions."""
    env = am.StreamExecutionEnvironment()
    rows = payments(users)
    source = env.from_async_iterable(partial(arriving, rows))
    decisions = await check(source).collect()
    print(f"{len(rows)} payments of {users} users")
    for verdict, count in sorted(Counter(d.verdict for d in decisions).items()):
        print(f"  {verdict}: {count}")
    print(f"the service was opened {SERVICE.opened} time(s)")
    print(
        f"  and asked {SERVICE.asked} times, of which it failed {len(SERVICE.failed)}"
    )
    print(f"  by {SERVICE.at_once} payments at once at most")
    print(f"  and by {SERVICE.most_of_one_user} of one user")
    return decisions


if __name__ == "__main__":
    asyncio.run(main())
