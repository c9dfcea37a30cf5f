"""What columns cannot do is an error where it is written, or names operator and batch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import aiomailbox as am
from aiomailbox.errors import AioMailboxError

TABLE = pa.table({"k": ["a", "b", "a"], "n": [1, 2, 3], "ms": [0, 1, 2]})

Verb = Callable[[Any], Any]
# What reads the field "weight", which nothing has.
READERS: dict[str, Verb] = {
    "filter": lambda s: s.filter(pc.field("weight") > 1),
    "select": lambda s: s.select("weight"),
    "with_columns": lambda s: s.with_columns(x=pc.field("weight") + 1),
    "drop": lambda s: s.drop("weight"),
    "rename": lambda s: s.rename({"weight": "w"}),
    "key_by": lambda s: s.key_by("weight").aggregate(am.count()),
    "two keys": lambda s: s.key_by("k", "weight").aggregate(am.count()),
    "sum": lambda s: s.key_by("k").aggregate(am.sum_("weight")),
    "where": lambda s: s.key_by("k").aggregate(am.count(where=pc.field("weight") > 1)),
    "deduplicate": lambda s: s.key_by("weight").deduplicate(),
    "event times": lambda s: s.assign_timestamps_and_watermarks(
        am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
            "weight"
        )
    ),
}


def hidden() -> Any:
    """Return columns whose fields are unknown before there are any."""
    env = am.StreamExecutionEnvironment()
    return env.from_arrow(TABLE).map_batches(lambda batch: batch)


def said(caught: pytest.ExceptionInfo[am.JobFailedError]) -> str:
    """Return all that an error says, with what it was raised from."""
    error: BaseException | None = caught.value
    text = ""
    while error is not None:
        text += f"{error} {' '.join(getattr(error, '__notes__', []))} "
        error = error.__cause__
    return text


@pytest.mark.parametrize("verb", READERS.values(), ids=READERS)
def test_a_field_that_no_column_has_is_refused_where_it_is_written(verb: Verb) -> None:
    stream = am.StreamExecutionEnvironment().from_arrow(TABLE)
    with pytest.raises(am.UsageError, match="weight"):
        verb(stream)


@pytest.mark.parametrize("name", READERS)
async def test_an_unknown_field_is_named_with_those_that_there_are(
    name: str,
) -> None:
    with pytest.raises(am.JobFailedError) as caught:
        await READERS[name](hidden()).collect()
    text = said(caught)
    assert "weight" in text
    assert "k, n, ms" in text or "'k', 'n', 'ms'" in text, text
    assert "operator '" in text, text


async def test_columns_that_change_are_unified_where_they_can_be() -> None:
    made = iter(
        [
            pa.record_batch({"n": pa.array([1], pa.int32())}),
            pa.record_batch({"n": [2.5], "new": ["x"]}),
            pa.record_batch({"new": ["y"]}),
        ]
    )
    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(TABLE.to_batches(1)).map_batches(lambda batch: next(made))
    assert [tuple(record) for record in await stream.collect()] == [
        (1,),
        (2.5, "x"),
        (None, "y"),
    ]


LATER = {
    "a dictionary": pa.array(["b", None]).dictionary_encode(),
    "a large dictionary": pa.array(["b", None])
    .dictionary_encode()
    .cast(pa.dictionary(pa.int8(), pa.large_string())),
    "a view": pa.array(["b", None], pa.string_view()),
    "nothing": pa.nulls(2),
}


@pytest.mark.parametrize("later", LATER)
async def test_texts_are_unified_however_arrow_stores_them(later: str) -> None:
    parts = pa.array(["a"]), LATER[later], pa.array(["c"])
    for order in (parts, parts[::-1], (parts[1], parts[0], parts[2])):
        batches = [pa.record_batch({"k": part}) for part in order]
        expected = [value for part in order for value in part.to_pylist()]
        env = am.StreamExecutionEnvironment()
        found = await env.from_arrow(batches).collect()
        assert [record.k for record in found] == expected
        made = iter(batches)
        stream = am.StreamExecutionEnvironment().from_arrow(TABLE.to_batches(1))
        found = await stream.map_batches(lambda batch, made=made: next(made)).collect()
        assert [record.k for record in found] == expected


@pytest.mark.parametrize(
    "columns",
    [
        (pa.array(["a"]), pa.array([b"a"])),
        (pa.array([Decimal("0.10")]), pa.array([0.1], pa.float32())),
        (pa.array([0], pa.timestamp("us")), pa.array([0], pa.timestamp("us", "UTC"))),
        (pa.array([2**63 - 1]), pa.array([0.5])),
    ],
    ids=lambda columns: str(columns[0].type),
)
async def test_values_never_become_others_to_be_unified(columns: Any) -> None:
    batches = [pa.record_batch({"k": column}) for column in columns]
    env = am.StreamExecutionEnvironment()
    with pytest.raises(am.UsageError, match=r"the columns of batch \d differ"):
        env.from_arrow(batches)
    made = iter(batches[::-1])
    stream = env.from_arrow(TABLE.to_batches(1)).map_batches(lambda batch: next(made))
    with pytest.raises(am.JobFailedError, match="differ from those of earlier batches"):
        await stream.collect()


async def test_moments_of_two_time_zones_are_unified() -> None:
    zones = "Europe/Oslo", "UTC"
    batches = [
        pa.record_batch({"at": pa.array([3], pa.timestamp("ms", zone))})
        for zone in zones
    ]
    found = await am.StreamExecutionEnvironment().from_arrow(batches).collect()
    assert found[0] == found[1]


async def test_columns_that_cannot_be_unified_are_named_with_operator_and_batch() -> (
    None
):
    made = iter([pa.record_batch({"n": [1]}), pa.record_batch({"n": ["text"]})])
    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(TABLE.to_batches(1)).map_batches(lambda batch: next(made))
    with pytest.raises(am.JobFailedError) as caught:
        await stream.collect()
    text = said(caught)
    assert "Field n has incompatible types" in text
    assert "operator 'map_batches'" in text
    assert "batch 2" in text


FAR = pa.array([2**62, 0], pa.timestamp("ms", "UTC"))


@pytest.mark.parametrize(
    "column",
    [
        FAR,
        FAR.cast(pa.timestamp("ms")),
        FAR.view(pa.timestamp("s", "UTC")),
        pa.array([2**60, 0], pa.timestamp("us", "UTC")),
        # The smallest of 64 bits, which stands for null in numpy.
        pa.array([-(2**63), 0]).view(pa.timestamp("us", "UTC")),
        pa.array([-(2**63), 0]).view(pa.timestamp("us")),
        pa.array([-(2**63), 0, None]).view(pa.timestamp("us", "UTC")),
        pa.array([-(2**63), 0, None]).view(pa.timestamp("us")),
        pa.array([2**62, 0]).view(pa.date64()),
        pa.array([-(2**63), 0, None]).view(pa.date64()),
    ],
    ids=str,
)
async def test_a_moment_that_python_cannot_express_is_an_error_and_no_other_moment(
    column: pa.Array,
) -> None:
    table = pa.table({"k": [1, 2, 0][: len(column)], "at": column})
    env = am.StreamExecutionEnvironment()
    latest = env.from_arrow(table).key_by("k").aggregate(am.max_("at"))
    for stream in (env.from_arrow(table), latest):
        with pytest.raises(AioMailboxError, match="outside the years 1 to 9999"):
            await stream.collect()
    # Columns that are not read as moments pass.
    assert await env.from_arrow(table).filter(pc.field("k") > 1).count() == 1


@pytest.mark.parametrize("unit", ["us", "ms", "s"])
async def test_durations_have_rows_as_long_as_python_can_express_them(
    unit: str,
) -> None:
    least = -(2**63) if unit == "us" else -86_399_999_913_600
    column = pa.array([least, 1, None]).view(pa.duration(unit))
    table, one = pa.table({"long": column}), pa.scalar(1, column.type).as_py()
    found = await am.StreamExecutionEnvironment().from_arrow(table).collect()
    assert [record.long for record in found] == [least * one, one, None]


async def test_a_duration_that_python_cannot_express_is_an_error() -> None:
    table = pa.table({"long": pa.array([2**62], pa.duration("s"))})
    with pytest.raises(AioMailboxError, match="'long' has a duration of more than"):
        await am.StreamExecutionEnvironment().from_arrow(table).collect()


async def test_an_expression_of_such_a_moment_fails_for_its_record_only() -> None:
    table = pa.table({"k": [1, 2], "at": FAR})
    env = am.StreamExecutionEnvironment()
    before = pc.field("at") < pa.scalar(10, pa.timestamp("ms", "UTC"))
    found = env.from_arrow(table).filter(before, on_error=am.skip).select("k")
    assert [record.k for record in await found.collect()] == [2]
    with pytest.raises(am.JobFailedError) as caught:
        await env.from_arrow(table).filter(before).collect()
    assert "operator 'filter'" in said(caught)


@pytest.mark.parametrize(
    ("column", "first"),
    [
        (pa.RunEndEncodedArray.from_arrays([1, 2], ["a", "b"]), "a"),
        (pa.array(["a", None], pa.string_view()), "a"),
        (pa.array([[1], None], pa.list_view(pa.int64())), [1]),
        (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), [1, 2]),
        (pa.array([1.5, None], pa.float16()), 1.5),
        (pa.array([Decimal("1.5"), None], pa.decimal256(50, 1)), Decimal("1.5")),
        (pa.array([pa.MonthDayNano([1, 2, 3]), None]), pa.MonthDayNano([1, 2, 3])),
        (
            pa.UnionArray.from_sparse(
                pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["x", "y"])]
            ),
            1,
        ),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
async def test_rare_types_pass_and_have_rows(column: pa.Array, first: Any) -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(pa.table({"k": [1, 2], "rare": column}))
    for form in (stream, stream.rebalance()):
        records = await form.filter(pc.field("k") < 2).collect()
        assert [record.rare for record in records] == [first]


MOMENTS = [datetime(2020, 1, 1, 1, tzinfo=UTC), None]
BERLIN = pa.timestamp("ns", "Europe/Berlin")
PAIRS = [MOMENTS, None, MOMENTS[::-1]]
STRUCTS = [[{"at": each}] for each in [*MOMENTS, None]]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array(PAIRS, pa.list_(BERLIN, 2)), PAIRS),
        (pa.array(PAIRS, pa.list_view(BERLIN)), PAIRS),
        (pa.array(PAIRS, pa.large_list_view(BERLIN)), PAIRS),
        (
            pa.RunEndEncodedArray.from_arrays([2, 3], pa.array(MOMENTS, BERLIN)),
            [MOMENTS[0], MOMENTS[0], None],
        ),
        (pa.array(STRUCTS, pa.list_(pa.struct({"at": BERLIN}), 1)), STRUCTS),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
async def test_what_is_inside_of_rare_types_is_what_it_is_alone(
    column: pa.Array, values: Any
) -> None:
    table = pa.table({"k": [1, 2, 3], "rare": column})
    env = am.StreamExecutionEnvironment()
    for first in (0, 1):
        rows = env.from_arrow(table.slice(first), records=dict)
        found = [record["rare"] for record in await rows.collect()]
        assert repr(found) == repr(values[first:])


@pytest.mark.parametrize("name", ["sum", "cumulative_sum", "unique", "nothing_like_it"])
def test_a_function_of_no_single_record_is_refused_where_it_is_written(
    name: str,
) -> None:
    env = am.StreamExecutionEnvironment()
    stream, called = env.from_arrow(TABLE), pc.Expression._call(name, [pc.field("n")])
    verbs: list[Verb] = [
        lambda s: s.filter(called > 1),
        lambda s: s.with_columns(x=called),
        lambda s: s.key_by("k").aggregate(am.count(where=called > 1)),
    ]
    for verb in verbs:
        with pytest.raises(am.InvalidArgumentError, match=f"'{name}'"):
            verb(stream)


@pytest.mark.parametrize("wrong", ["n > 1", True, None])
def test_what_is_no_expression_of_arrow_is_told_what_one_is(wrong: Any) -> None:
    stream = am.StreamExecutionEnvironment().from_arrow(TABLE)
    with pytest.raises(am.WrongTypeError, match=r"Write pyarrow\.compute\.field"):
        stream.filter(wrong)


@pytest.mark.parametrize("path", [("zz",), ("zz", "a"), ("place", "zz")])
async def test_an_inner_field_that_is_missing_is_named(path: tuple[str, ...]) -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(pa.table({"place": [{"city": "Oslo"}]}))
    said = f"there is no field '{'.'.join(path)}'"
    if path[0] == "zz":
        with pytest.raises(am.UsageError, match=said):
            stream.filter(pc.field(path).is_valid())
    else:
        with pytest.raises(am.JobFailedError, match=said):
            await stream.filter(pc.field(path).is_valid()).collect()


async def test_values_that_python_cannot_express_name_operator_and_column() -> None:
    offsets = pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]))
    texts = pa.Array.from_buffers(
        pa.string(), 2, [None, offsets, pa.py_buffer(b"a\xff")]
    )
    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(pa.table({"k": [1, 2], "text": texts}))
    verbs: list[Verb] = [
        lambda s: s.map(lambda record: record),
        lambda s: s.key_by("text").aggregate(am.count()),
        lambda s: s.map_async(_one, into="more", concurrency=1),
    ]
    for verb in verbs:
        with pytest.raises(am.JobFailedError, match=r"operator.*column 'text'"):
            await verb(stream).collect()
    assert [each.k for each in await stream.select("k").collect()] == [1, 2]


async def test_intervals_without_a_form_in_arrow_s_library_name_the_expression() -> (
    None
):
    between = pc.Expression._call(
        "day_time_interval_between", [pc.field("a"), pc.field("b")]
    )
    moments = pa.array([1], pa.timestamp("us"))
    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(pa.table({"a": moments, "b": moments}))
    with pytest.raises(am.JobFailedError, match="day_time_interval_between"):
        await stream.select(days=between).collect()


async def test_a_dict_with_a_key_that_is_no_text_is_named() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([{1: 2, "a": 3}])
    with pytest.raises(am.JobFailedError, match="field 1, whose name is not a string"):
        await stream.filter(pc.field("a") > 1).collect()


def test_a_name_that_no_record_can_have_is_refused_where_it_is_written() -> None:
    env = am.StreamExecutionEnvironment()
    for name in ("a b", "class", "_hidden"):
        with pytest.raises(am.UsageError, match="cannot be a field"):
            env.from_arrow(pa.table({name: [1]}))
        assert am.run(env.from_arrow(pa.table({name: [1]}), records=dict).count()) == 1


NAMED: dict[str, Verb] = {
    "into": lambda s: s.map_async(_one, into="a b", concurrency=2),
    "select": lambda s: s.select("k", **{"a b": pc.field("n")}),
    "select, renamed": lambda s: s.select("k", **{"a b": "n"}),
    "with_columns": lambda s: s.with_columns(**{"a b": pc.field("n")}),
    "rename": lambda s: s.rename({"n": "a b"}),
    "interval join": lambda s: (
        s.key_by("k")
        .interval_join(s.key_by("k"))
        .between(am.millis(0), am.millis(0))
        .select(**{"a b": "left.n"})
    ),
    "window join": lambda s: (
        s.join(s)
        .where("k")
        .equal_to("k")
        .window(am.TumblingEventTimeWindows.of(am.millis(5)))
        .select(**{"a b": "left.n"})
    ),
}


class Visit(NamedTuple):
    k: str
    n: int
    ms: int


async def _one(record: Any) -> int:
    return 1


@pytest.mark.parametrize("verb", NAMED.values(), ids=NAMED)
async def test_a_new_name_that_no_record_can_have_is_refused_where_it_is_written(
    verb: Verb,
) -> None:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner("ms")
    env = am.StreamExecutionEnvironment()
    rows = [{"k": "a", "n": 1, "ms": 0}]
    for stream in (
        env.from_arrow(TABLE, strategy),
        env.from_collection([Visit("a", 1, 0)], strategy),
    ):
        with pytest.raises(am.UsageError, match="'a b' cannot be a field"):
            verb(stream)
    # Keys of dicts may be any texts.
    for stream in (
        env.from_arrow(TABLE.slice(0, 1), strategy, records=dict),
        env.from_collection(rows, strategy),
    ):
        (found,) = await verb(stream).collect()
        assert found["a b"] == 1


@pytest.mark.parametrize("rows", [2, 4])
async def test_a_batch_of_another_length_without_event_times_is_named(
    rows: int,
) -> None:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(TABLE, strategy.with_timestamp_assigner("ms"))
    other = pa.record_batch({"n": list(range(rows))})
    with pytest.raises(am.JobFailedError) as caught:
        await stream.map_batches(lambda batch: other).collect()
    text = said(caught)
    assert f"it returned {rows} records for 3" in text
    assert "operator 'map_batches'" in text
    assert "batch 1" in text


async def test_two_fields_of_one_name_are_refused_where_they_are_written() -> None:
    stream = am.StreamExecutionEnvironment().from_arrow(TABLE)
    with pytest.raises(am.UsageError, match="two fields 'k'"):
        stream.rename({"n": "k"})
    with pytest.raises(am.JobFailedError) as caught:
        await hidden().rename({"n": "k"}).collect()
    assert "two fields 'k'" in said(caught)
    swapped = am.StreamExecutionEnvironment().from_arrow(TABLE)
    found = await swapped.rename({"k": "n", "n": "k"}).collect()
    assert found[0]._asdict() == {"n": "a", "k": 1, "ms": 0}


async def test_records_without_fields_are_no_batch() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([{}, {}]).map_batches(lambda batch: batch)
    with pytest.raises(am.JobFailedError) as caught:
        await stream.collect()
    assert "{} has no fields" in said(caught)
