"""What values are by each way out: the same as they came in."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc
import pytest

import aiomailbox as am
from aiomailbox.errors import InvalidArgumentError, UnsupportedColumnError

pytestmark = [pytest.mark.spark, pytest.mark.real_time]

Way = Callable[..., Any]

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
NESTED = {
    "array<variant>": """array(parse_json('1'), NULL, parse_json('"a"'))""",
    "map<string,struct<x:tinyint,v:variant>>": "map('k', struct(cast(1 as tinyint) as x, parse_json('[2]') as v))",
    "array<struct<t:timestamp_ntz,d:decimal(5,1)>>": "array(struct(TIMESTAMP_NTZ'2024-02-29 12:00:00' as t, cast(1.5 as decimal(5,1)) as d))",
    "smallint": "cast(id as smallint)",
    "int": "cast(id as int)",
    "bigint": "id",
    "double": "id + cast(0.5 as double)",
    "string": "cast(id as string)",
    "map<int,date>": "map(1, DATE'2024-02-29')",
}
TYPES |= NESTED
# Spark itself cannot keep times of day in Parquet, and this format's geometries are
# not the bytes that Spark's own are.
NOT_IN_PARQUET = {"time(6)", "geometry(0)"}


@am.pipeline
def as_it_was(rows: Any) -> Any:
    """Makes records of Python's values, and leaves them as they are."""
    return rows.filter(lambda row: row.value is not None or row.id < 0)


def by_apply_to(spark: Any, df: Any, place: Path, what: Any = as_it_was) -> Any:
    schema = df.schema if what is as_it_was else None
    return what.apply_to(df, schema=schema).result


def by_to_spark(spark: Any, df: Any, place: Path, what: Any = as_it_was) -> Any:
    stream = am.StreamExecutionEnvironment().from_source(am.SparkSource(df))
    return am.run(stream.through(what).to_spark(spark))


def by_parquet(spark: Any, df: Any, place: Path, what: Any = as_it_was) -> Any:
    env = am.StreamExecutionEnvironment()
    stream = env.from_source(am.SparkSource(df)).through(what)
    stream.sink_to(am.ParquetSink(place / "out"))
    am.run(env.execute())
    return spark.read.parquet(str(place / "out"))


WAYS: tuple[Way, ...] = (by_apply_to, by_to_spark, by_parquet)


def types_of(df: Any, kinds: dict[str, str]) -> dict[str, str]:
    return {name: df.schema[name].dataType.simpleString() for name in kinds}


@pytest.mark.parametrize("way", WAYS)
def test_values_leave_as_they_came(spark: Any, tmp_path: Path, way: Way) -> None:
    left_out = NOT_IN_PARQUET if way is by_parquet else set()
    kinds = {f"c{n}": kind for n, kind in enumerate(TYPES) if kind not in left_out}
    columns = [f"{TYPES[kind]} AS {name}" for name, kind in kinds.items()]
    df = spark.range(3, numPartitions=1).selectExpr("id", "id AS value", *columns)
    assert types_of(df, kinds) == kinds
    found = way(spark, df, tmp_path)
    assert types_of(found, kinds) == kinds
    rows = sorted(found.collect(), key=lambda row: row.id)
    for left, came in zip(rows, df.collect(), strict=True):
        for name, kind in kinds.items():
            assert plain(left[name]) == plain(came[name]), kind


def plain(value: Any) -> Any:
    """Return a value that can be compared."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    kinds = ("VariantVal", "Geometry")
    return str(value) if type(value).__name__ in kinds else value


@pytest.mark.parametrize("way", WAYS)
def test_a_result_without_rows_and_columns_without_values_keep_their_types(
    spark: Any, tmp_path: Path, way: Way
) -> None:
    kinds = [kind for kind in TYPES if kind not in NOT_IN_PARQUET]
    names = [f"c{number}" for number in range(len(kinds))]
    columns = [
        f"CAST(NULL AS {kind}) AS {name}"
        for name, kind in zip(names, kinds, strict=True)
    ]
    for rows in (2, 0):
        # The second one fails in the filter of the pipeline.
        df = spark.range(rows, numPartitions=1).selectExpr(
            "id - 1 AS id", "id AS value", *columns
        )
        if not rows:
            df = spark.range(1).selectExpr(
                "id", "CAST(NULL AS bigint) AS value", *columns
            )
        found = way(spark, df, tmp_path / str(rows))
        assert found.count() == rows
        assert [found.schema[name].dataType.simpleString() for name in names] == kinds


@am.pipeline
def unchanged(rows: Any) -> Any:
    """Leaves all rows, whose columns are known."""
    return rows.filter(lambda row: True)


@am.pipeline
def as_columns(rows: Any) -> Any:
    """Leaves all rows, and makes no record of any."""
    return rows.filter(pc.field("id") >= 0)


# In a NULL struct Spark has NULL in all fields, also in those that are never NULL.
NEVER_NULL = {
    "flat": "IF(id = 1, NULL, named_struct('x', id, 'name', 'Oslo'))",
    "deep": "IF(id = 1, NULL, named_struct('at', named_struct('x', id), 'on', array(id)))",
    "listed": "array(IF(id = 1, NULL, named_struct('x', id)), named_struct('x', -id))",
    "mapped": "map('k', IF(id = 1, NULL, named_struct('t', INTERVAL '1 0:0:1' DAY TO SECOND, 'x', id)))",
    "variant": "IF(id = 1, NULL, parse_json('[1]'))",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_struct_may_be_null_whose_fields_are_never_null(
    spark: Any, tmp_path: Path, way: Way
) -> None:
    columns = [f"{column} AS {name}" for name, column in NEVER_NULL.items()]
    df = spark.range(3, numPartitions=1).selectExpr("id", *columns)
    assert not df.schema["flat"].dataType["x"].nullable
    found = way(spark, df, tmp_path, as_columns)
    assert found.dtypes == df.dtypes
    if way is not by_parquet:
        # Spark itself reads all columns of files as such that may be NULL.
        assert found.schema["flat"].dataType == df.schema["flat"].dataType
    rows = sorted(map(plain, found.collect()))
    assert rows == [plain(row) for row in df.collect()]
    assert rows[1][1] is None


def test_texts_of_a_length_leave_as_texts(spark: Any, tmp_path: Path) -> None:
    name = "spark.sql.preserveCharVarcharTypeInfo"
    spark.conf.set(name, "true")
    try:
        df = spark.range(1).selectExpr(
            "id",
            "CAST('a' AS VARCHAR(5)) AS value",
            "array(named_struct('c', CAST('b' AS CHAR(3)))) AS nested",
        )
        assert dict(df.dtypes)["value"] == "varchar(5)"
        for way in WAYS:
            found = way(spark, df, tmp_path, unchanged)
            kinds = dict(found.dtypes)
            assert kinds["value"] == "string", way
            assert kinds["nested"] == "array<struct<c:string>>", way
            [row] = found.collect()
            assert (row.value, row.nested[0].c) == ("a", "b  "), way
    finally:
        spark.conf.unset(name)


def test_no_schema_is_needed_where_no_step_changes_a_column(spark: Any) -> None:
    df = spark.range(3).selectExpr("id", "cast(id AS tinyint) AS value")
    applied = as_it_was.apply_to(df)
    assert applied.result.dtypes == [("id", "bigint"), ("value", "tinyint")]

    @am.pipeline
    def renamed(rows: Any) -> Any:
        return rows.rename({"value": "small"}).drop("id").filter(lambda row: True)

    result = renamed.apply_to(df).result
    assert result.dtypes == [("small", "tinyint")]
    assert sorted(row.small for row in result.collect()) == [0, 1, 2]


class Mistaken(NamedTuple):
    id: str


def test_a_class_whose_annotations_are_wrong_is_refused(
    spark: Any, no_job: None
) -> None:
    df = spark.range(3)
    with pytest.raises(
        UnsupportedColumnError, match=r"Mistaken\.id is annotated as str"
    ):
        am.SparkSource(df, records=Mistaken)
    with pytest.raises(
        UnsupportedColumnError, match=r"Mistaken\.id is annotated as str"
    ):
        as_it_was.apply_to(df, records=Mistaken)

    @am.pipeline
    def numbered(rows: Any) -> Any:
        return rows.map(lambda row: row, output_type=Number)

    with pytest.raises(InvalidArgumentError, match=r"'id' of type string.*id: int"):
        numbered.apply_to(df, schema="id string")


class Number(NamedTuple):
    id: int


def test_a_table_is_made_also_of_no_rows(spark: Any, tmp_path: Path) -> None:
    spark.sql("DROP TABLE IF EXISTS made_of_none")
    df = spark.range(3).selectExpr("id", "CAST(NULL AS tinyint) AS value")
    env = am.StreamExecutionEnvironment()
    stream = env.from_source(am.SparkSource(df)).through(as_it_was)
    stream.sink_to(am.SparkTableSink(spark, "made_of_none", stage=tmp_path))
    am.run(env.execute())
    assert spark.table("made_of_none").dtypes == [
        ("id", "bigint"),
        ("value", "tinyint"),
    ]
    assert spark.table("made_of_none").count() == 0
    spark.sql("DROP TABLE made_of_none")


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


@am.pipeline
def no_visits(rows: Any) -> Any:
    """Makes no object of a class."""
    return rows.map(lambda row: VISITS[row.id], output_type=Visit).filter(
        lambda visit: visit.id < 0
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_class_tells_the_columns_of_a_result_without_rows(
    spark: Any, tmp_path: Path, way: Way
) -> None:
    found = way(spark, spark.range(3), tmp_path, no_visits)
    kinds = dict(found.dtypes)
    assert {name: kinds[name] for name in COLUMNS} == COLUMNS
    assert found.count() == 0


def test_a_time_of_day_keeps_its_microseconds(spark: Any) -> None:
    df = spark.range(1).selectExpr("id", "TIME'23:59:59.999999' AS value")
    found = by_apply_to(spark, df, Path())
    assert found.collect()[0].value == time(23, 59, 59, 999_999)
