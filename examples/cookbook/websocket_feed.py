"""A websocket as a source, a new connection whenever it breaks.

An asynchronous generator is enough for a source. The job reads a bounded number of
messages ahead, so a slow pipeline slows the reading of the socket.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web

import aiomailbox as am


async def prices(request: web.Request) -> web.WebSocketResponse:
    """Send three prices, then break the connection off."""
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    for number in range(3):
        await socket.send_json({"price": 100 + number})
    return socket


async def feed(url: str) -> AsyncIterator[dict[str, Any]]:
    """Yield the messages of a feed, for ever."""
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.ws_connect(url) as socket:
                    async for message in socket:
                        yield message.json()
            except aiohttp.ClientError:
                await asyncio.sleep(1)


async def main() -> None:
    app = web.Application()
    app.router.add_get("/", prices)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = "http://{}:{}".format(*runner.addresses[0][:2])
    try:
        env = am.StreamExecutionEnvironment()
        messages = env.from_async_iterable(lambda: feed(url), name="feed")
        print(await messages.map(lambda message: message["price"]).take(5))
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
