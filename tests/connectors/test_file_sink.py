"""Files of lines: whole, once, and read again by FileSource as they were written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import aiomailbox as am
from aiomailbox.connectors import file_sink
from aiomailbox.errors import (
    InvalidArgumentError,
    RecordsRefusedError,
    SinkError,
    WrongTypeError,
)
from tests.connectors.sinks_by_hand import Program

pytestmark = pytest.mark.real_time


@dataclass
class Order:
    id: int
    note: str | None
    price: float
    paid: bool
    at: datetime


class Pair(NamedTuple):
    n: int
    word: str


ORDERS = [
    Order(
        n, f'a "{n}",\nb', n / 3, n % 2 == 0, datetime(2026, 1, 1, 0, 0, n, tzinfo=UTC)
    )
    for n in range(50)
]


@pytest.mark.parametrize("format_", ["jsonl", "csv"])
async def test_what_is_written_is_read_again_as_it_was(
    tmp_path: Path, format_: Any
) -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    orders = env.from_collection(ORDERS).rebalance()
    orders.sink_to(am.FileSink(tmp_path / "out", format_))
    await env.execute()
    assert (tmp_path / "out" / "_SUCCESS").exists()
    env = am.StreamExecutionEnvironment()
    source = am.FileSource(tmp_path / "out", format_, records=Order)
    found = await env.from_source(source).collect()
    assert sorted(found, key=lambda order: order.id) == ORDERS


async def test_texts_and_named_tuples(tmp_path: Path) -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection(["é", ""]).sink_to(am.FileSink(tmp_path / "text", "text"))
    pairs = env.from_collection([Pair(1, "a"), Pair(2, "b")])
    pairs.sink_to(am.FileSink(tmp_path / "json", "jsonl"))
    pairs.sink_to(am.FileSink(tmp_path / "csv", "csv", columns=["word"]))
    await env.execute()
    (text,) = (tmp_path / "text").glob("*.txt")
    assert text.read_text() == "é\n\n"
    (json,) = (tmp_path / "json").glob("*.jsonl")
    assert json.read_text() == '{"n":1,"word":"a"}\n{"n":2,"word":"b"}\n'
    (rows,) = (tmp_path / "csv").glob("*.csv")
    assert rows.read_text() == "word\na\nb\n"


async def test_columns_that_are_named_are_written_whatever_else_records_have(
    tmp_path: Path,
) -> None:
    job = Program(partial(am.FileSink, tmp_path / "out", "csv", columns=["n"]))
    await job.start()
    await job.write({"n": 1, "m": 2}, {"n": 3})
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    (file,) = (tmp_path / "out").glob("*.csv")
    assert file.read_text() == "n\n1\n3\n"


@pytest.mark.parametrize("format_", ["text", "csv"])
async def test_a_checkpoint_without_records_makes_no_file(
    tmp_path: Path, format_: str
) -> None:
    job = Program(partial(am.FileSink, tmp_path / "out", format_))
    await job.start()
    await job.checkpoint()
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert not [*(tmp_path / "out").glob("part-*")]


async def test_lines_appear_with_every_checkpoint_and_each_file_has_its_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sink, "_BUFFERED_BYTES", 8)
    target = tmp_path / "out"
    job = Program(partial(am.FileSink, target, "csv"))
    await job.start()
    await job.write(Pair(1, "first"), Pair(2, "second"))
    assert not target.exists()
    await job.checkpoint()
    await job.write(Pair(3, "third"))
    await job.crash()
    await job.start()
    await job.write(Pair(3, "third"), Pair(4, "fourth"))
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    texts = sorted(path.read_text() for path in target.glob("*.csv"))
    assert texts == ["n,word\n1,first\n2,second\n", "n,word\n3,third\n4,fourth\n"]
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("buffered", [1, 1 << 20])
async def test_records_without_a_line_are_refused_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffered: int
) -> None:
    monkeypatch.setattr(file_sink, "_BUFFERED_BYTES", buffered)
    cases: list[tuple[Any, list[Any], list[int], str]] = [
        ("text", ["a", 5, "b\nc", "d", "e\rf"], [1, 2, 4], "a\nd\n"),
        ("jsonl", [1, object(), {"a": None}], [1], '1\n{"a":null}\n'),
        (
            "csv",
            [5, Pair(1, "a"), {"n": 2}, Pair(3, "b")],
            [0, 2],
            "n,word\n1,a\n3,b\n",
        ),
        ("csv", [{"n": 1}, {"n": 2, "m": 3}, {"n": None}], [1], 'n\n1\n""\n'),
        # A lone surrogate is in no encoding of a file, also in what would be a column.
        ("csv", [{"\ud800": 1}, {"n": 2}], [0], "n\n2\n"),
        (
            "csv",
            [Pair(1, "a"), Pair(2, "\ud800"), Pair(3, "b")],
            [1],
            "n,word\n1,a\n3,b\n",
        ),
    ]
    for number, (format_, records, bad, text) in enumerate(cases):
        target = tmp_path / str(number)
        job = Program(partial(am.FileSink, target, format_))
        await job.start()
        with pytest.raises(RecordsRefusedError) as caught:
            await job.write(*records)
        assert sorted(caught.value.errors) == bad
        await job.checkpoint(end=True)
        await job.end(succeeded=True)
        (file,) = target.glob("part-*")
        assert file.read_text() == text


async def test_a_record_without_end_is_refused_beside_one_with_null(
    tmp_path: Path,
) -> None:
    """What became null is looked for in records that were written, and not too deep."""
    endless: list[Any] = []
    endless.append(endless)
    deep: Any = None
    for _ in range(200):
        deep = [deep]
    job = Program(partial(am.FileSink, tmp_path / "out", "jsonl"))
    await job.start()
    with pytest.raises(RecordsRefusedError) as caught:
        await job.write({"x": endless}, {"x": None}, {"x": deep})
    assert [*caught.value.errors] == [0]
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    (file,) = (tmp_path / "out").glob("*.jsonl")
    assert len(file.read_text("utf-8").splitlines()) == 2


async def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    job = Program(partial(am.FileSink, tmp_path / "out", "text"))
    await job.start()
    await job.write("a")
    place = job.writers[0]._segments.directory
    for entry in place.iterdir():
        entry.unlink()
    place.rmdir()
    with pytest.raises(SinkError, match="cannot write files into"):
        await job.prepare()
    await job.crash()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no such")
async def test_a_file_that_a_full_disk_did_not_take_is_closed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sink, "_BUFFERED_BYTES", 1)
    monkeypatch.setattr(file_sink.Segments, "begin", lambda _: Path("/dev/full"))
    job = Program(partial(am.FileSink, tmp_path / "out", "text"))
    await job.start()
    await job.write("a")
    (writer,) = job.writers
    file = writer._file
    await writer.close()
    assert file.closed


@pytest.mark.parametrize(
    ("args", "options", "kind", "message"),
    [
        (("x", "xml"), {}, InvalidArgumentError, "is unknown"),
        ((5, "csv"), {}, WrongTypeError, "not a path"),
        (("x", "csv"), {"mode": "upsert"}, InvalidArgumentError, "is unknown"),
        (("x", "csv"), {"columns": "n"}, WrongTypeError, "not a list of names"),
        (("x", "csv"), {"columns": []}, InvalidArgumentError, "it is empty"),
        (("", "csv"), {}, InvalidArgumentError, "path: it is empty"),
        (("x", "jsonl"), {"columns": ["n"]}, InvalidArgumentError, "have no columns"),
    ],
)
def test_arguments_that_cannot_work_are_refused_where_they_are_written(
    args: Any, options: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        am.FileSink(*args, **options)
