"""A field that no record has is refused where the pipeline is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest

import aiomailbox as am
from aiomailbox.errors import UsageError


class Sale(NamedTuple):
    shop: str
    price: float
    at: int


@dataclass
class SaleClass:
    shop: str
    price: float
    at: int


class SaleStruct(msgspec.Struct):
    shop: str
    price: float
    at: int


TIME = am.WatermarkStrategy.for_monotonous_timestamps()
WINDOW = am.TumblingEventTimeWindows.of(am.minutes(1))


async def call(record: Any) -> Any:
    return record


Write = Callable[[Any, str], Any]

VERBS: dict[str, Write] = {
    "key_by": lambda stream, field: stream.key_by(field),
    "timestamps": lambda stream, field: stream.assign_timestamps_and_watermarks(
        TIME.with_timestamp_assigner(field)
    ),
    "aggregate": lambda stream, field: stream.key_by("shop").aggregate(am.sum_(field)),
    "where": lambda stream, field: stream.key_by("shop").aggregate(
        am.count(where=field)
    ),
    "aggregates": lambda stream, field: stream.key_by("shop").aggregate(
        am.aggregates(n=am.count(), highest=am.max_(field))
    ),
    "top_n": lambda stream, field: stream.key_by("shop").aggregate(
        am.aggregates(best=am.top_n(3, by=field))
    ),
    "window": lambda stream, field: (
        stream.key_by("shop").window(WINDOW).aggregate(am.mean(field))
    ),
    "window_all": lambda stream, field: stream.window_all(WINDOW).aggregate(
        am.aggregates(mean=am.mean(field))
    ),
    "map_async id": lambda stream, field: stream.map_async(call, id=field),
    "map_async key": lambda stream, field: stream.map_async(
        call, ordered="key", key=field
    ),
    "partition_custom": lambda stream, field: stream.partition_custom(
        lambda key, count: 0, field
    ),
    "join": lambda stream, field: (
        stream.join(stream)
        .where("shop")
        .equal_to(field)
        .window(WINDOW)
        .apply(lambda one, other: one)
    ),
    "select": lambda stream, field: stream.select(field),
}


@pytest.mark.parametrize("kind", [Sale, SaleClass, SaleStruct])
@pytest.mark.parametrize("verb", VERBS)
def test_a_field_that_no_record_has_is_named_with_those_there_are(
    verb: str, kind: Any
) -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([kind("a", 1.0, 0)])
    VERBS[verb](stream, "at")
    with pytest.raises(UsageError, match="prise") as refused:
        VERBS[verb](stream, "prise")
    assert "shop, price, at" in str(refused.value)


@pytest.mark.parametrize("verb", VERBS)
def test_so_it_is_behind_a_declared_type(verb: str) -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([1]).map(lambda n: Sale("a", n, n)).checked(Sale)
    VERBS[verb](stream, "at")
    with pytest.raises(UsageError, match="prise"):
        VERBS[verb](stream, "prise")


def test_the_time_of_a_source_is_looked_up_too() -> None:
    env = am.StreamExecutionEnvironment()
    strategy = TIME.with_timestamp_assigner("time")
    with pytest.raises(UsageError, match="no field 'time'"):
        env.from_collection([Sale("a", 1.0, 0)], strategy)


def test_of_records_that_are_not_known_nothing_is_refused() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([1]).map(lambda n: Sale("a", n, n))
    for verb, write in VERBS.items():
        if verb != "select":
            write(stream, "prise")


@pytest.mark.spark
def test_the_columns_of_a_dataframe_are_known(spark: Any) -> None:
    df = spark.range(3).selectExpr("'a' AS shop", "1.0D AS price", "id AS at")
    env = am.StreamExecutionEnvironment()
    for records in ("namedtuple", dict, "row", Sale):
        stream = env.from_source(am.SparkSource(df, records=records))
        for write in VERBS.values():
            write(stream, "at")
            with pytest.raises(UsageError, match="shop, price, at"):
                write(stream, "prise")
    with pytest.raises(UsageError, match="no field 'time'"):
        env.from_source(am.SparkSource(df), TIME.with_timestamp_assigner("time"))
