"""Parquet directories appear whole or not at all."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aiomailbox.columnar import ArrowRun, NamedTupleForm, RowMaker
from aiomailbox.connectors.parquet import ParquetSink
from aiomailbox.errors import (
    InvalidArgumentError,
    RecordTypeError,
    SinkError,
    TargetExistsError,
    WrongTypeError,
)
from aiomailbox.operators import CommitterContext
from aiomailbox.records import ListRun
from aiomailbox.testing import TestRuntimeContext

pytestmark = pytest.mark.real_time

CONTEXT = CommitterContext("test", TestRuntimeContext().execution_id, "sink", None)
EAST = timezone(timedelta(hours=-5))


class Delay(NamedTuple):
    origin: str
    at: datetime
    mean: float | None


async def finish(pending: Any) -> None:
    if pending is not None:
        await pending


async def write(sink: ParquetSink, *runs: list[Any], commit: bool = True) -> None:
    """Run a job of one writer by hand."""
    committer = sink.create_committer(CONTEXT)
    await finish(committer.begin())
    writer = sink.create_writer(TestRuntimeContext("sink"))
    succeeded = False
    try:
        for values in runs:
            run = values if isinstance(values, ArrowRun) else ListRun(values)
            await finish(writer.write_run(run))
        await finish(writer.flush(end_of_input=True))
        if commit:
            await finish(committer.commit(writer.prepare_commit(), is_final=True))
        succeeded = commit
    finally:
        await finish(writer.close())
        await finish(committer.end(succeeded=succeeded))


def read(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def leftovers(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


async def test_times_are_microseconds_in_utc(tmp_path: Path) -> None:
    target = tmp_path / "out"
    at = datetime(2013, 11, 3, 1, 30, tzinfo=EAST)
    await write(ParquetSink(target), [Delay("JFK", at, 1.5), Delay("LGA", at, None)])
    table = pq.read_table(target)
    assert table.schema.field("at").type == pa.timestamp("us", "UTC")
    assert table.to_pylist()[0]["at"] == at
    assert leftovers(target) == ["out"]
    assert (target / "_SUCCESS").exists()


@dataclasses.dataclass
class Point:
    x: int
    tags: list[str]


class Place(msgspec.Struct):
    name: str
    point: Point | None


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([{"a": 1}, {"a": None}], [{"a": 1}, {"a": None}]),
        ([Point(1, ["u"])], [{"x": 1, "tags": ["u"]}]),
        (
            [Place("p", Point(1, [])), Place("q", None)],
            [
                {"name": "p", "point": {"x": 1, "tags": []}},
                {"name": "q", "point": None},
            ],
        ),
        ([7, 8], [{"value": 7}, {"value": 8}]),
        ([{"d": Decimal("1.50")}], [{"d": Decimal("1.50")}]),
        ([pa.record_batch({"a": [1]})], [{"a": 1}]),
        ([pa.table({"a": [1, 2]})], [{"a": 1}, {"a": 2}]),
    ],
)
async def test_every_kind_of_record_is_written(
    tmp_path: Path, records: list[Any], expected: list[Any]
) -> None:
    await write(ParquetSink(tmp_path / "out"), records)
    assert read(tmp_path / "out") == expected


async def test_an_arrow_run_is_written_without_making_rows(tmp_path: Path) -> None:
    batch = pa.record_batch(
        {"at": pa.array([5], pa.timestamp("ms", "America/New_York"))}
    )
    run = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
    await write(ParquetSink(tmp_path / "out"), run)
    assert run._rows is None
    assert read(tmp_path / "out") == [{"at": datetime(1970, 1, 1, 0, 0, 0, 5000, UTC)}]


async def test_nothing_is_visible_before_the_commit_nor_after_a_failure(
    tmp_path: Path,
) -> None:
    target = tmp_path / "out"
    sink = ParquetSink(target, row_group_rows=1)
    committer = sink.create_committer(CONTEXT)
    await finish(committer.begin())
    writer = sink.create_writer(TestRuntimeContext("sink"))
    await finish(writer.write_run(ListRun([{"a": 1}, {"a": 2}])))
    assert not target.exists()
    assert all(name.startswith(".") for name in leftovers(target))
    await finish(writer.close())
    await finish(committer.end(succeeded=False))
    assert leftovers(target) == []


async def test_a_target_that_exists_is_refused_and_stays(tmp_path: Path) -> None:
    target = tmp_path / "out"
    await write(ParquetSink(target), [{"a": 1}])
    with pytest.raises(TargetExistsError, match="overwrite"):
        await ParquetSink(target).create_committer(CONTEXT).begin()
    assert read(target) == [{"a": 1}]


async def test_overwriting_replaces_only_when_the_job_commits(tmp_path: Path) -> None:
    target = tmp_path / "out"
    await write(ParquetSink(target), [{"a": 1}])
    await write(ParquetSink(target, mode="overwrite"), [{"a": 2}], commit=False)
    assert read(target) == [{"a": 1}]
    await write(ParquetSink(target, mode="overwrite"), [{"a": 3}])
    assert read(target) == [{"a": 3}]
    assert leftovers(target) == ["out"]


async def test_a_parent_that_is_a_file_is_an_error_before_anything_starts(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("x")
    sink = ParquetSink(tmp_path / "file" / "out")
    with pytest.raises(SinkError, match="cannot be written"):
        await sink.create_committer(CONTEXT).begin()


async def test_files_have_at_most_so_many_rows(tmp_path: Path) -> None:
    target = tmp_path / "out"
    runs = [[{"a": start + k} for k in range(7)] for start in range(0, 70, 7)]
    await write(ParquetSink(target, rows_per_file=20, row_group_rows=8), *runs)
    files = sorted(target.glob("*.parquet"))
    assert [pq.ParquetFile(file).metadata.num_rows for file in files] == [
        20,
        20,
        20,
        10,
    ]
    rows = [row["a"] for file in files for row in pq.read_table(file).to_pylist()]
    assert rows == list(range(70))


async def test_committing_twice_is_committing_once(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    committer = sink.create_committer(CONTEXT)
    await finish(committer.begin())
    writer = sink.create_writer(TestRuntimeContext("sink"))
    await finish(writer.write_run(ListRun([{"a": 1}])))
    await finish(writer.flush(end_of_input=False))
    names = writer.prepare_commit()
    await finish(committer.commit(names, is_final=True))
    await finish(committer.commit(names, is_final=True))
    second = sink.create_writer(TestRuntimeContext("sink"))
    second.restore(writer.snapshot())
    await finish(second.write_run(ListRun([{"a": 2}])))
    await finish(second.flush(end_of_input=True))
    await finish(committer.commit(second.prepare_commit(), is_final=True))
    await finish(committer.end(succeeded=True))
    assert read(tmp_path / "out") == [{"a": 1}, {"a": 2}]


async def test_a_column_of_nothing_gets_its_type_from_later_records(
    tmp_path: Path,
) -> None:
    await write(ParquetSink(tmp_path / "out"), [{"a": None}], [{"a": 2}])
    assert read(tmp_path / "out") == [{"a": None}, {"a": 2}]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": 1}, {"a": "x"}),
        ({"a": 1}, {"a": 1.5}),
        ({"a": [1]}, {"a": [1.5]}),
        ({"a": Point(1, [])}, {"a": Point(1.5, [])}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 1}),
        ({"a": datetime(2020, 1, 1, tzinfo=UTC)}, {"a": datetime(2020, 1, 1)}),
    ],
)
async def test_a_record_that_does_not_fit_is_named(
    tmp_path: Path, first: Any, second: Any
) -> None:
    with pytest.raises(RecordTypeError):
        await write(ParquetSink(tmp_path / "out"), [first], [second])
    assert leftovers(tmp_path / "out") == []


async def test_a_schema_without_records_is_a_result(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64())])
    await write(ParquetSink(tmp_path / "out", schema=schema))
    assert pq.read_table(tmp_path / "out").schema.names == ["a"]


async def test_no_records_without_a_schema_is_an_empty_directory(
    tmp_path: Path,
) -> None:
    await write(ParquetSink(tmp_path / "out"))
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["_SUCCESS"]


@pytest.mark.parametrize(
    "arguments",
    [{"mode": "append"}, {"rows_per_file": 0}, {"row_group_rows": 0}],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(arguments))):
        ParquetSink("out", **arguments)


def test_a_path_that_is_none_is_named() -> None:
    with pytest.raises(WrongTypeError, match="path"):
        ParquetSink(5)  # type: ignore[arg-type]
