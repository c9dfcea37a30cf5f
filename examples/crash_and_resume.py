"""A program that kills itself in mid-job, and goes on as if nothing had happened.

Spark writes the flights that left New York in 2013 once, as Parquet files. A job reads
them, asks a paid service about each, sums up delays per airport and day, and writes
Parquet again. In the middle it kills its own process with SIGKILL. Started again, it goes
on from its last checkpoint; calls that had been answered before are not made again,
because their results are in a journal. At the end the rows are compared with those of a
run that was left alone, and the service says which calls it was asked for twice.

Run it with ``python examples/crash_and_resume.py``; ``--help`` says more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any, NamedTuple

import aiomailbox as am

CONCURRENCY = 64
CRASHES = 2


class Flight(NamedTuple):
    """A row of the input."""

    id: int
    origin: str
    scheduled: datetime
    dep_delay: float | None


class Rated(NamedTuple):
    """A flight with what the service said of it."""

    id: int
    origin: str
    scheduled: datetime
    dep_delay: float
    rating: int


class Service:
    """Stands for a service that is paid by the call, and counts them by flight."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.keys: set[str] = set()

    async def on_call(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the calls of one connection, each after 2 ms."""
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                key, flight = json.loads(line)
                self.asked[str(flight)] += 1
                self.keys.add(key)
                await asyncio.sleep(0.002)
                writer.write(b"%d\n" % (flight % 5))
                await writer.drain()
        writer.close()

    @contextlib.asynccontextmanager
    async def at(self, socket: str) -> AsyncGenerator[None]:
        """Serve there."""
        async with await asyncio.start_unix_server(self.on_call, socket):
            yield


class Rate:
    """Asks the service, over connections that are used again."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __call__(self, flight: Flight) -> Rated:
        """Return the flight with its rating."""
        if self.idle:
            reader, writer = self.idle.pop()
        else:
            reader, writer = await asyncio.open_unix_connection(self.socket)
        # The same key each time that this call is made: the service can tell.
        key = str(am.current_call().idempotency_key)
        writer.write(json.dumps([key, flight.id]).encode() + b"\n")
        rating = int(await reader.readline())
        self.idle.append((reader, writer))
        return Rated(
            flight.id, flight.origin, flight.scheduled, flight.dep_delay or 0.0, rating
        )

    async def close(self) -> None:
        """Close the connections."""
        for _, writer in self.idle:
            writer.close()


class Witness:
    """Writes down which results have left the operator, and kills the program in time.

    Args:
        file: Where the ids go.
        kill_at: After how many results of this life it is over; None to live.
    """

    def __init__(self, file: pathlib.Path, kill_at: int | None) -> None:
        self.file = file
        self.kill_at = kill_at
        self.seen = 0

    def __call__(self, flight: Rated) -> Rated:
        """Note one result."""
        with self.file.open("a") as file:
            file.write(f"{flight.id}\n")
        self.seen += 1
        if self.seen == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return flight


async def job(
    flights: pathlib.Path, place: pathlib.Path, socket: str, kill_at: int | None
) -> None:
    """Run the job, from its newest checkpoint if there is one."""
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(am.seconds(0.2), directory=place / "checkpoints")
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.hours(22))
    rated = (
        env.from_source(
            am.FileSource(flights, "parquet", records=Flight),
            strategy.with_timestamp_assigner("scheduled"),
            name="flights",
        )
        .uid("flights")
        .map_async(Rate(socket), concurrency=CONCURRENCY, journal=True, id="id")
        .uid("rate")
        .map(Witness(place / "left.txt", kill_at))
    )
    (
        rated.key_by("origin")
        .window(am.TumblingEventTimeWindows.of(am.days(1)))
        .aggregate(
            am.aggregates(
                flights=am.count(),
                delay=am.sum_("dep_delay"),
                rating=am.sum_("rating"),
            )
        )
        .uid("days")
        .sink_to(am.ParquetSink(place / "days"))
        .uid("out")
    )
    await env.execute("ratings", restore_from="latest")


async def run(
    flights: pathlib.Path, place: pathlib.Path, socket: str, kill_at: int | None
) -> bool:
    """Run the job in a process of its own; return whether it was killed."""
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--job",
        str(flights),
        str(place),
        socket,
        str(kill_at or 0),
    )
    code = await program.wait()
    if code not in {0, -signal.SIGKILL}:
        sys.exit(f"the job failed with exit code {code}")
    return code != 0


def rows_of(place: pathlib.Path) -> list[Any]:
    """Return the results, sorted: their order is not promised."""
    from pyarrow.parquet import ParquetDataset

    rows = ParquetDataset(place / "days").read().to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def write_flights(place: pathlib.Path, limit: int) -> None:
    """Let Spark write the input, once, in the order in which the flights left."""
    import flight_delays as demo
    from pyspark.sql import functions as sf

    from aiomailbox.connectors.spark import local_session

    spark = local_session("crash and resume")
    try:
        flights = demo.read_flights(spark, place / "unpacked")
        ordered = flights.orderBy("actual", "carrier", "flight", "scheduled")
        (
            ordered.limit(limit)
            .withColumn("id", sf.monotonically_increasing_id())
            .select("id", "origin", "scheduled", "dep_delay")
            .repartitionByRange(4, "id")
            .sortWithinPartitions("id")
            .write.parquet(str(place / "flights"))
        )
    finally:
        spark.stop()


async def compare(place: pathlib.Path) -> bool:
    """Run the job twice, once with crashes; say what was different."""
    flights = place / "flights"
    socket = str(place / "service.sock")
    service = Service()
    async with service.at(socket):
        await run(flights, place / "alone", socket, None)
        count = sum(1 for _ in (place / "alone" / "left.txt").open())
        print(f"left alone: {count:,} flights, {service.asked.total():,} calls")
        service.asked.clear()
        service.keys.clear()
        left = place / "crashed" / "left.txt"
        finished_again = in_flight_again = 0
        kill_at: int | None = count // (CRASHES + 1)
        for life in range(1, CRASHES + 2):
            asked = Counter(service.asked)
            known = set(left.read_text().split() if left.exists() else ())
            last = life > CRASHES
            killed = await run(
                flights, place / "crashed", socket, None if last else kill_at
            )
            assert killed is not last, "the job ended before it could be killed"
            again = {one for one in asked if service.asked[one] > asked[one]}
            finished_again += len(again & known)
            in_flight_again += len(again - known)
            end = "killed itself" if killed else "ended"
            print(f"life {life}: {end}; {len(again)} calls were made again")
    print(f"finished calls that were repeated: {finished_again}")
    allowed = CRASHES * CONCURRENCY
    print(f"calls in flight that were repeated: {in_flight_again} (up to {allowed})")
    assert len(service.keys) == count, "a call that is repeated has the same key"
    is_equal = rows_of(place / "alone") == rows_of(place / "crashed")
    return is_equal and not finished_again and in_flight_again <= allowed


def main() -> int:
    """Run the example; the exit code says whether the results were equal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--flights", type=int, default=10_000, help="how many to read")
    parser.add_argument("--job", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        flights, place, socket, kill_at = options.job
        work = job(
            pathlib.Path(flights), pathlib.Path(place), socket, int(kill_at) or None
        )
        asyncio.run(work)
        return 0
    with tempfile.TemporaryDirectory(prefix="aiomailbox-") as directory:
        place = pathlib.Path(directory)
        for name in ("alone", "crashed"):
            (place / name).mkdir()
        write_flights(place, options.flights)
        is_equal = asyncio.run(compare(place))
    print("equal" if is_equal else "NOT equal")
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
