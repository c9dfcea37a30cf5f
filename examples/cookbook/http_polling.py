"""Poll an HTTP service, and go on where it stopped.

The service returns the events after a number. The generator gets the offset of the last
record that the job has processed. So after a failure the job asks for the next event,
and sees each event once.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from aiohttp import web
from aiohttp.typedefs import Handler

import aiomailbox as am


async def events(request: web.Request) -> web.Response:
    """Answer with at most two events after the number in the query."""
    after = int(request.query["after"])
    return web.json_response([{"id": n} for n in range(after + 1, after + 3) if n < 5])


async def main() -> None:
    async with serving(events) as url:

        async def poll(offset: int | None) -> AsyncIterator[dict[str, Any]]:
            last = -1 if offset is None else offset
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                while True:
                    response = await client.get("/", params={"after": last})
                    for event in response.json():
                        yield event
                        last = event["id"]
                    await asyncio.sleep(0.01)

        env = am.StreamExecutionEnvironment()
        stream = env.from_async_iterable(poll, offset="id", name="poll")
        # It never ends by itself: this takes what it needs and lets the job end.
        print(await stream.take(5))


@asynccontextmanager
async def serving(handler: Handler) -> AsyncGenerator[str]:
    """Run a handler on a free port of this machine."""
    app = web.Application()
    app.router.add_get("/", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
