"""Show results to browsers as they come: server-sent events.

The job runs beside the web server, on the same event loop. Every browser gets a queue
of its own. A browser that reads too slowly misses results, and does not stop the job.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
from aiohttp import web

import aiomailbox as am


class Broadcast:
    """Hands each record to all listeners."""

    def __init__(self) -> None:
        self.listeners: set[asyncio.Queue[Any]] = set()

    def __call__(self, record: Any) -> None:
        for queue in self.listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(record)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Send what comes from now on."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        queue: asyncio.Queue[Any] = asyncio.Queue(maxsize=100)
        self.listeners.add(queue)
        try:
            while True:
                await response.write(f"data: {await queue.get()}\n\n".encode())
        finally:
            self.listeners.discard(queue)


async def ticks() -> AsyncIterator[int]:
    """Yield a number now and then, for ever."""
    number = 0
    while True:
        yield number
        number += 1
        await asyncio.sleep(0.01)


async def main() -> None:
    broadcast = Broadcast()
    env = am.StreamExecutionEnvironment()
    squares = env.from_async_iterable(ticks).map(lambda n: n * n)
    squares.sink_to(broadcast)

    app = web.Application()
    app.router.add_get("/", broadcast.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = "http://{}:{}".format(*runner.addresses[0][:2])
    try:
        async with env.start("squares") as job:
            # A browser: here it stops after three events.
            seen: list[int] = []
            async with (
                httpx.AsyncClient(trust_env=False) as client,
                client.stream("GET", url) as response,
            ):
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        seen.append(int(line.removeprefix("data: ")))
                    if len(seen) == 3:
                        break
            roots = [round(square**0.5) for square in seen]
            print("three in a row:", roots == [roots[0] + n for n in range(3)])
            await job.stop()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
