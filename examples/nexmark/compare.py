"""Compares the queries with Spark SQL in batch, row by row, over the same events.

It compares all queries but q12, whose windows are of processing time. The results of q4,
q18 and q19 replace earlier ones, so it compares only the last ones. It reads the results
of q10 from its files. Where an order decides (q4, q6, q9, q18, q19), both sides break ties
by the same fields, so that no answer depends on the order of arrival.
"""

from __future__ import annotations

import csv
import tempfile
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import aiomailbox as am
from examples.nexmark.catalogue import QUERIES, Query
from examples.nexmark.generator import GeneratorConfig, generate
from examples.nexmark.minute_files import COLUMNS, MinuteFiles
from examples.nexmark.model import Auction, Bid, Person
from examples.nexmark.queries.per_bid import LoggedBid, side_input
from examples.nexmark.streams import event_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Columns of the table that are put to the right.
_NUMBERS = (2, 3)
# Compiling a query takes longer than running it over few rows.
FOR_FEW_ROWS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
}


@dataclass(frozen=True)
class Comparison:
    """How a query compares with Spark.

    Attributes:
        query: The query.
        rows: How many results it has that are final.
        spark_rows: How many Spark has; None if it was not asked.
        missing: Rows that only Spark has.
        extra: Rows that only we have.
    """

    query: Query
    rows: int
    spark_rows: int | None = None
    missing: int = 0
    extra: int = 0

    @property
    def verdict(self) -> str:
        """Return whether the results are equal, in words."""
        if self.spark_rows is None:
            return f"not comparable: {self.query.why_not}"
        if self.missing or self.extra:
            return f"NO: {self.missing} missing, {self.extra} extra"
        return "yes"

    @property
    def is_wrong(self) -> bool:
        """Return whether there is a difference."""
        return bool(self.missing or self.extra)


@contextmanager
def tables(
    spark: SparkSession, config: GeneratorConfig, events: int
) -> Generator[None]:
    """Give Spark the events as tables, as long as the block lasts."""
    rows: dict[type, list[Any]] = {Person: [], Auction: [], Bid: []}
    for event in generate(config, events):
        rows[type(event)].append(event)
    before = {name: spark.conf.get(name) or "" for name in FOR_FEW_ROWS}
    for name, value in FOR_FEW_ROWS.items():
        spark.conf.set(name, value)
    frames: list[DataFrame] = []
    for kind, values in rows.items():
        frame = spark.createDataFrame(_arrow(kind, values))
        frame = frame.selectExpr("*", "timestamp_millis(date_time) as time").cache()
        frame.createOrReplaceTempView(kind.__name__.lower())
        frames.append(frame)
    side = spark.createDataFrame(list(side_input().items()), "key long, value string")
    side.createOrReplaceTempView("side_input")
    try:
        yield
    finally:
        for frame in frames:
            frame.unpersist()
        for name in ("person", "auction", "bid", "side_input"):
            spark.catalog.dropTempView(name)
        for name, value in before.items():
            spark.conf.set(name, value)


def _arrow(kind: Any, values: list[Any]) -> Any:
    import pyarrow as pa

    columns: list[Any] = list(zip(*values, strict=True)) or [[] for _ in kind._fields]
    types = [
        pa.string() if hint is str else pa.int64()
        for hint in get_type_hints(kind).values()
    ]
    return pa.table(
        [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)],
        names=list(kind._fields),
    )


async def run_query(
    query: Query, config: GeneratorConfig, events: int, *, parallelism: int = 1
) -> list[tuple[Any, ...]]:
    """Run a query on generated events, and return its final results."""
    env = am.StreamExecutionEnvironment(parallelism)
    stream = event_stream(env, config, events).through(query.build)
    if query.name == "q10":
        return await run_to_files(env, stream)
    return [tuple(row) for row in query.final(await stream.collect())]


async def run_to_files(
    env: am.StreamExecutionEnvironment, logged: am.DataStream[LoggedBid]
) -> list[tuple[Any, ...]]:
    """Write bids to files, and return what is in the files."""
    with tempfile.TemporaryDirectory(prefix="nexmark-") as folder:
        logged.sink_to(MinuteFiles(Path(folder)))
        await env.execute("q10")
        return list(read_files(Path(folder)))


def read_files(folder: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the bids in files, with the days and minutes of their directories."""
    for path in sorted(folder.glob("day=*/minute=*/part-*.csv")):
        day = path.parent.parent.name.removeprefix("day=")
        minute = path.parent.name.removeprefix("minute=").replace("-", ":")
        with path.open(newline="") as file:
            for row in csv.DictReader(file, COLUMNS):
                *numbers, extra = row.values()
                yield (*map(int, numbers), extra, day, minute)


async def compare(
    spark: SparkSession,
    config: GeneratorConfig,
    events: int,
    names: Iterable[str] = QUERIES,
) -> list[Comparison]:
    """Run queries here and in Spark, and return how they compare."""
    with tables(spark, config, events):
        return [
            await compare_query(spark, QUERIES[name], config, events) for name in names
        ]


def values_of(row: Iterable[Any]) -> tuple[Any, ...]:
    """Return a row of Spark without its names."""
    return tuple(row)


async def compare_query(
    spark: SparkSession, query: Query, config: GeneratorConfig, events: int
) -> Comparison:
    """Run one query here and in Spark, whose tables are there, and compare rows."""
    ours = Counter(await run_query(query, config, events))
    if query.sql is None:
        return Comparison(query, ours.total())
    theirs = Counter(map(values_of, spark.sql(query.sql).collect()))
    return Comparison(
        query,
        ours.total(),
        theirs.total(),
        missing=(theirs - ours).total(),
        extra=(ours - theirs).total(),
    )


def table(comparisons: Iterable[Comparison]) -> str:
    """Return the comparisons as a table, in Markdown."""
    rows = [("Query", "Asks", "Rows", "Rows of Spark", "Equal")]
    for each in comparisons:
        query, spark_rows = each.query, each.spark_rows
        theirs = "–" if spark_rows is None else f"{spark_rows:,}"
        rows.append((query.name, query.title, f"{each.rows:,}", theirs, each.verdict))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(row, widths) for row in rows]
    dashes = ["-" * width for width in widths]
    for number in _NUMBERS:
        dashes[number] = dashes[number][1:] + ":"
    lines.insert(1, _line(dashes, widths))
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: list[int]) -> str:
    padded = [
        cell.rjust(width) if column in _NUMBERS else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"
