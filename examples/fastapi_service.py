"""A pipeline that lives in a web service: it starts and ends with the application.

Readings are posted, a keyed pipeline keeps running totals, and what it knows can be
asked for. The inbox between the two is bounded: when the pipeline cannot follow, the
service says 503 instead of filling the memory.

Run it with ``uvicorn examples.fastapi_service:app``; `main` shows it without a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

import aiomailbox as am

INBOX_MAX = 100


class Reading(BaseModel):
    """A value that a sensor posts."""

    sensor: str
    value: float


class Total(NamedTuple):
    """The readings of a sensor so far."""

    sensor: str
    readings: int
    mean: float
    highest: float


class Inbox:
    """A bounded queue between the requests and the pipeline."""

    def __init__(self, size: int = INBOX_MAX) -> None:
        self._queue: asyncio.Queue[Reading | None] = asyncio.Queue(size)

    def put(self, reading: Reading) -> bool:
        """Take a reading; False if there is no room."""
        if self._queue.full():
            return False
        self._queue.put_nowait(reading)
        return True

    async def close(self) -> None:
        """End the stream after what is in the inbox."""
        await self._queue.put(None)

    async def readings(self) -> AsyncIterator[Reading]:
        while (reading := await self._queue.get()) is not None:
            yield reading


class RunningTotal:
    """Adds up the readings of one sensor."""

    def create_accumulator(self) -> Total:
        return Total("", 0, 0.0, float("-inf"))

    def add(self, reading: Reading, total: Total) -> Total:
        count = total.readings + 1
        mean = total.mean + (reading.value - total.mean) / count
        return Total(reading.sensor, count, mean, max(total.highest, reading.value))

    def get_result(self, total: Total) -> Total:
        return total

    def merge(self, a: Total, b: Total) -> Total:
        count = a.readings + b.readings
        mean = (a.mean * a.readings + b.mean * b.readings) / count
        return Total(a.sensor or b.sensor, count, mean, max(a.highest, b.highest))


@am.pipeline
def running_totals(readings: am.DataStream[Reading]) -> am.DataStream[Total]:
    return readings.key_by("sensor").aggregate(RunningTotal()).name("totals")


class Service:
    """The objects that requests and the pipeline share."""

    def __init__(self, inbox: Inbox, job: am.JobClient, totals: dict[str, Total]):
        self.inbox = inbox
        self.job = job
        self.totals = totals


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Run the pipeline as long as the application runs; let it finish what came in."""
    inbox = Inbox()
    totals: dict[str, Total] = {}
    env = am.StreamExecutionEnvironment().configure(buffer_timeout=am.millis(0))
    stream = env.from_async_iterable(inbox.readings, name="inbox")
    stream.through(running_totals).sink_to(
        lambda total: totals.update({total.sensor: total})
    )
    async with env.start("readings") as job:
        app.state.service = Service(inbox, job, totals)
        yield
        await inbox.close()
        await job.result()


app = FastAPI(title="Readings", lifespan=lifespan)


@app.post("/readings", status_code=202)
async def post_reading(reading: Reading, request: Request) -> dict[str, str]:
    """Accept a reading; it will be in the totals in a moment."""
    service: Service = request.app.state.service
    if service.job.state not in {am.JobState.CREATED, am.JobState.RUNNING}:
        raise HTTPException(503, f"the pipeline is {service.job.state.value}")
    if not service.inbox.put(reading):
        raise HTTPException(503, "too busy", headers={"Retry-After": "1"})
    return {"status": "accepted"}


@app.get("/totals/{sensor}")
async def get_total(sensor: str, request: Request) -> dict[str, Any]:
    """Return what is known about a sensor now."""
    service: Service = request.app.state.service
    if sensor not in service.totals:
        raise HTTPException(404, f"no readings of {sensor!r} yet")
    return service.totals[sensor]._asdict()


@app.get("/metrics")
async def get_metrics(request: Request) -> dict[str, Any]:
    """Return the state of the job and the metrics of its operators."""
    service: Service = request.app.state.service
    metrics = service.job.metrics()
    return {"state": metrics.state.value, "operators": metrics.operators}


async def main() -> None:
    """Post and ask without a server: httpx speaks to the application itself."""
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://service") as client,
    ):
        for value in (20.5, 21.5, 24.0):
            reading = {"sensor": "attic", "value": value}
            (await client.post("/readings", json=reading)).raise_for_status()
        await asyncio.sleep(0.1)
        print((await client.get("/totals/attic")).json())
        metrics = (await client.get("/metrics")).json()
        print(metrics["state"], metrics["operators"]["totals"]["num_records_in"])


if __name__ == "__main__":
    asyncio.run(main())
