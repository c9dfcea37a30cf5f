"""Parquet directories appear whole or not at all."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import aiomailbox as am
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.forms import NamedTupleForm
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.connectors.parquet import ParquetSink
from aiomailbox.errors import (
    InvalidArgumentError,
    RecordsRefusedError,
    RecordTypeError,
    SinkError,
    TargetExistsError,
    WrongTypeError,
)
from aiomailbox.operators.sinks.sink import CommitterContext
from aiomailbox.records.run import ListRun
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
    await finish(committer.begin(restored=False))
    writer = sink.create_writer(TestRuntimeContext("sink"))
    succeeded = False
    try:
        for values in runs:
            run = values if isinstance(values, ArrowRun) else ListRun(values)
            await finish(writer.write_run(run))
        await finish(writer.flush(end_of_input=True))
        if commit:
            await finish(
                committer.commit(
                    writer.prepare_commit(), checkpoint_id=0, is_final=True
                )
            )
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


async def test_rows_without_columns_are_refused(tmp_path: Path) -> None:
    """A file without columns has no rows: they would be lost."""
    none = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))
    env = am.StreamExecutionEnvironment()
    rows = env.from_arrow(pa.Table.from_batches([none]))
    rows.sink_to(am.ParquetSink(tmp_path / "out"))
    with pytest.raises(am.JobFailedError, match="no fields, and would be lost"):
        await env.execute()
    assert not (tmp_path / "out").exists()


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
    await finish(committer.begin(restored=False))
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
        await ParquetSink(target).create_committer(CONTEXT).begin(restored=False)
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
        await sink.create_committer(CONTEXT).begin(restored=False)


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
    await finish(committer.begin(restored=False))
    writer = sink.create_writer(TestRuntimeContext("sink"))
    await finish(writer.write_run(ListRun([{"a": 1}])))
    await finish(writer.flush(end_of_input=False))
    names = writer.prepare_commit()
    await finish(committer.commit(names, checkpoint_id=0, is_final=True))
    await finish(committer.commit(names, checkpoint_id=0, is_final=True))
    await finish(committer.end(succeeded=True))
    assert read(tmp_path / "out") == [{"a": 1}]


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
    with pytest.raises(RecordsRefusedError) as caught:
        await write(ParquetSink(tmp_path / "out"), [first], [second])
    assert [type(error) for error in caught.value.errors.values()] == [RecordTypeError]
    assert leftovers(tmp_path / "out") == []


async def test_an_interval_of_months_is_one_value_that_parquet_does_not_keep(
    tmp_path: Path,
) -> None:
    """It is a tuple in Python, and was written as a list of three numbers."""
    interval = pa.MonthDayNano([14, 3, 0])
    records = [{"id": 1, "after": {"first": interval}}]
    with pytest.raises(RecordTypeError, match=r"month_day_nano.*leave it out"):
        await write(ParquetSink(tmp_path / "out"), records)
    env = am.StreamExecutionEnvironment()
    [batch] = [batch async for batch in env.from_collection(records).arrow_batches()]
    assert batch.to_pylist() == records


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
    [{"mode": "replace"}, {"rows_per_file": 0}, {"row_group_rows": 0}],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(arguments))):
        ParquetSink("out", **arguments)


def test_a_path_that_is_none_is_named() -> None:
    with pytest.raises(WrongTypeError, match="path"):
        ParquetSink(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        ParquetSink,
        lambda url: am.FileSink(url, "jsonl"),
        lambda url: am.RocksDBStateBackend(path=url),
    ],
)
def test_a_url_is_no_directory_of_that_name(make: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="'s3://bucket/rows' is a URL"):
        make("s3://bucket/rows")


def misfits(number: int) -> dict[str, Any]:
    return {"n": "three" if number % 3 == 0 else number}


@pytest.mark.parametrize("rows", [1, 64, 1024])
async def test_records_that_do_not_fit_are_refused_and_all_others_written(
    tmp_path: Path, rows: int
) -> None:
    letters: list[am.DeadLetter] = []
    refused = am.OutputTag("refused")
    env = am.StreamExecutionEnvironment()
    sink = env.from_collection(range(1, 1000)).map(misfits)
    written = sink.sink_to(
        ParquetSink(tmp_path / "out", row_group_rows=rows),
        on_error=am.dead_letter(refused),
    ).name("numbers")
    written.get_side_output(refused).sink_to(letters.append)
    await env.execute()
    fits = [number for number in range(1, 1000) if number % 3]
    assert [row["n"] for row in read(tmp_path / "out")] == fits
    assert [letter.record for letter in letters] == [{"n": "three"}] * 333
    assert {letter.operator for letter in letters} == {"numbers"}
    assert {letter.error_type for letter in letters} == {"RecordTypeError"}
    assert "column 'n'" in letters[0].error


async def test_a_refused_record_fails_the_job_unless_it_may_be_refused(
    tmp_path: Path,
) -> None:
    def job(**options: Any) -> am.StreamExecutionEnvironment:
        env = am.StreamExecutionEnvironment()
        records = env.from_collection([{"n": 1}, {"n": "two"}, {"n": 3}])
        records.sink_to(ParquetSink(tmp_path / "out"), **options).uid("n-1")
        return env

    with pytest.raises(am.JobFailedError, match=r"uid 'n-1'.*column 'n'") as caught:
        await job().execute()
    cause = caught.value.__cause__
    assert isinstance(cause, am.UserFunctionError)
    assert isinstance(cause.__cause__, RecordTypeError)
    assert "the record: {'n': 'two'}" in cause.__notes__
    assert leftovers(tmp_path / "out") == []
    await job(on_error=am.skip).execute()
    assert read(tmp_path / "out") == [{"n": 1}, {"n": 3}]


async def test_a_refused_record_decides_nothing_about_the_schema(
    tmp_path: Path,
) -> None:
    """A naive time among aware ones would have made the column one of naive times."""
    aware, naive = datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 1)
    env = am.StreamExecutionEnvironment()
    records = env.from_collection([{"at": aware}, {"at": naive}, {"at": aware}])
    records.sink_to(ParquetSink(tmp_path / "out"), on_error=am.skip)
    await env.execute()
    assert read(tmp_path / "out") == [{"at": aware}] * 2


async def test_rows_of_an_arrow_run_are_refused_one_by_one(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int8())])
    batch = pa.record_batch({"n": pa.array([1, 1000, 3], pa.int64())})
    run = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
    sink = ParquetSink(tmp_path / "out", schema=schema)
    committer = sink.create_committer(CONTEXT)
    await finish(committer.begin(restored=False))
    writer = sink.create_writer(TestRuntimeContext("sink"))
    with pytest.raises(RecordsRefusedError) as caught:
        await finish(writer.write_run(run))
    assert (list(caught.value.errors), caught.value.seen) == ([1], 3)
    await finish(writer.flush(end_of_input=True))
    await finish(
        committer.commit(writer.prepare_commit(), checkpoint_id=0, is_final=True)
    )
    await finish(writer.close())
    await finish(committer.end(succeeded=True))
    assert read(tmp_path / "out") == [{"n": 1}, {"n": 3}]


class Moody:
    def __len__(self) -> int:
        raise RuntimeError("not today")


@pytest.mark.parametrize(
    "odd", [5, None, "text", Moody(), {"b": 1}, {"a": 1, "b": 1}, Delay("JFK", None, 1)]
)
@pytest.mark.parametrize("first", [{"a": 1}, Point(1, []), Delay("LGA", None, 1.0)])
async def test_whatever_is_wrong_with_a_record_refuses_it_alone(
    tmp_path: Path, first: Any, odd: Any
) -> None:
    records = [first, odd, first]
    seen: list[am.DeadLetter] = []
    refused = am.OutputTag("refused")
    env = am.StreamExecutionEnvironment()
    sink = env.from_collection(records).sink_to(
        ParquetSink(tmp_path / "out"), on_error=am.dead_letter(refused)
    )
    sink.get_side_output(refused).sink_to(seen.append)
    await env.execute()
    written = 3 if type(odd) is type(first) and not isinstance(odd, dict) else 2
    assert len(read(tmp_path / "out")) == written
    assert len(seen) == 3 - written


_IMPORTS = """
import asyncio, sys, threading
import aiomailbox as am

class Finder:
    threads = []
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            self.threads.append(threading.current_thread() is threading.main_thread())

sys.meta_path.insert(0, Finder())

async def main():
    env = am.StreamExecutionEnvironment()
    env.from_collection([{"a": 1}] * 10).sink_to(am.ParquetSink(sys.argv[1]))
    await env.execute()

asyncio.run(main())
print("pandas" in sys.modules, Finder.threads)
"""


def test_what_pyarrow_imports_for_its_first_array_is_imported_in_a_thread(
    tmp_path: Path,
) -> None:
    """It took three seconds of the event loop on a busy machine."""
    ended = subprocess.run(
        [sys.executable, "-c", _IMPORTS, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.stdout == "True [False]\n", ended.stderr
