"""Expressions in aggregates: the same on columns, on rows and by a function."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import aiomailbox as am

TABLE = pa.table(
    {
        "city": [("Oslo", "Rome", "Bern")[i % 3] for i in range(300)],
        "price": [None if i % 11 == 0 else i * 0.5 for i in range(300)],
        "count": [i % 7 for i in range(300)],
        "ms": [i * 10 for i in range(300)],
    }
)
TIMES = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ms")
DEAR = pc.field("price") * pc.field("count") > 100


def is_dear(record: Any) -> bool:
    if isinstance(record, dict):
        price, count = record["price"], record["count"]
    else:
        price, count = record.price, record.count
    return price is not None and price * count > 100


def both(where: Any) -> Any:
    return am.aggregates(
        n=am.count(where=where),
        total=am.sum_("price", where=where),
        most=am.max_("count", where=where),
        least=am.min_("price", where=where),
        middle=am.mean("price", where=where),
        all=am.count(),
    )


async def results(verb: str, where: Any, form: str, aggregate: Any = both) -> Any:
    env = am.StreamExecutionEnvironment()
    records: Any = dict if form == "dicts" else "namedtuple"
    stream: Any = env.from_arrow(TABLE.to_batches(64), TIMES, records=records)
    if form != "columns":
        stream = stream.map(lambda record: record)
    seconds = am.TumblingEventTimeWindows.of(am.seconds(1))
    if verb == "running":
        keyed = stream.key_by("city")
    elif verb == "sliding":
        keyed = stream.key_by("city").window(
            am.SlidingEventTimeWindows.of(am.seconds(1), am.millis(500))
        )
    elif verb == "sessions":
        keyed = stream.key_by("city").window(
            am.EventTimeSessionWindows.with_gap(am.seconds(1))
        )
    elif verb == "all":
        keyed = stream.window_all(seconds)
    else:
        keyed = stream.key_by("city").window(seconds)
    return await keyed.aggregate(aggregate(where)).collect()


@pytest.mark.parametrize("verb", ["running", "windows", "all", "sliding", "sessions"])
@pytest.mark.parametrize("form", ["columns", "rows", "dicts"])
async def test_an_expression_says_what_a_function_says(verb: str, form: str) -> None:
    expected = await results(verb, is_dear, "rows")
    assert len(expected) > 2
    assert any(each.n for each in expected)
    assert await results(verb, DEAR, form) == expected


async def test_aggregates_that_ask_for_rows_take_expressions_too() -> None:
    def several(where: Any) -> Any:
        return am.aggregates(
            last=am.last("price", by="ms", where=where),
            counts=am.count_distinct("count", where=where),
            middle=am.quantile(0.5, "price", where=where),
            dear=am.collect_list("price", where=where),
        )

    for verb in ("running", "windows"):
        expected = await results(verb, is_dear, "rows", several)
        assert await results(verb, DEAR, "columns", several) == expected


def test_one_with_an_expression_works_on_columns() -> None:
    env = am.StreamExecutionEnvironment()
    keyed = env.from_arrow(TABLE, TIMES).key_by("city")
    keyed.aggregate(both(DEAR)).sink_to(print)
    lines = [line for line in env.explain().splitlines() if "- aggregate" in line]
    assert all(line.endswith("; columns") for line in lines), lines


async def test_one_aggregate_may_be_used_for_streams_of_other_types() -> None:
    dear = am.count(where=pc.field("price") >= pc.field("least"))
    env = am.StreamExecutionEnvironment()
    numbers = [{"price": 2, "least": 1}, {"price": 0, "least": 1}]
    texts = [{"price": "b", "least": "a"}, {"price": "a", "least": "b"}]
    for records in (numbers, texts, numbers):
        stream = env.from_collection(records).key_by(lambda record: 1)
        assert await stream.aggregate(dear).collect() == [1, 1]


async def test_a_record_for_which_it_cannot_be_computed_is_treated_as_asked() -> None:
    records = [{"n": 1, "by": 1}, {"n": 1, "by": 0}, {"n": 4, "by": 2}]
    whole = am.count(where=pc.field("n") / pc.field("by") >= 1)

    async def count(stream: Any, **options: Any) -> list[int]:
        keyed = stream.key_by(lambda record: 1)
        return list(await keyed.aggregate(whole, **options).collect())

    env = am.StreamExecutionEnvironment()
    assert await count(env.from_collection(records), on_error=am.skip) == [1, 2]
    with pytest.raises(am.JobFailedError, match="divide by zero, by where="):
        await count(env.from_collection(records))
    table = pa.table({"k": [1, 1, 1], "n": [1, 1, 4], "by": [1, 0, 2]})
    keyed = env.from_arrow(table).key_by("k")
    assert await keyed.aggregate(whole, on_error=am.skip).collect() == [1, 2]


def test_what_does_not_fit_is_refused_where_it_is_written() -> None:
    env = am.StreamExecutionEnvironment()
    keyed = env.from_arrow(TABLE, TIMES).key_by("city")
    missing = am.count(where=pc.field("weight") > 1)
    with pytest.raises(am.RecordTypeError, match="weight"):
        keyed.aggregate(missing)
    windows = keyed.window(am.TumblingEventTimeWindows.of(am.seconds(1)))
    with pytest.raises(am.RecordTypeError, match="weight"):
        windows.aggregate(missing)
    with pytest.raises(am.InvalidArgumentError, match="by its position"):
        keyed.aggregate(am.count(where=pc.field(0) > 1))
    with pytest.raises(am.UsageError, match="only aggregate"):
        missing.add({"weight": 2}, missing.create_accumulator())


async def test_what_is_not_true_or_false_is_refused() -> None:
    env = am.StreamExecutionEnvironment()
    keyed = env.from_arrow(TABLE, TIMES).key_by("city")
    with pytest.raises(am.JobFailedError, match="not bool"):
        await keyed.aggregate(am.count(where=pc.field("count") + 1)).collect()
