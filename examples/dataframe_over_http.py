"""A DataFrame of any size over HTTP: Arrow batches as Spark computes them.

The service streams the rows of a DataFrame through a pipeline, and its answer is an Arrow
stream that grows while Spark works. Nothing holds all of it: Spark computes a partition
when the pipeline asks for it, the pipeline asks when the client reads, and a client that
goes away ends the Spark job.

Run it with ``python -m examples.dataframe_over_http``.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pyarrow as pa
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

import aiomailbox as am
from aiomailbox.connectors.spark import local_session

ROWS = 10_000_000
PARTITIONS = 20
# What Spark's Java process may have, and what one result of it may take.
MEMORY: dict[str, Any] = {
    "spark.driver.memory": "1g",
    "spark.driver.maxResultSize": "256m",
}


def with_discount(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Do something with a batch, column by column."""
    price = batch.column("price").to_numpy()
    return batch.append_column("discounted", pa.array(price * 0.9))


async def arrow_stream(batches: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[bytes]:
    """Yield an Arrow IPC stream, a piece for each batch."""
    schema: pa.Schema | None = None
    async for batch in batches:
        if schema is None:
            schema = batch.schema
            yield schema.serialize().to_pybytes()
        yield batch.serialize().to_pybytes()


def make_app(df: Any) -> FastAPI:
    """Return a service that gives away a DataFrame."""
    app = FastAPI()

    @app.get("/orders")
    async def orders() -> StreamingResponse:
        env = am.StreamExecutionEnvironment()
        source = am.SparkSource(df, records="batch")
        stream = env.from_source(source, name="orders").map(with_discount)
        body = arrow_stream(stream.arrow_batches())
        return StreamingResponse(body, media_type="application/vnd.apache.arrow.stream")

    return app


@asynccontextmanager
async def served(app: FastAPI) -> AsyncGenerator[str]:
    """Run a service on a port of this machine, and yield its address."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True


async def fetch(url: str) -> tuple[int, int]:
    """Read the answer piece by piece; return how many batches and bytes it had."""
    batches = size_bytes = 0
    pending = bytearray()
    async with (
        httpx.AsyncClient(timeout=None) as client,
        client.stream("GET", url) as response,
    ):
        response.raise_for_status()
        async for piece in response.aiter_bytes():
            size_bytes += len(piece)
            pending += piece
            batches += take_batches(pending)
    return batches, size_bytes


def take_batches(pending: bytearray) -> int:
    """Remove the Arrow messages that have arrived whole; return the batches in them."""
    batches = position = 0
    with pa.BufferReader(bytes(pending)) as source:
        while True:
            try:
                message = pa.ipc.read_message(source)
            except (EOFError, OSError, pa.ArrowInvalid):
                break
            batches += message.type == "record batch"
            position = source.tell()
    del pending[:position]
    return batches


def peak_mib() -> int:
    """Return the most memory that this process ever had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


async def main(rows: int = ROWS) -> tuple[int, int]:
    """Serve a DataFrame to a client in the same program; print what it took."""
    spark = local_session("dataframe over http", **MEMORY)
    df = spark.range(0, rows, 1, PARTITIONS).selectExpr(
        "id", "concat('customer-', id % 1000) AS customer", "id * 0.01D AS price"
    )
    before, started_s = peak_mib(), time.monotonic()
    async with served(make_app(df)) as url:
        batches, size_bytes = await fetch(f"{url}/orders")
    took_s = time.monotonic() - started_s
    print(f"{rows:,} rows in {batches:,} batches, {size_bytes / 2**20:.0f} MiB")
    print(f"in {took_s:.0f} s, {rows / took_s:,.0f} rows/s")
    print(f"this process, with the client in it, grew by {peak_mib() - before} MiB")
    return batches, size_bytes


if __name__ == "__main__":
    asyncio.run(main())
