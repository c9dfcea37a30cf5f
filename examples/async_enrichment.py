"""Orders get their prices from an HTTP service that has limits and bad days.

The service runs in this process, on loopback, but it is a real one. It counts calls in a
sliding window, and answers 429 with Retry-After beyond its limit. Once it is overloaded
and refuses all calls for a second. It has no price for some articles (404), and fails
for others (500). The pipeline keeps the limit, waits as long as the service says, repeats
calls that may succeed, and sends the other orders to a side output. At the end the
server's own log says whether that is true.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import httpx
from aiohttp import web

import aiomailbox as am

ORDERS = 300
LIMIT, WINDOW_S = 50, 0.5
# The server counts when calls arrive, the pipeline when they are sent. What is on its
# way between the two is at most CONCURRENCY: leave that out of the limit, and the
# server's count is kept whatever the network does.
CONCURRENCY = 10
RETRY_AFTER_S = 1
OVERLOADED_AT_CALL = 100
ATTEMPTS = 4


class Order(NamedTuple):
    number: int
    article: int


class PricedOrder(NamedTuple):
    number: int
    price: int


@dataclass(frozen=True, slots=True)
class Call:
    """A line of the server's log."""

    at_s: float
    article: int
    status: int


class PriceServer:
    """Serves prices on a free port of loopback; ``async with`` starts and stops it."""

    def __init__(self) -> None:
        self.log: list[Call] = []
        self.url = ""
        self._overloaded_until_s = 0.0
        app = web.Application()
        app.router.add_get("/prices/{article}", self._price)
        self._runner = web.AppRunner(app, access_log=None)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _price(self, request: web.Request) -> web.Response:
        article = int(request.match_info["article"])
        now_s = time.monotonic()
        status = self._decide(article, now_s)
        self.log.append(Call(now_s, article, status))
        await asyncio.sleep(0.01)
        if status == 200:
            return web.json_response({"price": 100 + article})
        headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 429 else {}
        return web.Response(status=status, headers=headers)

    def _decide(self, article: int, now_s: float) -> int:
        if len(self.log) == OVERLOADED_AT_CALL:
            self._overloaded_until_s = now_s + RETRY_AFTER_S
        recent = sum(call.at_s > now_s - WINDOW_S for call in self.log)
        if now_s < self._overloaded_until_s or recent >= LIMIT:
            return 429
        if article % 100 == 13:
            return 404
        return 500 if article % 100 == 77 else 200

    def most_calls_in_a_window(self) -> int:
        """Return the most calls that any window of ``WINDOW_S`` saw, as logged."""
        times = [call.at_s for call in self.log]
        most = first = 0
        for last, at_s in enumerate(times):
            while times[first] <= at_s - WINDOW_S:
                first += 1
            most = max(most, last - first + 1)
        return most

    def calls_that_came_too_early(self) -> int:
        """Return how many calls did not wait as long as a 429 had asked them to."""
        refused_at: dict[int, float] = {}
        early = 0
        for call in self.log:
            early += call.at_s < refused_at.get(call.article, -math.inf) + RETRY_AFTER_S
            if call.status == 429:
                refused_at[call.article] = call.at_s
        return early


class PriceClient:
    """Asks for prices; the connections are opened once, when the task starts."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: httpx.AsyncClient | None = None

    async def open(self, context: Any) -> None:
        self._client = httpx.AsyncClient(base_url=self._url, trust_env=False)

    async def __call__(self, order: Order) -> PricedOrder:
        assert self._client is not None
        response = await self._client.get(f"/prices/{order.article}")
        # The error carries the response, and that its Retry-After.
        response.raise_for_status()
        return PricedOrder(order.number, response.json()["price"])

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def may_succeed_later(error: BaseException) -> bool:
    """Whether a failure is worth another attempt: not if the order itself is wrong."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code == 429 or error.response.is_server_error
    return isinstance(error, httpx.TransportError | TimeoutError)


FAILED = am.OutputTag("failed")


def enrich(
    orders: am.DataStream[Order], url: str
) -> tuple[am.DataStream[PricedOrder], am.DataStream[am.DeadLetter]]:
    """Return the orders with their prices, and those without a price."""
    priced = orders.map_async(
        PriceClient(url),
        concurrency=CONCURRENCY,
        timeout=10.0,
        deadline=60.0,
        retry=am.Retry(ATTEMPTS, initial=0.05, retry_on=may_succeed_later),
        limit=am.RateLimit(LIMIT - CONCURRENCY, per=WINDOW_S),
        on_error=am.dead_letter(FAILED),
    ).name("prices")
    return priced, priced.get_side_output(FAILED)


async def main(orders: int = ORDERS) -> PriceServer:
    """Enrich, print what happened, and return the server with its log."""
    env = am.StreamExecutionEnvironment()
    prices: list[PricedOrder] = []
    letters: list[am.DeadLetter] = []
    async with PriceServer() as server:
        rows = [Order(number, article=number) for number in range(orders)]
        priced, failed = enrich(env.from_collection(rows), server.url)
        priced.sink_to(prices.append)
        failed.sink_to(letters.append)
        async with env.start("enrichment") as job:
            result = await job.result()
    metrics = job.metrics().operators["prices"]
    answers = Counter(call.status for call in server.log)
    print(f"{orders} orders, {len(prices)} priced in {result.duration_s:.1f} s")
    print(f"calls: {metrics['calls']}, of which retries: {metrics['retries']}")
    print(f"the server saw {len(server.log)} calls: {dict(sorted(answers.items()))}")
    print(
        f"most calls in any {WINDOW_S} s: {server.most_calls_in_a_window()}, "
        f"allowed: {LIMIT}"
    )
    print(f"calls before Retry-After was over: {server.calls_that_came_too_early()}")
    print(f"dead letters: {len(letters)}")
    for letter in letters[:3]:
        reason = letter.error.splitlines()[0]
        print(f"  {letter.record} after {letter.attempts} attempts: {reason}")
    return server


if __name__ == "__main__":
    asyncio.run(main())
