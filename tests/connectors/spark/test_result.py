"""Results as a DataFrame."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from aiomailbox.connectors.spark.result import dataframe_from_records
from aiomailbox.connectors.spark.source import SparkSource
from aiomailbox.errors import (
    InvalidArgumentError,
    RecordTypeError,
    UnsupportedColumnError,
)

pytestmark = pytest.mark.spark


async def test_times_with_and_without_a_zone_stay_what_they_are(spark: Any) -> None:
    records = [
        {
            "at": datetime(2013, 11, 3, 5, 30, tzinfo=UTC),
            "local": datetime(2013, 11, 3, 1, 30),
            "day": date(2013, 11, 3),
            "price": Decimal("1.5"),
            "tags": ["a"],
            "inner": {"x": 1},
        }
    ]
    df = await dataframe_from_records(spark, records)
    kinds = {field.name: field.dataType.simpleString() for field in df.schema.fields}
    assert kinds == {
        "at": "timestamp",
        "local": "timestamp_ntz",
        "day": "date",
        "price": "decimal(38,1)",
        "tags": "array<string>",
        "inner": "struct<x:bigint>",
    }
    [row] = df.selectExpr("unix_micros(at) us", "local", "inner.x x").collect()
    assert row == (1383456600000000, datetime(2013, 11, 3, 1, 30), 1)


async def test_what_was_read_can_be_given_back(spark: Any, drive: Any) -> None:
    df = spark.range(0, 100, 1, 2).selectExpr("id", "timestamp_millis(id) t")
    driven = drive(SparkSource(df))
    records = await driven.read()
    await driven.close()
    again = await dataframe_from_records(spark, records)
    assert again.schema.simpleString() == df.schema.simpleString()
    assert again.exceptAll(df).count() == 0


async def test_batches_and_a_given_schema_are_taken(spark: Any) -> None:
    batch = pa.record_batch({"a": [1, 2]})
    df = await dataframe_from_records(spark, [batch, batch], schema="a int")
    assert df.schema.simpleString() == "struct<a:int>"
    assert df.count() == 4
    assert (await dataframe_from_records(spark, [], schema="a int")).count() == 0


async def test_what_spark_has_no_type_for_is_named(spark: Any) -> None:
    span = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
    with pytest.raises(UnsupportedColumnError, match="'span'"):
        await dataframe_from_records(spark, [pa.record_batch({"span": span})])
    unsigned = pa.record_batch({"big": pa.array([1], pa.uint64())})
    df = await dataframe_from_records(spark, [unsigned])
    assert df.dtypes == [("big", "bigint")]
    with pytest.raises(InvalidArgumentError, match="schema"):
        await dataframe_from_records(spark, [])


async def test_records_have_the_columns_of_a_given_schema_by_name(spark: Any) -> None:
    df = await dataframe_from_records(
        spark, [{"b": 1, "a": 2}], schema="a long, b double"
    )
    assert df.collect() == [(2, 1.0)]
    for record, words in {
        ("b", 2): r"\['b'\] are not in the schema, which has a: int64",
        ("a", "x"): "column 'a'.*int64.*'x'",
    }.items():
        with pytest.raises(RecordTypeError, match=words):
            await dataframe_from_records(spark, [dict([record])], schema="a long")
