"""Random pipelines into sinks of columns: what columns and rows write is the same."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

import aiomailbox as am
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.encode import BatchMaker
from aiomailbox.columnar.forms import DictForm
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.errors import RecordTypeError
from aiomailbox.records.record_classes import record_class
from aiomailbox.records.run import ListRun
from tests.columnar.test_pipelines import (
    JITTER_MS,
    SCHEMA,
    WINDOWS,
    as_text,
    in_batches,
    is_paired,
    program,
    programs,
    tame_rows,
    timed,
)


def stream_of(env: am.StreamExecutionEnvironment, source: Any, *, as_rows: bool) -> Any:
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.millis(JITTER_MS))
    stream = env.from_arrow(source, strategy.with_timestamp_assigner("at"))
    return stream.map(lambda record: record) if as_rows else stream


async def written(source: Any, what: dict[str, Any], *, as_rows: bool) -> list[Any]:
    """Return what sinks get: batches of Arrow, and a directory of Parquet."""
    env = am.StreamExecutionEnvironment(parallelism=1)
    results, _ = program(stream_of(env, source, as_rows=as_rows), what)
    found = [batch async for batch in results.arrow_batches()]
    with tempfile.TemporaryDirectory() as place:
        target = Path(place, "out")
        env = am.StreamExecutionEnvironment(parallelism=1)
        results, _ = program(stream_of(env, source, as_rows=as_rows), what)
        results.sink_to(am.ParquetSink(target))
        await env.execute()
        files = [pq.read_table(file) for file in sorted(target.rglob("*.parquet"))]
    return [rows_of(found), rows_of(files)]


def rows_of(tables: list[Any]) -> list[str]:
    return sorted(as_text(row) for table in tables for row in table.to_pylist())


def can_be_written(what: dict[str, Any]) -> bool:
    """Say whether rows are enough to know the columns: a tuple names none."""
    if "by function" in what["end"] or is_paired(what):
        return False
    return len(what["keys"]) == 1


WIDE_WINDOWS: dict[str, Any] = {
    "rolling": lambda keyed: keyed,
    "tumbling": lambda keyed: keyed.window(WINDOWS["tumbling"]),
    "sliding": lambda keyed: keyed.window(WINDOWS["sliding"]),
    "sessions": lambda keyed: keyed.window(WINDOWS["sessions"]),
}


@pytest.mark.parametrize("name", WIDE_WINDOWS)
@pytest.mark.real_time
async def test_keys_of_two_fields_are_columns_also_where_operators_need_rows(
    name: str, tmp_path: Path
) -> None:
    """NaN as an extreme makes rows from the first record on, keys beyond it columns."""
    batches = [
        pa.RecordBatch.from_pylist(
            [{"key": f"k{n}", "part": n % 2, "x": math.nan, "at": n * 9}],
            pa.schema([SCHEMA.field(each) for each in ("key", "part", "x", "at")]),
        )
        for n in range(20)
    ]
    env = am.StreamExecutionEnvironment(parallelism=1)
    keyed = stream_of(env, batches, as_rows=False).key_by("key", "part")
    both = am.aggregates(n=am.count(), least=am.min_("x"))
    results = WIDE_WINDOWS[name](keyed).aggregate(both)
    results.select("key", "n", "least").sink_to(am.ParquetSink(tmp_path / "out"))
    await env.execute()
    assert "columns, then rows when it ran" in env.explain()
    files = [pq.read_table(file) for file in (tmp_path / "out").rglob("*.parquet")]
    found = {
        (row["key"]["key"], row["key"]["part"], row["n"])
        for table in files
        for row in table.to_pylist()
    }
    assert {(f"k{n}", n % 2, 1) for n in range(20)} <= found


async def in_files_and_batches(
    stream_of: Callable[[am.StreamExecutionEnvironment], Any], place: Path
) -> list[list[dict[str, Any]]]:
    """Return the rows that `arrow_batches` gives, and those in files of Parquet."""
    env = am.StreamExecutionEnvironment(parallelism=1)
    found = [batch async for batch in stream_of(env).arrow_batches()]
    env = am.StreamExecutionEnvironment(parallelism=1)
    stream_of(env).sink_to(am.ParquetSink(place))
    await env.execute()
    files = [pq.read_table(file) for file in sorted(place.rglob("*.parquet"))]
    return [
        [row for part in parts for row in part.to_pylist()] for parts in (found, files)
    ]


@pytest.mark.real_time
async def test_a_column_of_which_only_null_came_gets_its_type_with_the_first_value(
    tmp_path: Path,
) -> None:
    columns = [pa.nulls(1), pa.array([1]), pa.nulls(1), pa.array([2], pa.int32())]

    def stream(env: am.StreamExecutionEnvironment) -> Any:
        batches = [pa.record_batch({"place": [place]}) for place in range(4)]
        return env.from_arrow(batches).map_batches(
            lambda batch: pa.record_batch({"n": columns[batch["place"][0].as_py()]})
        )

    for found in await in_files_and_batches(stream, tmp_path / "out"):
        assert found == [{"n": None}, {"n": 1}, {"n": None}, {"n": 2}]


@pytest.mark.parametrize("name", WIDE_WINDOWS)
@pytest.mark.real_time
async def test_keys_have_their_fields_also_while_an_aggregate_of_rows_has_no_value(
    name: str, tmp_path: Path
) -> None:
    """Extremes of decimals are found in rows."""
    batches = [
        pa.record_batch(
            {
                "key": ["a"],
                "part": [1],
                "money": pa.array([money], pa.decimal128(9, 2)),
                "at": pa.array([at], pa.timestamp("ms", "UTC")),
            }
        )
        for money, at in ((None, 0), (Decimal("1.50"), 300), (None, 600))
    ]

    def stream(env: am.StreamExecutionEnvironment) -> Any:
        keyed = stream_of(env, batches, as_rows=False).key_by("key", "part")
        aggregates = am.aggregates(most=am.max_("money"))
        return WIDE_WINDOWS[name](keyed).aggregate(aggregates).select("key", "most")

    for found in await in_files_and_batches(stream, tmp_path / "out"):
        values = [row["most"] for row in found if row["key"] == {"key": "a", "part": 1}]
        assert [*dict.fromkeys(values)] == [None, Decimal("1.50")]


@given(
    programs.filter(can_be_written),
    st.lists(tame_rows, min_size=1, max_size=25),
    st.lists(st.integers(0, 89), min_size=25, max_size=25),
    st.lists(st.integers(1, 15), min_size=1, max_size=6),
)
@settings(max_examples=12)
@pytest.mark.real_time
@pytest.mark.timeout(120)
def test_sinks_of_columns_get_the_same_from_columns_and_rows(
    what: dict[str, Any],
    records: list[dict[str, Any]],
    jitter: list[int],
    lengths: list[int],
) -> None:
    rows = timed(records, jitter, lengths[0])
    source = [
        pa.RecordBatch.from_pylist(part, SCHEMA) for part in in_batches(rows, lengths)
    ]
    columns = am.run(written(source, what, as_rows=False))
    forced = am.run(written(source, what, as_rows=True))
    assert columns == forced
    assert columns[0] == columns[1]


LARGE = 2**62


@pytest.mark.real_time
async def test_a_sink_takes_keys_of_two_fields_also_when_columns_have_ended(
    tmp_path: Path,
) -> None:
    """Sums beyond 64 bits make rows in mid-stream, whose keys are tuples."""
    batches = [
        pa.record_batch({"k": ["a"], "part": [1], "n": [n]})
        for n in (LARGE, LARGE, -LARGE)
    ]
    expected = [
        {"key": {"k": "a", "part": 1}, "n": n, "most": LARGE} for n in (1, 2, 3)
    ]
    env = am.StreamExecutionEnvironment(parallelism=1)
    both = am.aggregates(n=am.count(), total=am.sum_("n"), most=am.max_("n"))
    keyed: Any = env.from_arrow(batches).key_by("k", "part").aggregate(both)
    narrow = keyed.select("key", "n", "most")
    narrow.sink_to(am.ParquetSink(tmp_path / "out"))
    await env.execute()
    assert "then rows when it ran: a sum exceeds 64 bits" in env.explain()
    files = sorted((tmp_path / "out").rglob("*.parquet"))
    found = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert sorted(found, key=lambda row: row["n"]) == expected


MADE: dict[str, dict[str, Any]] = {
    f"{end}-{number}": {
        "steps": steps,
        "keys": ("key",),
        "end": end,
        "aggregates": aggregates,
        "lateness": 0,
        "paired": False,
    }
    for number, (end, steps, aggregates) in enumerate(
        [
            ("tumbling", ["half", "rebalance"], ["n", "whole", "latest", "first"]),
            ("sliding", ["filter"], ["n", "money", "most"]),
            ("sessions", ["rename"], ["n", "middle", "cheapest"]),
            ("all tumbling", ["sample"], ["whole", "some"]),
            ("rolling", [], ["n", "least", "average"]),
            ("distinct", [], ["n"]),
            ("near", ["union"], ["n"]),
            ("joined", ["null"], ["n"]),
        ]
    )
}


async def written_by(
    rows: list[dict[str, Any]], place: Path, deployment: Any, *, as_rows: bool
) -> dict[str, list[str]]:
    """Run all pipelines in one job; return what each of them has written."""
    env = am.StreamExecutionEnvironment(parallelism=2)
    if deployment is not None:
        env.configure(deployment=deployment)
    parts = in_batches(rows, [17])
    batches = [pa.RecordBatch.from_pylist(part, SCHEMA) for part in parts]
    # One subtask emits, so that records of a key come in one order.
    stream = stream_of(env, batches, as_rows=False).set_parallelism(1)
    if as_rows:
        stream = stream.map(lambda record: record).set_parallelism(1)
    for name, what in MADE.items():
        results, _ = program(stream, what)
        results.sink_to(am.ParquetSink(place / name))
    if not as_rows:
        assert "; rows:" not in env.explain()
    await env.execute()
    return {
        name: rows_of([pq.read_table(f) for f in (place / name).rglob("*.parquet")])
        for name in MADE
    }


@pytest.mark.real_time
@pytest.mark.suite("system")
@pytest.mark.timeout(120)
async def test_columns_between_processes_are_the_columns_of_one_process(
    tmp_path: Path,
) -> None:
    """In random order of texts, times before 1970, and with values at all limits."""
    chance = random.Random(11)
    limits: dict[str, list[Any]] = {
        "key": ["a", "b", "ä", "", "\U0001f600"],
        "part": [-1, 0, 1, -(2**31)],
        "n": [None, 0, -9, 2**53 + 1, 2**40],
        "x": [None, 0.1, 9.9, 1e300, 5e-324],
        "money": [None, Decimal("0.10"), Decimal("-9999999.99")],
        "text": [None, "", "\uffff", "a"],
    }
    records = [
        {name: chance.choice(values) for name, values in limits.items()}
        for _ in range(400)
    ]
    rows = timed(records, [chance.randrange(40) for _ in records], 17)
    apart = await written_by(rows, tmp_path / "2", am.Processes(2), as_rows=False)
    whole = await written_by(rows, tmp_path / "1", None, as_rows=True)
    for name, found in whole.items():
        assert apart[name] == found, name
        assert found


async def test_integers_inside_of_structs_do_not_wrap_around() -> None:
    kinds = pa.int8(), pa.int64()
    batches = [
        pa.record_batch({"s": pa.array([{"n": n}], pa.struct([("n", kind)]))})
        for n, kind in zip((1, 300), kinds, strict=True)
    ]
    env = am.StreamExecutionEnvironment(parallelism=1)
    streams = [env.from_arrow(batch) for batch in batches]
    with pytest.raises(am.AioMailboxError, match="300 not in range"):
        [batch async for batch in streams[0].union(streams[1]).arrow_batches()]


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ([], ["a"]),
        ([[]], [["a"], None]),
        ({"a": None, "b": 1}, {"a": 2.5, "b": 2}),
        ([{"a": None}], [{"a": []}, {"a": ["x"]}]),
        (None, {"a": 1}),
    ],
)
@pytest.mark.parametrize("as_columns", [False, True])
def test_what_was_empty_gets_its_type_when_there_is_something(
    first: Any, later: Any, as_columns: bool
) -> None:
    maker = BatchMaker()
    batches = []
    for value in (first, later, first):
        record = {"v": value}
        run: Any = ListRun([record])
        if as_columns:
            batch = pa.RecordBatch.from_pylist([record])
            run = ArrowRun(batch, RowMaker(batch.schema, DictForm()))
        batches += maker.batches(run)
    table = pa.Table.from_batches(list(map(maker.fit, batches)), maker.schema)
    assert table["v"].to_pylist() == [first, later, first]


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: {"in": v}])
@pytest.mark.parametrize("as_columns", [False, True])
def test_no_field_of_an_inner_record_is_lost(wrap: Any, as_columns: bool) -> None:
    maker = BatchMaker()
    maker.batches(ListRun([{"v": wrap({"a": 1})}]))
    record = {"v": wrap({"a": 2, "b": 3})}
    run: Any = ListRun([record])
    if as_columns:
        batch = pa.RecordBatch.from_pylist([record])
        run = ArrowRun(batch, RowMaker(batch.schema, DictForm()))
    with pytest.raises(RecordTypeError, match=r"column 'v'.*no field 'b'"):
        maker.batches(run)


def categories(number: int, *, has_null: bool) -> pa.RecordBatch:
    """Return a hundred words whose places fit into a byte, as those of two do not."""
    words: list[Any] = [f"{number}-{place}" for place in range(100)]
    if has_null:
        words[7] = None
    column = pa.DictionaryArray.from_arrays(
        pa.array(range(100), pa.int8()), pa.array(words)
    )
    lists = pa.ListArray.from_arrays(pa.array(range(101), pa.int32()), column)
    return pa.record_batch({"word": column, "words": lists, "n": [number] * 100})


@pytest.mark.parametrize("has_null", [False, True])
@pytest.mark.parametrize("partition_by", [(), ("n",), ("word",)])
async def test_words_of_dictionaries_are_written_so_that_they_can_be_read(
    partition_by: tuple[str, ...], has_null: bool, tmp_path: Path
) -> None:
    batches = [categories(number, has_null=has_null) for number in range(3)]
    env = am.StreamExecutionEnvironment(parallelism=1)
    sink = am.ParquetSink(tmp_path / "out", partition_by=partition_by)
    env.from_arrow(batches).sink_to(sink)
    await env.execute()
    files = [pq.ParquetFile(file) for file in (tmp_path / "out").rglob("*.parquet")]
    words = [word for file in files for (word,) in file.read()["words"].to_pylist()]
    expected = [word for batch in batches for word in batch["word"].to_pylist()]
    assert sorted(map(str, words)) == sorted(map(str, expected))


async def test_runs_of_values_are_written_as_these(tmp_path: Path) -> None:
    times = pa.array(
        [MOMENT.replace(tzinfo=UTC), None], pa.timestamp("ns", "Asia/Tokyo")
    )
    column = pa.RunEndEncodedArray.from_arrays([2, 3], times)
    env = am.StreamExecutionEnvironment()
    env.from_arrow(pa.table({"at": column})).sink_to(am.ParquetSink(tmp_path / "out"))
    await env.execute()
    (file,) = (tmp_path / "out").rglob("*.parquet")
    found = pq.ParquetFile(file).read()["at"]
    assert found.type == pa.timestamp("us", "UTC")
    assert found.to_pylist() == [MOMENT.replace(tzinfo=UTC)] * 2 + [None]


@pytest.mark.parametrize("kind", [pa.list_(pa.int8(), 2), pa.list_view(pa.int8())])
def test_rare_lists_become_lists_where_a_schema_says_so(kind: pa.DataType) -> None:
    values = [[1, 2], None, [3, None], None, [5, 6]]
    maker = BatchMaker(pa.schema([("v", pa.list_(pa.int64()))]))
    batch = pa.record_batch({"v": pa.array(values, kind)})
    for start in range(5):
        found = maker.fit(batch.slice(start)).column("v")
        assert found.to_pylist() == values[start:]


MOMENT = datetime(2013, 1, 1)


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (1, "2"),
        ("a", 5),
        (1, True),
        (True, 1),
        (MOMENT.replace(tzinfo=UTC), MOMENT),
        (MOMENT, MOMENT.replace(tzinfo=UTC)),
        (1, MOMENT),
        (2.5, timedelta(1)),
        (MOMENT.date(), MOMENT),
        (MOMENT, MOMENT.date()),
        (MOMENT.time(), MOMENT),
        (timedelta(1), 2.5),
        ("a", b"a"),
        (b"a", "a"),
        (1, Decimal("2.5")),
        (2.5, Decimal("0.1")),
        (2.5, True),
        ([1], ["2"]),
        (["a"], [2]),
        ([True], [1]),
        ([MOMENT.replace(tzinfo=UTC)], [MOMENT]),
        ({"at": MOMENT.date()}, {"at": MOMENT}),
        ({"n": [1]}, {"n": [2.5]}),
    ],
    ids=str,
)
@pytest.mark.parametrize("as_columns", [False, True])
def test_values_never_become_others_to_be_written(
    first: Any, later: Any, as_columns: bool
) -> None:
    maker = BatchMaker()
    maker.batches(ListRun([{"v": first}]))
    batch = pa.RecordBatch.from_pylist([{"v": later}])
    maker_of_rows = RowMaker(batch.schema, DictForm())
    run: Any = ArrowRun(batch, maker_of_rows) if as_columns else ListRun([{"v": later}])
    with pytest.raises(RecordTypeError, match="column 'v': a record does not fit"):
        maker.batches(run)


@pytest.mark.parametrize(
    "values",
    [
        [MOMENT.date(), MOMENT],
        [MOMENT, 1],
        [timedelta(1), 1],
        ["a", b"a"],
        [UUID(int=1), 1],
        [[MOMENT], [MOMENT.date()]],
        [MOMENT.time(), MOMENT.time().replace(tzinfo=UTC)],
    ],
    ids=str,
)
def test_first_records_of_several_types_are_refused(values: list[Any]) -> None:
    for some in (values, values[::-1]):
        with pytest.raises(RecordTypeError, match="column 'v': a record does not fit"):
            BatchMaker().batches(ListRun([{"v": value} for value in some]))


def test_values_of_a_map_never_become_others() -> None:
    schema = pa.schema([("m", pa.map_(pa.string(), pa.int64()))])
    for wrong in ({"a": 2.5}, {"a": "1"}, {b"a": 1}):
        with pytest.raises(RecordTypeError, match="column 'm': a record does not fit"):
            BatchMaker(schema).batches(ListRun([{"m": wrong}]))
    (batch,) = BatchMaker(schema).batches(ListRun([{"m": {"a": 2.0}}, {"m": None}]))
    assert batch.column("m").to_pylist() == [[("a", 2)], None]


def test_a_field_that_the_first_records_had_not_is_not_lost() -> None:
    """Of objects it is their class that says it."""
    one, two = (record_class(names) for names in (("a",), ("a", "b")))
    maker = BatchMaker()
    maker.batches(ListRun([one(1)]))
    with pytest.raises(RecordTypeError, match="other fields than the first"):
        maker.batches(ListRun([one(1), two(1, 2)]))
