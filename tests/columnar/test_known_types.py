"""What a source knows of its columns, and a class declares, arrives where they are made."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, NewType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import aiomailbox as am
from aiomailbox.columnar.declared import check_annotations
from aiomailbox.columnar.encode import BatchMaker
from aiomailbox.connectors.directory import Segments
from aiomailbox.connectors.parquet import ParquetWriter
from aiomailbox.errors import UnsupportedColumnError
from aiomailbox.records.run import ListRun

SMALL = pa.schema(
    [
        ("id", pa.int8()),
        ("score", pa.float32()),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.int16())),
        ("never", pa.int32()),
    ]
)
ROWS = [
    {"id": number, "score": 0.5, "price": Decimal("1.25"), "tags": [1], "never": None}
    for number in range(3)
]


def stream_of(rows: list[dict[str, Any]], schema: pa.Schema = SMALL) -> Any:
    env = am.StreamExecutionEnvironment()
    return env, env.from_arrow(pa.Table.from_pylist(rows, schema=schema))


def written(env: Any, stream: Any, place: Path) -> pa.Table:
    stream.sink_to(am.ParquetSink(place / "out"))
    am.run(env.execute())
    return pq.read_table(place / "out")


@pytest.mark.parametrize("rows", [ROWS, []], ids=["rows", "no row"])
def test_types_go_through_a_function_that_changes_no_field(
    tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    env, stream = stream_of(rows)
    found = written(env, stream.filter(lambda row: row.id >= 0), tmp_path)
    assert found.schema.equals(SMALL)
    assert found.to_pylist() == rows


@pytest.mark.parametrize("rows", [ROWS, []], ids=["rows", "no row"])
def test_types_go_with_fields_that_get_other_names(
    tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    env, stream = stream_of(rows)
    named = stream.select("id", worth="price").rename({"id": "number"}).key_by("number")
    found = written(env, named.filter(lambda row: True), tmp_path)
    assert found.schema.equals(
        pa.schema([("number", pa.int8()), ("worth", pa.decimal128(10, 2))])
    )


def test_what_an_async_function_says_that_it_returns_is_known(tmp_path: Path) -> None:
    async def measure(row: Any) -> float:
        return 1.0

    env, stream = stream_of([])
    measured = stream.select("id").map_async(measure, into="heat", concurrency=1)
    found = written(env, measured, tmp_path)
    assert found.schema.equals(pa.schema([("id", pa.int8()), ("heat", pa.float64())]))


def test_only_what_all_streams_of_a_union_say_is_known(tmp_path: Path) -> None:
    env, stream = stream_of(ROWS[:1])
    wider = SMALL.set(0, pa.field("id", pa.int16()))
    other = env.from_arrow(pa.Table.from_pylist(ROWS[1:], schema=wider))
    both = stream.union(other).filter(lambda row: True)
    schema = written(env, both, tmp_path).schema
    assert schema.field("id").type == pa.int64()
    assert schema.field("never").type == pa.int32()


def test_values_that_a_function_made_others_of_decide_themselves() -> None:
    known = am.StreamExecutionEnvironment().from_arrow(
        pa.Table.from_pylist(ROWS, schema=SMALL)
    )
    fields = known._origins[0].transformation.record_fields
    maker = BatchMaker(fields=fields)
    maker.batches(ListRun([{**ROWS[0], "id": 300, "price": Decimal("1.255")}]))
    assert maker.schema is not None
    assert maker.schema.field("id").type == pa.int64()
    assert maker.schema.field("price").type == pa.decimal128(38, 3)


class Visit(NamedTuple):
    id: int
    place: str | None
    counts: dict[str, float]


@pytest.mark.parametrize("kind", [Visit, None])
def test_a_result_without_records_has_the_columns_of_its_class(
    tmp_path: Path, kind: Any
) -> None:
    env = am.StreamExecutionEnvironment()
    stream: Any = env.from_collection([1]).map(
        lambda number: Visit(number, None, {}), output_type=kind
    )
    stream = stream.filter(lambda visit: visit.id > 1)
    stream.sink_to(am.ParquetSink(tmp_path / "out"))
    am.run(env.execute())
    files = list((tmp_path / "out").glob("*.parquet"))
    if kind is None:
        # A function says nothing.
        assert not files
        return
    assert pq.read_schema(files[0]).equals(
        pa.schema(
            [
                ("id", pa.int64()),
                ("place", pa.string()),
                ("counts", pa.map_(pa.string(), pa.float64())),
            ]
        )
    )


def test_uuids_are_texts_however_deep_they_are() -> None:
    token = uuid.UUID(int=7)
    record = {"v": [{"id": token, "inner": {"ids": [token, None]}}]}
    maker = BatchMaker()
    (batch,) = maker.batches(ListRun([record, {"v": None}]))
    text = str(token)
    assert batch.to_pylist() == [
        {"v": [{"id": text, "inner": {"ids": [text, None]}}]},
        {"v": None},
    ]


def test_columns_of_uuids_are_texts_where_they_are_written(tmp_path: Path) -> None:
    token = uuid.UUID(int=7)
    table = pa.table({"id": pa.array([token, None])})
    for way, keep in (("columns", None), ("rows", lambda record: True)):
        env = am.StreamExecutionEnvironment()
        stream: Any = env.from_arrow(table)
        stream = stream if keep is None else stream.filter(keep)
        found = written(env, stream, tmp_path / way)
        assert found.schema.field("id").type == pa.string()
        assert found.to_pylist() == [{"id": str(token)}, {"id": None}]


def test_large_rows_are_written_before_there_are_many(tmp_path: Path) -> None:
    writer = ParquetWriter(
        Segments(tmp_path, "part", ".parquet"), schema=None, group_bytes=10_000
    )

    async def write() -> None:
        for _ in range(8):
            pending = writer.write_run(ListRun([{"text": "x" * 3_000}]))
            if pending is not None:
                await pending
        pending = writer.flush(end_of_input=True)
        assert pending is not None
        await pending

    am.run(write())
    file = pq.ParquetFile(tmp_path / "part-00000.parquet")
    groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    assert groups == [4, 4]


UserId = NewType("UserId", int)


@dataclass
class Right:
    id: UserId
    score: float
    at: datetime | None
    took: timedelta
    tags: list[str]
    any: Any


RIGHT = {
    "id": pa.int32(),
    "score": pa.int64(),
    "at": pa.timestamp("us", "UTC"),
    "took": pa.duration("us"),
    "tags": pa.list_(pa.string()),
    "any": pa.bool_(),
}


def test_a_class_may_annotate_what_a_checker_would_take() -> None:
    check_annotations(Right, RIGHT)


@pytest.mark.parametrize(
    ("name", "kind", "found"),
    [
        ("id", pa.string(), "str"),
        ("score", pa.decimal128(10, 2), "Decimal"),
        ("at", pa.date32(), "date"),
        ("took", pa.int64(), "int"),
        ("tags", pa.list_(pa.int64()), "int"),
        ("tags", pa.string(), "str"),
    ],
)
def test_a_class_that_annotates_other_values_is_refused(
    name: str, kind: pa.DataType, found: str
) -> None:
    where = f"{name}.element" if pa.types.is_list(kind) else name
    with pytest.raises(UnsupportedColumnError, match=f"column '{where}'.*{found}"):
        check_annotations(Right, {**RIGHT, name: kind})


def test_a_source_of_columns_refuses_such_a_class() -> None:
    class Wrong(NamedTuple):
        id: str

    env = am.StreamExecutionEnvironment()
    table = pa.table({"id": [1]})
    with pytest.raises(UnsupportedColumnError, match=r"Wrong\.id is annotated as str"):
        env.from_arrow(table, records=Wrong)


def test_moments_keep_their_zone_whatever_the_class_says() -> None:
    class Seen(NamedTuple):
        at: datetime

    naive, aware = datetime(2024, 2, 29), datetime(2024, 2, 29, tzinfo=UTC)
    for moment, zone in ((naive, None), (aware, "UTC")):
        maker = BatchMaker()
        maker.batches(ListRun([Seen(moment)]))
        assert maker.schema == pa.schema([("at", pa.timestamp("us", zone))])


def never_null(
    parts: dict[str, pa.Array], mask: list[bool], **marks: str
) -> pa.StructArray:
    """Return structs as Spark gives them: NULL in all fields where one is NULL."""
    fields = [
        pa.field(name, part.type, nullable=False, metadata=marks or None)
        for name, part in parts.items()
    ]
    rows = pa.array([None if hidden else row for row, hidden in enumerate(mask)])
    below = [part.take(rows) for part in parts.values()]
    return pa.StructArray.from_arrays(below, fields=fields, mask=pa.array(mask))


MASK = [False, True, False, True, False]
PLAIN = never_null({"x": pa.array([*range(5)]), "name": pa.array([*"abcde"])}, MASK)
OFFSETS = pa.array([0, 2, 2, 3, 5, 5], pa.int32())
NEVER_NULL = {
    "flat": PLAIN,
    "deep": never_null({"at": PLAIN, "on": pa.array([[1]] * 5)}, MASK),
    "listed": pa.ListArray.from_arrays(OFFSETS, PLAIN, type=pa.list_(PLAIN.type)),
    "mapped": pa.MapArray.from_arrays(OFFSETS, pa.array([*"abcde"]), PLAIN),
    "variant": never_null(
        {"value": pa.array([b"1"] * 5), "metadata": pa.array([b"2"] * 5)},
        MASK,
        variant="true",
    ),
}


@pytest.mark.parametrize("name", NEVER_NULL)
@pytest.mark.parametrize("rows", [slice(0, 5), slice(1, 5), slice(1, 4), slice(2, 4)])
def test_a_null_struct_whose_fields_are_never_null_can_be_written(
    name: str, rows: slice
) -> None:
    batch = pa.record_batch({"s": NEVER_NULL[name]})
    batch = batch.slice(rows.start, rows.stop - rows.start)
    made = BatchMaker().fit(batch)
    made.validate(full=True)
    assert made.schema.equals(batch.schema, check_metadata=True)
    file = pa.BufferOutputStream()
    with pytest.raises(pa.ArrowInvalid, match="non-nullable but contains nulls"):
        pq.write_table(pa.Table.from_batches([batch]), pa.BufferOutputStream())
    pq.write_table(pa.Table.from_batches([made]), file)
    read = pq.read_table(pa.BufferReader(file.getvalue()))
    assert read.to_pylist() == batch.to_pylist()


def test_a_null_that_can_be_seen_stays_and_is_refused() -> None:
    field = pa.field("x", pa.int64(), nullable=False)
    structs = pa.StructArray.from_arrays([pa.array([1, None])], fields=[field])
    made = BatchMaker().fit(pa.record_batch({"s": structs}))
    with pytest.raises(pa.ArrowInvalid, match="non-nullable but contains nulls"):
        pq.write_table(pa.Table.from_batches([made]), pa.BufferOutputStream())
