"""A job that crashes may hit anywhere: started again, it ends with the same results.

Run as a program: ``python -m tests.crash.program DIRECTORY DATABASE SOCKET WORKERS``. Its
input is a directory of Parquet files; each row is looked up by a call to a server that
counts calls by key, at the socket; windows go into Parquet, looked-up rows into a database.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import aiomailbox as am

CONCURRENCY = 8
SUBTASKS = 2


class Row(NamedTuple):
    """A row of the input; event times are not quite in order."""

    id: int
    user: str
    price: int
    at_ms: int


class Priced(NamedTuple):
    """A row with what the server said of it."""

    id: int
    user: str
    total: int
    at_ms: int


class Lookup:
    """Asks the server; one connection a call."""

    def __init__(self, socket: str) -> None:
        self.socket = socket

    async def __call__(self, row: Row) -> Priced:
        call = am.current_call()
        reader, writer = await asyncio.open_unix_connection(self.socket)
        try:
            said = {"key": str(call.idempotency_key), "price": row.price}
            writer.write(json.dumps(said).encode() + b"\n")
            answer = json.loads(await reader.readline())
        finally:
            writer.close()
        return Priced(row.id, row.user, answer["total"], row.at_ms)


def build(
    env: am.StreamExecutionEnvironment, directory: Path, database: str, socket: str
) -> None:
    """Describe the job."""
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.seconds(2))
    rows = env.from_source(
        am.FileSource(directory / "input", "parquet", records=Row, batch_rows=100),
        strategy.with_timestamp_assigner("at_ms"),
        name="rows",
    ).uid("rows")
    priced = rows.map_async(
        Lookup(socket), concurrency=CONCURRENCY, journal=True, id="id"
    ).uid("lookup")
    priced.sink_to(am.SqlSink(database, "priced", columns=["id", "total"])).uid("sql")
    (
        priced.key_by("user")
        .window(am.TumblingEventTimeWindows.of(am.seconds(10)))
        .aggregate(am.aggregates(count=am.count(), total=am.sum_("total")))
        .uid("windows")
        .sink_to(am.ParquetSink(directory / "windows"))
        .uid("parquet")
    )


async def main(directory: Path, database: str, socket: str, workers: int) -> None:
    """Run the job, from the newest checkpoint if there is one, and once."""
    env = am.StreamExecutionEnvironment(parallelism=SUBTASKS)
    env.enable_checkpointing(am.seconds(0.1), directory=directory / "checkpoints")
    env.configure(restart=am.restart.fixed_delay(100, 0.01))
    if workers:
        env.configure(deployment=am.Processes(workers))
    build(env, directory, database, socket)
    async with env.start("crash", restore_from="latest", if_finished="return") as job:
        result: Any = await job.result()
    print(result.duration_s, job.restarts)


if __name__ == "__main__":
    _, place, database, socket, workers = sys.argv
    asyncio.run(main(Path(place), database, socket, int(workers)))
