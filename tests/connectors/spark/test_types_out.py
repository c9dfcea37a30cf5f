"""What values are by each way out: the same as they came in."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import aiomailbox as am

pytestmark = [pytest.mark.spark, pytest.mark.real_time]

Way = Callable[[Any, Any, Path], Any]

TYPES = {
    "tinyint": "cast(id as tinyint)",
    "float": "cast(id + 0.5 as float)",
    "decimal(10,2)": "cast(id + 0.25 as decimal(10, 2))",
    "date": "DATE'2024-02-29'",
    "timestamp": "TIMESTAMP'2024-02-29 12:00:00'",
    "timestamp_ntz": "TIMESTAMP_NTZ'2024-02-29 12:00:00'",
    "interval day to second": "INTERVAL '1 02:03:04.000005' DAY TO SECOND",
    "time(6)": "TIME'12:34:56.123456'",
    "binary": "X'0102'",
    "array<int>": "array(1, cast(id as int))",
    "struct<x:int,y:string>": "struct(1 as x, 'two' as y)",
    "variant": """parse_json('{"a": [1, null]}')""",
    "geometry(0)": "ST_GeomFromWKB(X'0101000000000000000000F03F0000000000000040')",
}
# Spark itself cannot keep times of day in Parquet, and this format's geometries are
# not the bytes that Spark's own are.
NOT_IN_PARQUET = {"time(6)", "geometry(0)"}


@am.pipeline
def as_it_was(rows: Any) -> Any:
    """Makes records of Python's values, and leaves them as they are."""
    return rows.filter(lambda row: row.value is not None or row.id < 0)


def by_apply_to(spark: Any, df: Any, place: Path) -> Any:
    return as_it_was.apply_to(df, schema=df.schema).result


def by_to_spark(spark: Any, df: Any, place: Path) -> Any:
    stream = am.StreamExecutionEnvironment().from_source(am.SparkSource(df))
    return am.run(stream.through(as_it_was).to_spark(spark))


def by_parquet(spark: Any, df: Any, place: Path) -> Any:
    env = am.StreamExecutionEnvironment()
    stream = env.from_source(am.SparkSource(df)).through(as_it_was)
    stream.sink_to(am.ParquetSink(place / "out"))
    am.run(env.execute())
    return spark.read.parquet(str(place / "out"))


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        (way, kind)
        for way in (by_apply_to, by_to_spark, by_parquet)
        for kind in TYPES
        if way is not by_parquet or kind not in NOT_IN_PARQUET
    ],
)
def test_values_leave_as_they_came(
    spark: Any, tmp_path: Path, way: Way, kind: str
) -> None:
    df = spark.range(3, numPartitions=1).selectExpr("id", f"{TYPES[kind]} AS value")
    assert df.schema["value"].dataType.simpleString() == kind
    found = way(spark, df, tmp_path)
    rows = [(row.id, plain(row.value)) for row in found.collect()]
    assert sorted(rows, key=lambda row: row[0]) == [
        (row.id, plain(row.value)) for row in df.collect()
    ]


def plain(value: Any) -> Any:
    """Return a value that can be compared."""
    kinds = ("VariantVal", "Geometry")
    return str(value) if type(value).__name__ in kinds else value


class Place(NamedTuple):
    x: float
    name: str | None


class Visit(NamedTuple):
    id: int
    token: uuid.UUID
    took: timedelta
    counts: dict[str, int]
    price: Decimal
    place: Place
    score: float
    never: list[float] | None


VISITS = [
    Visit(number, uuid.UUID(int=number), timedelta(days=1, microseconds=number),
          {f"n{number}": number}, Decimal(number) / 2, Place(number, None), number, None)
    for number in range(3)
]  # fmt: skip

COLUMNS = {
    "id": "bigint",
    "token": "string",
    "took": "interval day to second",
    "counts": "map<string,bigint>",
    "price": "decimal(38,18)",
    "place": "struct<x:double,name:string>",
    "score": "double",
    "never": "array<double>",
}


@am.pipeline
def visits(rows: Any) -> Any:
    """Makes objects of a class."""
    return rows.map(lambda row: VISITS[row.id], output_type=Visit)


@pytest.mark.parametrize("way", ["apply_to", "to_spark", "parquet"])
def test_a_class_means_the_same_types_by_every_way_out(
    spark: Any, tmp_path: Path, way: str
) -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(VISITS)
    if way == "apply_to":
        found = visits.apply_to(spark.range(3)).result
    elif way == "to_spark":
        found = am.run(stream.to_spark(spark))
    else:
        stream.sink_to(am.ParquetSink(tmp_path / "out"))
        am.run(env.execute())
        found = spark.read.parquet(str(tmp_path / "out"))
    kinds = dict(found.dtypes)
    assert {name: kinds[name] for name in COLUMNS} == COLUMNS
    rows = sorted(found.collect())
    assert [row.token for row in rows] == [str(visit.token) for visit in VISITS]
    assert [row.took for row in rows] == [visit.took for visit in VISITS]
    assert [row.counts for row in rows] == [visit.counts for visit in VISITS]
    assert [row.price for row in rows] == [visit.price for visit in VISITS]
    assert [tuple(row.place) for row in rows] == [
        tuple(visit.place) for visit in VISITS
    ]


def test_a_time_of_day_keeps_its_microseconds(spark: Any) -> None:
    df = spark.range(1).selectExpr("id", "TIME'23:59:59.999999' AS value")
    found = by_apply_to(spark, df, Path())
    assert found.collect()[0].value == time(23, 59, 59, 999_999)
