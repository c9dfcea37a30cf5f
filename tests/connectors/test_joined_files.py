"""Files that are added to others, or written where a source reads, are told about."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import aiomailbox as am
from aiomailbox.connectors.files.source import is_among
from aiomailbox.errors import InvalidArgumentError, UsageError

pytestmark = pytest.mark.real_time
OTHER = "files are added to a directory whose files have other columns"
OWN = "a sink writes files where a source of its job reads"


async def told_by(
    sink: Any, rows: Any, caplog: pytest.LogCaptureFixture, text: str = OTHER
) -> list[str]:
    caplog.clear()
    caplog.set_level(logging.WARNING, "aiomailbox")
    env = am.StreamExecutionEnvironment()
    env.from_collection(rows).sink_to(sink)
    await env.execute()
    return [one for one in map(str, caplog.messages) if text in one]


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({"n": 2, "word": "b", "more": 1}, "a new column 'more'"),
        ({"n": 2}, "no column 'word'"),
        ({"n": 2.5, "word": "b"}, "column 'n' is double, and was int64"),
        ({"n": 2, "word": "b"}, ""),
        ({"word": "b", "n": 2}, ""),
        # A column that has no type yet has no other type.
        ({"n": 2, "word": None}, ""),
    ],
)
async def test_appended_parquet_with_other_columns_is_told(
    second: Any, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = {"n": 1, "word": "a"}
    sink = am.ParquetSink(tmp_path / "out", mode="append", rows_per_file=1)
    assert await told_by(sink, [first], caplog) == []
    found = await told_by(sink, [second, second], caplog)
    # Once, however many files there are.
    assert len(found) == bool(told)
    assert all(told in one and "part-" in one for one in found)


async def test_types_that_spark_reads_as_one_are_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "out" / "day=1").mkdir(parents=True)
    table = pa.table({"word": pa.array(["a"], pa.large_string())})
    parquet.write_table(table, tmp_path / "out" / "day=1" / "a.parquet")
    sink = am.ParquetSink(tmp_path / "out", mode="append", partition_by="day")
    assert await told_by(sink, [{"word": "b", "day": 2}], caplog) == []


async def test_appended_csv_with_another_first_line_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = am.FileSink(tmp_path / "out", "csv", mode="append")
    for row, count in (({"n": 1}, 0), ({"n": 2}, 0), ({"m": 2}, 1)):
        assert len(await told_by(sink, [row], caplog)) == count


async def test_appended_lines_have_no_columns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = am.FileSink(tmp_path / "out", "jsonl", mode="append")
    for row in ({"n": 1}, {"m": 2}):
        assert await told_by(sink, [row], caplog) == []


@pytest.mark.parametrize(
    ("path", "target", "expected"),
    [
        ("in", "in/out", True),
        ("in", "in", True),
        ("in", "out", False),
        ("in", "in-out", False),
        ("in", "in/_out", False),
        ("in/*.csv", "in", True),
        ("in/*.csv", "in/out", False),
        ("in/*/*.csv", "in/out", True),
        ("in/*.jsonl", "in", False),
        ("in/**/*.csv", "in/a/out", True),
        ("in/**/*.csv", "in/a/_out", False),
        ("in/*/*.csv", "in/_out", False),
        ("in/_*/*.csv", "in/_out", True),
        ("in/a.csv", "in", False),
    ],
)
def test_a_source_knows_which_files_it_would_read(
    path: str, target: str, expected: bool
) -> None:
    assert is_among(path, Path(target, "part-0.csv")) is expected


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_a_sink_below_its_own_input_is_told(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "aiomailbox")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"n": 1}')
    env = am.StreamExecutionEnvironment()
    stream = env.from_source(am.FileSource(tmp_path / "in", "jsonl"))
    out = tmp_path / "in" / "out"
    stream.sink_to(
        am.FileSink(out, "jsonl") if kind == "jsonl" else am.ParquetSink(out)
    )
    await env.execute()
    [told] = [one for one in map(str, caplog.messages) if OWN in one]
    assert "in/out" in told
    assert told.count("test_joined_files.py") == 2


async def test_a_watching_source_with_its_own_results_is_refused(
    tmp_path: Path,
) -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_source(am.FileSource(tmp_path, "jsonl", watch=am.seconds(1)))
    stream.sink_to(am.FileSink(tmp_path, "jsonl", mode="append"))
    with pytest.raises(UsageError, match="read its own results"):
        await env.execute()


def test_a_path_that_ends_like_another_format_is_refused(tmp_path: Path) -> None:
    calls: list[Any] = [
        lambda: am.FileSink("orders.csv", "jsonl"),
        lambda: am.FileSink("orders.parquet", "csv"),
        lambda: am.ParquetSink(tmp_path / "orders.jsonl"),
        lambda: am.FileSource("orders.jsonl.gz", "csv"),
        lambda: am.FileSource(["a.csv", "b.ndjson"], "csv"),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match="ends like"):
            call()
    # Lines are lines, and `.log` says nothing.
    am.FileSource("orders.csv", "text")
    am.FileSource("orders.log", "jsonl")
    am.FileSink("orders.txt", "jsonl")
