"""Structured Streaming into a web service: Spark reads, the service answers.

A query of Spark's follows a directory in which files arrive. Its micro-batches stream into
the service's pipeline, which keeps a running total per customer, and requests ask for what
it knows. A micro-batch is done for Spark when a checkpoint of the pipeline holds it: kill
the service at any moment, start it again, and each order counts once.

Run it with ``python -m examples.spark_stream_service``; the service runs in the program
itself, and files arrive while it does.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI, HTTPException, Request

import aiomailbox as am
from aiomailbox.connectors.spark import local_session

SCHEMA = "customer string, amount double"


def arrivals(spark: Any, directory: Path) -> Any:
    """Return a streaming DataFrame of the files of a directory, old and new."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    return reader.json(str(directory))


def with_total(orders: am.DataStream[Any]) -> am.DataStream[Any]:
    """Return a stream of each customer's total, whenever it changes."""
    totals = am.aggregates(orders=am.count(), total=am.sum_("amount"))
    return orders.key_by("customer").aggregate(totals).uid("totals")


def make_app(df: Any, place: Path) -> FastAPI:
    """Return a service over a streaming DataFrame.

    Args:
        df: The streaming DataFrame.
        place: A directory for checkpoints, Spark's and the pipeline's.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        known: dict[str, Any] = {}
        env = am.StreamExecutionEnvironment().configure(buffer_timeout=am.millis(0))
        # Spark's checkpoints and the job's belong together: both outlive the service.
        env.enable_checkpointing(am.seconds(0.5), directory=place / "job")
        source = am.SparkStreamSource(df, place / "query")
        orders = env.from_source(source, name="orders").uid("orders")
        with_total(orders).sink_to(lambda row: known.update({row.key: row}))
        async with env.start("orders", restore_from="latest") as job:
            app.state.known, app.state.job = known, job
            yield
            await job.cancel()

    app = FastAPI(title="Orders", lifespan=lifespan)

    @app.get("/totals/{customer}")
    async def get_total(customer: str, request: Request) -> dict[str, Any]:
        known = request.app.state.known
        if customer not in known:
            raise HTTPException(404, f"no orders of {customer!r} yet")
        row = known[customer]
        return {"orders": row.orders, "total": row.total}

    return app


def arrive(directory: Path, name: str, orders: list[tuple[str, float]]) -> None:
    """Let a file with orders appear, whole."""
    rows = [{"customer": customer, "amount": amount} for customer, amount in orders]
    draft = directory / f".{name}"
    draft.write_text("\n".join(map(json.dumps, rows)))
    draft.rename(directory / f"{name}.json")


async def ask(client: httpx.AsyncClient, customer: str, orders: int) -> Any:
    """Ask for a customer's total until it has so many orders."""
    while True:
        answer = await client.get(f"/totals/{customer}")
        if answer.status_code == 200 and answer.json()["orders"] >= orders:
            return answer.json()
        await asyncio.sleep(0.1)


@asynccontextmanager
async def client_of(app: FastAPI) -> AsyncGenerator[httpx.AsyncClient]:
    """Run a service in this program, and yield who can ask it."""
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://service") as client,
    ):
        yield client


async def main() -> None:
    """Run the service twice over the same files: each order counts once."""
    spark = local_session("orders")
    with tempfile.TemporaryDirectory() as folder:
        place, inbox = Path(folder), Path(folder) / "inbox"
        inbox.mkdir()
        arrive(inbox, "1", [("ada", 10.0), ("bob", 5.0)])
        async with client_of(make_app(arrivals(spark, inbox), place)) as client:
            print("ada:", await ask(client, "ada", 1))
            arrive(inbox, "2", [("ada", 2.5)])
            print("ada:", await ask(client, "ada", 2))
        arrive(inbox, "3", [("ada", 1.0), ("bob", 1.0)])
        async with client_of(make_app(arrivals(spark, inbox), place)) as client:
            print("ada:", await ask(client, "ada", 3))
            print("bob:", await ask(client, "bob", 2))


if __name__ == "__main__":
    asyncio.run(main())
