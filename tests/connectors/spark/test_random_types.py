"""Random schemas and rows come through every way in, and out, as what they are."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from pyspark.sql.types import Geography, Geometry, VariantVal

import aiomailbox as am
from aiomailbox.columnar.ipc import types_in
from aiomailbox.connectors.spark.source import SparkSource
from aiomailbox.connectors.spark.streaming import SparkStreamSource
from aiomailbox.connectors.spark.types import spark_schema

pytestmark = pytest.mark.spark

Column = tuple[pa.DataType, st.SearchStrategy[Any]]

# 01:30 in New York, twice in one night, and the hour that a spring night does not have.
FOLDS = [
    *[datetime(2013, 11, 3, hour, 30, tzinfo=UTC) for hour in (5, 6)],
    datetime(2013, 3, 10, 7, 0, tzinfo=UTC),
]
NAIVE = [datetime(2013, 11, 3, 1, 30), datetime(2013, 3, 10, 2, 30)]


@pytest.fixture(scope="module")
def new_york(spark: Any) -> Iterator[Any]:
    """Let the process, and the session, be in a zone whose clocks change."""
    zone, session_zone = (
        os.environ.get("TZ"),
        spark.conf.get("spark.sql.session.timeZone"),
    )
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", session_zone)
    if zone is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = zone
    time.tzset()


def numbers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def floats(width: Any) -> st.SearchStrategy[float]:
    return st.floats(allow_nan=False, width=width).map(lambda n: n + 0.0)


moments = st.sampled_from(FOLDS) | st.datetimes(
    datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)
)
naive = st.sampled_from(NAIVE) | st.datetimes(
    datetime(1900, 1, 1), datetime(2100, 1, 1)
)
spans = st.timedeltas(timedelta(-10_000), timedelta(10_000))


def decimals(digits: int, places: int) -> Column:
    whole = st.integers(1 - 10**digits, 10**digits - 1)
    kind = pa.decimal128(digits, places)
    return kind, whole.map(lambda n: Decimal(f"{n}e-{places}"))


JSON = ["1", "null", '"ä"', '{"a": [1, 2.5, null], "b": {"c": true}}', "[]"]
points = st.tuples(st.integers(-180, 180), st.integers(-90, 90)).map(
    lambda at: struct.pack("<BIdd", 1, 1, *at)
)


def placed(mark: str, srid: int, values: st.SearchStrategy[Any]) -> Column:
    """Return a column of places: of one system of coordinates, or of any for -1."""
    marks = {mark: "true", "srid": str(srid)}
    return marked(("srid", pa.int32()), ("wkb", pa.binary()), **marks), values


def marked(*fields: tuple[str, pa.DataType], **marks: str) -> pa.DataType:
    """Return the type of a struct whose last field says what it is of Spark's."""
    first, (name, kind) = fields[0], fields[1]
    return pa.struct([
        pa.field(*first, nullable=False),
        pa.field(name, kind, nullable=False, metadata=marks),
    ])  # fmt: skip


SIMPLE: list[Column] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), numbers(8)),
    (pa.int16(), numbers(16)),
    (pa.int32(), numbers(32)),
    (pa.int64(), numbers(64)),
    (pa.float32(), floats(32)),
    (pa.float64(), floats(64)),
    *[decimals(digits, places) for digits, places in ((5, 2), (20, 6), (38, 18))],
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.date32(), st.dates(date(1900, 1, 1), date(2100, 1, 1))),
    (pa.timestamp("us", "UTC"), moments),
    (pa.timestamp("us"), naive),
    (pa.duration("us"), spans),
    (pa.time64("us"), st.times()),
]
# Those that Spark gives, and that no function of a program makes of plain values.
SPECIAL: list[Column] = [
    (
        marked(("value", pa.binary()), ("metadata", pa.binary()), variant="true"),
        st.sampled_from(JSON).map(VariantVal.parseJson),
    ),
    placed("geometry", 0, points.map(lambda wkb: Geometry(wkb, 0))),
    placed("geometry", -1, st.builds(Geometry, points, st.sampled_from([0, 4326]))),
    placed("geography", 4326, points.map(lambda wkb: Geography(wkb, 4326))),
    placed("geography", -1, points.map(lambda wkb: Geography(wkb, 4326))),
]
# What a map's keys may be: as many kinds as have values that are equal to themselves.
KEYS: list[Column] = [
    (pa.int32(), st.integers(0, 9)),
    (pa.string(), st.sampled_from(["", "a", "ä"])),
    (pa.timestamp("us", "UTC"), st.sampled_from(FOLDS)),
    (pa.date32(), st.dates(date(1900, 1, 1), date(2100, 1, 1))),
]
# A column without values is drawn as a whole one: within lists, pyarrow gives it another
# length when Spark casts the table that a DataFrame is made of.
VOID: Column = (pa.null(), st.none())


class Entries(dict[Any, Any]):
    """A map, where a plain dict is a struct."""


def nested(inner: st.SearchStrategy[Column]) -> st.SearchStrategy[Column]:
    """Return lists, maps and structs of columns."""

    def listed(column: Column) -> Column:
        kind, values = column
        return pa.list_(kind), st.lists(st.none() | values, max_size=3)

    def mapped(parts: tuple[Column, Column]) -> Column:
        (key_kind, keys), (kind, values) = parts
        entries = st.dictionaries(keys, st.none() | values, max_size=3)
        return pa.map_(key_kind, kind), entries.map(Entries)

    def structured(columns: list[tuple[Column, bool]]) -> Column:
        fields, drawn = [], {}
        for number, ((kind, values), may_be_null) in enumerate(columns):
            name = f"f{number}"
            fields.append(pa.field(name, kind, may_be_null))
            drawn[name] = st.none() | values if may_be_null else values
        return pa.struct(fields), st.fixed_dictionaries(drawn)

    return (
        inner.map(listed)
        | st.tuples(st.sampled_from(KEYS), inner).map(mapped)
        | st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3).map(
            structured
        )
    )


@st.composite
def tables(
    draw: st.DrawFn, *, has_void: bool
) -> tuple[pa.Schema, list[dict[str, Any]]]:
    """Draw a schema of any columns, the special ones among them, and rows of it."""
    columns = st.recursive(st.sampled_from([*SIMPLE, *SPECIAL]), nested, max_leaves=4)
    if has_void:
        columns |= st.just(VOID)
    chosen = [*draw(st.lists(columns, min_size=3, max_size=8)), *SPECIAL]
    schema = pa.schema([(f"c{n}", kind) for n, (kind, _) in enumerate(chosen)])
    row = st.fixed_dictionaries(
        {f"c{n}": st.none() | values for n, (_, values) in enumerate(chosen)}
    )
    return schema, draw(st.lists(row, min_size=1, max_size=12))


def as_arrow(value: Any) -> Any:
    """Return a value as pyarrow takes it and gives it: a map as pairs."""
    if isinstance(value, dict):
        inner = {key: as_arrow(item) for key, item in value.items()}
        return [*inner.items()] if isinstance(value, Entries) else inner
    if isinstance(value, VariantVal):
        return {"value": bytes(value.value), "metadata": bytes(value.metadata)}
    if isinstance(value, Geometry | Geography):
        return {"srid": value.srid, "wkb": value.wkb}
    return [as_arrow(item) for item in value] if isinstance(value, list) else value


def as_dict(value: Any) -> Any:
    """Return a record of any form as dicts."""
    if isinstance(value, tuple):
        fields = getattr(value, "__fields__", None) or value._fields  # type: ignore[attr-defined]
        return {name: as_dict(item) for name, item in zip(fields, value, strict=True)}
    if isinstance(value, dict):
        return {key: as_dict(item) for key, item in value.items()}
    return [as_dict(item) for item in value] if isinstance(value, list) else value


def comparable(value: Any) -> Any:
    """Return a value whose variants can be compared."""
    if isinstance(value, VariantVal):
        return as_arrow(value)
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    return [comparable(item) for item in value] if isinstance(value, list) else value


def as_utc(value: Any) -> Any:
    """Return a value with its moments in UTC: in one zone two of them may be equal."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, dict):
        return {key: as_utc(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(as_utc(item) for item in value)
    return value


def fitting(schema: pa.Schema) -> list[str]:
    """Return the columns that Spark has in Parquet as what they are."""

    def fits(kind: pa.DataType) -> bool:
        is_place = pa.types.is_struct(kind) and kind.get_field_index("srid") >= 0
        return not (is_place or pa.types.is_time(kind) or pa.types.is_null(kind))

    return [field.name for field in schema if all(map(fits, types_in(field.type)))]


def has_variant(schema: pa.Schema, name: str) -> bool:
    """Say whether there is a variant in a column."""
    return any(
        pa.types.is_struct(kind) and kind.get_field_index("metadata") >= 0
        for kind in types_in(schema.field(name).type)
    )


# An example takes seconds: to make a failing one simpler would take longer than a test may.
SLOW: dict[str, Any] = {
    "suppress_health_check": [
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
    ],
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],
}


async def read(source: SparkSource | SparkStreamSource) -> list[Any]:
    env = am.StreamExecutionEnvironment()
    values: list[Any] = await env.from_source(source).collect()
    return values


@settings(
    max_examples=3,
    **SLOW,
)
@given(table=tables(has_void=True))
def test_random_rows_come_through_as_what_they_are(new_york: Any, table: Any) -> None:
    schema, rows = table
    arrays = [
        pa.array([as_arrow(row[field.name]) for row in rows], field.type)
        for field in schema
    ]
    arrow = pa.Table.from_arrays(arrays, schema=schema)
    df = new_york.createDataFrame(arrow, spark_schema(schema)).coalesce(1)
    place = tempfile.mkdtemp()
    try:
        # Spark writes variants into several columns, of which a stage reads two.
        kept = [name for name in fitting(schema) if not has_variant(schema, name)]

        def streamed() -> SparkStreamSource:
            """Return what was staged just now, as a stream of files."""
            reader = new_york.readStream.schema(df.select(kept).schema)
            files = reader.parquet(f"{place}/rows-*")
            once = {"availableNow": True}
            return SparkStreamSource(
                files, f"{place}/query", trigger=once, records=dict
            )

        ways: list[tuple[str, list[str], Callable[[], Any]]] = [
            ("iterate", df.columns, lambda: SparkSource(df, records=dict)),
            ("push", df.columns, lambda: SparkSource(df, records=dict, read="push")),
        ]
        if kept:
            part = df.select(kept)
            ways += [
                ("stage", kept, lambda: SparkSource(part, records=dict, stage=place)),
                ("foreachBatch", kept, streamed),
            ]
        for way, names, source in ways:
            expected = [{name: row[name] for name in names} for row in rows]
            found = am.run(read(source()))
            assert comparable(found) == comparable(expected), way
            for record, row in zip(found, expected, strict=True):
                for name, value in record.items():
                    kind = type(row[name])
                    assert type(value) is (dict if kind is Entries else kind), way
        forms: list[Any] = ["namedtuple", "row"]
        for form in forms:
            found = am.run(read(SparkSource(df, records=form)))
            left = [as_dict(record) for record in found]
            assert comparable(left) == comparable(rows), form
        batches = am.run(read(SparkSource(df, records="batch")))
        found = [row for batch in batches for row in batch.to_pylist()]
        assert as_utc(found) == [as_arrow(row) for row in rows]
    finally:
        shutil.rmtree(place)


@am.pipeline
def as_they_were(records: Any) -> Any:
    """Makes records of Python's values, and keeps all of them as they are."""
    return records.filter(lambda record: record.n >= 0).rename({"n": "number"})


def leaving(
    df: Any, place: str, files: list[str]
) -> Iterator[tuple[str, list[str], Any]]:
    """Yield the DataFrames that come out of a pipeline by every way, and their columns."""
    names = ["number", *df.columns[1:]]
    yield "apply_to", names, as_they_were.apply_to(df).result

    def sent() -> tuple[am.StreamExecutionEnvironment, Any]:
        env = am.StreamExecutionEnvironment(parallelism=2)
        env.configure(deployment=am.Processes(2))
        return env, env.from_source(SparkSource(df)).through(as_they_were)

    # What a function returns crosses processes as values of Python; all else as columns.
    stream = (
        sent()[1].map(lambda record: record).rebalance().filter(lambda record: True)
    )
    schema = df.withColumnRenamed("n", "number").schema
    yield "to_spark", names, am.run(stream.to_spark(df.sparkSession, schema=schema))
    env, stream = sent()
    stream = stream.rebalance().filter(lambda record: record.number >= 0)
    kept = ["number", *files]
    stream.select(*kept).sink_to(am.ParquetSink(f"{place}/out"))
    am.run(env.execute())
    yield "parquet", kept, df.sparkSession.read.parquet(f"{place}/out")


@settings(
    max_examples=3,
    **SLOW,
)
@given(table=tables(has_void=False))
def test_random_rows_leave_as_they_came(new_york: Any, table: Any) -> None:
    schema, rows = table
    arrays = [
        pa.array([as_arrow(row[field.name]) for row in rows], field.type)
        for field in schema
    ]
    numbers = pa.array(range(len(rows)), pa.int16())
    arrow = pa.Table.from_arrays([numbers, *arrays], names=["n", *schema.names])
    df = new_york.createDataFrame(arrow, spark_schema(arrow.schema)).coalesce(1)
    expected = [{"number": number, **row} for number, row in enumerate(rows)]
    kinds = dict(df.withColumnRenamed("n", "number").dtypes)
    place = tempfile.mkdtemp()
    try:
        for way, names, found in leaving(df, place, fitting(schema)):
            assert found.dtypes == [(name, kinds[name]) for name in names], way
            # Not by toArrow(): Spark's own cannot take a list in which a geometry is NULL.
            left = am.run(read(SparkSource(found.coalesce(1), records=dict)))
            left.sort(key=lambda record: record["number"])
            wanted = [{name: row[name] for name in names} for row in expected]
            assert comparable(left) == comparable(wanted), way
    finally:
        shutil.rmtree(place)
