"""A running job's results for any number of browsers, as server-sent events.

Readings are put into an inbox by one handler. The job sums them up by sensor, and whoever
opens ``/changes`` sees every change from then on. A browser that is too slow misses the
oldest ones; the job does not wait for it.

Run it: ``uvicorn --timeout-graceful-shutdown 5 examples.server_sent_events:app``, which
ends open streams when it is told to end. Then ``curl -N localhost:8000/changes`` and
``curl -X POST 'localhost:8000/readings?sensor=attic&value=3'``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

import aiomailbox as am


class Reading(NamedTuple):
    sensor: str
    value: float


class Highest(NamedTuple):
    sensor: str
    value: float


def higher(left: Reading, right: Reading) -> Reading:
    return max(left, right, key=lambda reading: reading.value)


class Service:
    """The job, what is put into it, and what is read from it."""

    inbox: am.Inbox[Reading]
    job: am.JobClient
    changes: am.DataStream[Highest]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    service = app.state.service = Service()
    env = am.StreamExecutionEnvironment()
    service.inbox = am.Inbox(size=1_000)
    readings = env.from_source(service.inbox, name="readings", output_type=Reading)
    highest = readings.key_by("sensor").reduce(higher).name("highest")
    service.changes = highest.map(lambda reading: Highest(*reading)).publish()
    async with env.start("readings") as service.job:
        yield
        service.inbox.close()
        await service.job.result()


app = FastAPI(lifespan=lifespan)


@app.post("/readings", status_code=202)
async def put(sensor: str, value: float) -> None:
    # Waits while the inbox is full: the clients of this server feel the backpressure.
    await app.state.service.inbox.put(Reading(sensor, value))


@app.get("/changes")
async def changes() -> StreamingResponse:
    service: Service = app.state.service
    # From here on: what comes before the response begins is not lost.
    subscription = service.job.subscribe(service.changes, size=100)

    async def events() -> AsyncIterator[str]:
        async with subscription:
            async for change in subscription:
                yield f"data: {json.dumps(change._asdict())}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def main() -> None:
    async with lifespan(app):
        response = await changes()
        for sensor, value in [("attic", 20.0), ("cellar", 9.0), ("attic", 24.0)]:
            await put(sensor, value)
        seen = 0
        async for event in response.body_iterator:
            print(str(event).strip())
            seen += 1
            if seen == 3:
                break
        await asyncio.sleep(0)


if __name__ == "__main__":
    am.run(main())
