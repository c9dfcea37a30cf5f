"""Columns that name directories: every row is in the directory of its values."""

from __future__ import annotations

from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import aiomailbox as am
from aiomailbox.connectors import parquet
from aiomailbox.errors import InvalidArgumentError, RecordTypeError, WrongTypeError
from tests.connectors.sinks_by_hand import Program

pytestmark = pytest.mark.real_time

DAYS = [date(2024, 5, 1), date(2024, 5, 2)]


def rows(path: Path, **types: pa.DataType) -> list[dict[str, Any]]:
    """What pyarrow finds, columns of directories included."""
    parts = ds.partitioning(pa.schema(types.items()), flavor="hive")
    found = ds.dataset(path, partitioning=parts).to_table().to_pylist()
    return sorted(found, key=lambda row: row["n"])


async def run(records: list[dict[str, Any]], path: Path, **options: Any) -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection(records).sink_to(am.ParquetSink(path, **options))
    await env.execute()


async def test_a_row_is_in_the_directory_of_its_values(tmp_path: Path) -> None:
    records = [
        {"day": DAYS[n % 2], "ok": n % 3 == 0, "n": n, "city": f"c{n}"}
        for n in range(100)
    ]
    path = tmp_path / "out"
    await run(records, path, partition_by=["day", "ok"])
    folders = sorted(
        str(one.parent.relative_to(path)) for one in path.rglob("*.parquet")
    )
    assert folders == [
        f"day=2024-05-0{day}/ok={ok}" for day in (1, 2) for ok in ("false", "true")
    ]
    found = rows(path, day=pa.date32(), ok=pa.bool_())
    assert found == [
        {"n": n["n"], "city": n["city"], "day": n["day"], "ok": n["ok"]}
        for n in records
    ]
    (file, *_) = path.rglob("*.parquet")
    assert pq.read_schema(file).names == ["n", "city"]


NAMES = ["a/b", "..", "x=y", "50%", "Zürich", "a b", "a:b", "[*]", "\t", "q\"'", "東京"]


async def test_texts_come_back_whatever_signs_they_have(tmp_path: Path) -> None:
    records = [{"city": city, "n": n} for n, city in enumerate(NAMES)]
    path = tmp_path / "out"
    await run([*records, {"city": None, "n": 99}], path, partition_by="city")
    found = rows(path, city=pa.string())
    assert [row["city"] for row in found] == [*NAMES, None]
    # Nothing is written outside.
    assert {one.parent.parent for one in path.rglob("*.parquet")} == {path}


@pytest.mark.spark
async def test_spark_reads_the_same_and_opens_only_what_it_is_asked_for(
    spark: Any, tmp_path: Path
) -> None:
    path = tmp_path / "out"
    records = [{"city": city, "n": n} for n, city in enumerate(NAMES)]
    await run(records, path, partition_by="city")
    df = spark.read.schema("n long, city string").parquet(str(path))
    assert {row.n: row.city for row in df.collect()} == dict(enumerate(NAMES))
    one = df.where(df.city == "Zürich")
    assert [row.n for row in one.collect()] == [4]
    assert len({row[0] for row in one.select("_metadata.file_path").collect()}) == 1


SCHEMA = pa.schema([("day", pa.date32()), ("k", pa.int64()), ("n", pa.int16())])


async def test_a_result_without_rows_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "out"
    await run([], path, schema=SCHEMA, partition_by=["day", "k"])
    assert rows(path, day=pa.date32(), k=pa.int64()) == []
    # And more can be added, whose columns are what they are.
    await run(
        [{"day": DAYS[0], "k": 1, "n": 2}],
        path,
        schema=SCHEMA,
        partition_by=["day", "k"],
        mode="append",
    )
    expected = [{"n": 2, "day": DAYS[0], "k": 1}]
    assert rows(path, day=pa.date32(), k=pa.int64()) == expected
    found = ds.dataset(path, partitioning="hive").to_table()
    assert found.select(["n", "k"]).to_pylist() == [{"n": 2, "k": 1}]


@pytest.mark.spark
async def test_what_spark_makes_of_names_is_its_own_rule(
    spark: Any, tmp_path: Path
) -> None:
    """As of its own files: directories have no types; the page on Spark says it."""
    records = [{"ok": True, "city": "", "n": 1}, {"ok": False, "city": "a", "n": 2}]
    for partition_by in ("ok", "city"):
        path = tmp_path / partition_by
        await run(records, path, partition_by=partition_by)
        own = str(tmp_path / f"own-{partition_by}")
        spark.createDataFrame(records).write.partitionBy(partition_by).parquet(own)
        ours, theirs = (spark.read.parquet(str(each)) for each in (path, own))
        assert sorted(ours.dtypes) == sorted(theirs.dtypes)
        found = sorted(ours.select("n", partition_by).collect())
        assert found == sorted(theirs.select("n", partition_by).collect())
        # And given, they are what they were.
        if partition_by == "ok":
            read = spark.read.schema("city string, n long, ok boolean")
            kept = read.parquet(str(path)).orderBy("n").collect()
            assert [row.ok for row in kept] == [True, False]


@pytest.mark.spark
async def test_spark_reads_a_result_without_rows(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "out"
    await run([], path, schema=SCHEMA, partition_by=["day", "k"])
    found = spark.read.parquet(str(path))
    # Directories have no types, and no values either.
    assert found.dtypes == [("n", "smallint"), ("day", "void"), ("k", "void")]
    assert found.collect() == []
    await run(
        [{"day": DAYS[0], "k": 1, "n": 2}],
        path,
        schema=SCHEMA,
        partition_by=["day", "k"],
        mode="append",
    )
    found = spark.read.parquet(str(path))
    assert found.dtypes == [("n", "smallint"), ("day", "date"), ("k", "int")]
    assert [tuple(row) for row in found.collect()] == [(2, DAYS[0], 1)]


@pytest.mark.parametrize("schema", [SCHEMA, None])
async def test_a_result_without_rows_whose_columns_are_not_known_has_no_file(
    tmp_path: Path, schema: pa.Schema | None
) -> None:
    await run([], tmp_path / "out", schema=schema, partition_by="k")
    files = list((tmp_path / "out").rglob("*.parquet"))
    assert len(files) == (0 if schema is None else 1)


async def test_more_partitions_than_files_may_be_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_OPEN_FILES_MAX", 3)
    records = [{"k": n % 10, "n": n} for n in range(100)]
    path = tmp_path / "out"
    await run(records, path, partition_by="k", row_group_rows=20)
    found = rows(path, k=pa.int64())
    assert [(row["k"], row["n"]) for row in found] == [(n % 10, n) for n in range(100)]


async def test_each_checkpoint_adds_whole_files_to_the_directories(
    tmp_path: Path,
) -> None:
    path = tmp_path / "out"
    job = Program(partial(am.ParquetSink, path, partition_by="k"), parallelism=2)
    await job.start()
    await job.write({"k": 1, "n": 1}, {"k": 2, "n": 2}, subtask=0)
    await job.write({"k": 1, "n": 3}, subtask=1)
    assert not path.exists()
    await job.checkpoint()
    assert [row["n"] for row in rows(path, k=pa.int64())] == [1, 2, 3]
    await job.write({"k": 2, "n": 4})
    await job.prepare()
    await job.crash()
    await job.start()
    await job.write({"k": 2, "n": 4}, {"k": 3, "n": 5})
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    found = [(row["k"], row["n"]) for row in rows(path, k=pa.int64())]
    assert found == [(1, 1), (2, 2), (1, 3), (2, 4), (3, 5)]
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("records", "partition_by", "message"),
    [
        ([{"n": 1}], "day", "no column 'day'"),
        ([{"n": 1, "x": 0.5}], "x", "cannot be part of a directory's name"),
        ([{"n": 1}], "n", "every column is a partition column"),
    ],
)
async def test_columns_that_cannot_be_are_named(
    tmp_path: Path, records: list[Any], partition_by: str, message: str
) -> None:
    with pytest.raises(am.JobFailedError) as failure:
        await run(records, tmp_path / "out", partition_by=partition_by)
    assert isinstance(failure.value.__cause__, RecordTypeError)
    assert message in str(failure.value.__cause__)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_column_is_said_where_it_is_written() -> None:
    with pytest.raises(InvalidArgumentError, match="duplicates"):
        am.ParquetSink("out", partition_by=["a", "a"])
    with pytest.raises(WrongTypeError, match="not a name"):
        am.ParquetSink("out", partition_by=[1])  # type: ignore[list-item]
    with pytest.raises(RecordTypeError, match="no column 'b'"):
        am.ParquetSink("out", schema=pa.schema([("a", pa.int64())]), partition_by="b")
