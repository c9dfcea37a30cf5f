"""Files as a source: what is read, in which order, and from where it goes on."""

from __future__ import annotations

import asyncio
import csv
import errno
import glob
import gzip
import io
import json
import os
import pickle
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st
from pyarrow import dataset, parquet

import aiomailbox as am
from aiomailbox.connectors.files.formats import FileFormat
from aiomailbox.connectors.files.source import (
    FileEnumerator,
    FileSource,
    FileSplit,
    FilesSeen,
    find_files,
)
from aiomailbox.errors import (
    DamagedFileError,
    InvalidArgumentError,
    InvalidRecordError,
    JobFailedError,
    WrongTypeError,
)

pytestmark = pytest.mark.real_time


@dataclass
class Order:
    user: str
    price: float
    count: int = 1


class Item(NamedTuple):
    user: str
    price: float
    count: int = 1


class Row(msgspec.Struct):
    user: str
    price: float
    count: int = 1


ORDERS = [
    {"user": "ann", "price": 3.5, "count": 2},
    {"user": "bob", "price": 1.0, "count": 4},
    {"user": "zoë\n", "price": 2.0, "count": 1},
]


def write_json(path: Path, records: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def write_csv(path: Path, records: list[dict[str, Any]]) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    return path


class Person(NamedTuple):
    user: str


def notes(error: BaseException) -> list[str]:
    """Return the notes of what made a job fail."""
    assert error.__cause__ is not None
    return list(getattr(error.__cause__, "__notes__", ()))


def write_parquet(path: Path, records: list[dict[str, Any]], group: int = 2) -> Path:
    parquet.write_table(pa.Table.from_pylist(records), path, row_group_size=group)
    return path


async def collect(source: Any, parallelism: int = 1) -> list[Any]:
    env = am.StreamExecutionEnvironment(parallelism=parallelism)
    return await env.from_source(source).collect()


async def test_json_lines_are_records(tmp_path: Path) -> None:
    path = write_json(tmp_path / "orders.jsonl", ORDERS)
    assert await collect(FileSource(path)) == ORDERS


@pytest.mark.parametrize("kind", [Order, Item, Row])
async def test_records_are_objects_of_a_class(tmp_path: Path, kind: type) -> None:
    expected = [kind(**order) for order in ORDERS]
    path = write_json(tmp_path / "orders.jsonl", ORDERS)
    assert await collect(FileSource(path, records=kind)) == expected
    path = write_csv(tmp_path / "orders.csv", ORDERS)
    assert await collect(FileSource(path, records=kind)) == expected
    path = write_parquet(tmp_path / "orders.parquet", ORDERS)
    assert await collect(FileSource(path, records=kind)) == expected


async def test_fields_with_a_default_may_be_missing(tmp_path: Path) -> None:
    path = write_json(tmp_path / "orders.jsonl", [{"user": "ann", "price": 1}])
    assert await collect(FileSource(path, records=Item)) == [Item("ann", 1.0, 1)]


async def test_rows_of_csv_are_dicts_of_texts(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "orders.csv", ORDERS)
    texts = [{name: str(value) for name, value in row.items()} for row in ORDERS]
    assert await collect(FileSource(path)) == texts


async def test_csv_may_have_no_header_and_another_delimiter(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text("ann;1\n\nbob;2", "utf-8")
    source = FileSource(path, columns=["user", "price"], delimiter=";")
    assert await collect(source) == [
        {"user": "ann", "price": "1"},
        {"user": "bob", "price": "2"},
    ]


async def test_lines_of_text_are_strings(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes("one\r\n\nz\u00fcrich".encode("latin-1"))
    lines = await collect(FileSource(path, encoding="latin-1"))
    assert lines == ["one", "", "zürich"]


async def test_parquet_gives_named_tuples_dicts_or_batches(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "orders.parquet", ORDERS)
    named = await collect(FileSource(path))
    assert [record._asdict() for record in named] == ORDERS
    assert await collect(FileSource(path, records=dict)) == ORDERS
    chosen = FileSource(path, records=dict, columns=["user"])
    assert await collect(chosen) == [{"user": row["user"]} for row in ORDERS]
    batches = await collect(FileSource(path, records="batch", batch_rows=2))
    assert [batch.num_rows for batch in batches] == [2, 1]
    assert pa.Table.from_batches(batches).to_pylist() == ORDERS


@pytest.mark.parametrize("columns", [["user", "price"], ["price"], ["user.price"]])
async def test_a_column_that_a_parquet_file_lacks_is_named_with_the_file(
    tmp_path: Path, columns: list[str]
) -> None:
    path = write_parquet(tmp_path / "orders.parquet", [{"user": "ann", "count": 1}])
    with pytest.raises(JobFailedError, match="there is no column") as caught:
        await collect(FileSource(path, columns=columns))
    assert f"there is no column {columns[-1]!r}" in str(caught.value)
    assert "The file's columns are: user, count" in str(caught.value)
    assert f"in the file {str(path)!r}" in notes(caught.value)


async def test_inner_fields_of_parquet_are_columns_by_their_path(
    tmp_path: Path,
) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"at": {"x": 1, "y": 2}, "n": 3}])
    found = await collect(FileSource(path, records=dict, columns=["at.x", "n"]))
    assert found == [{"at": {"x": 1}, "n": 3}]


@pytest.mark.parametrize("key", [False, True])
async def test_an_expression_over_a_missing_field_names_operator_fields_and_file(
    tmp_path: Path, key: bool
) -> None:
    write_parquet(tmp_path / "a.parquet", [{"user": "ann", "price": 2}])
    write_parquet(tmp_path / "b.parquet", [{"user": "bob"}])
    env = am.StreamExecutionEnvironment(parallelism=1)
    stream: Any = env.from_source(am.FileSource(tmp_path, "parquet"))
    dear = stream.filter(pc.field("price") > 1).uid("dear")
    with pytest.raises(JobFailedError) as caught:
        await (dear.key_by("user").deduplicate() if key else dear).collect()
    text = str(caught.value)
    assert "operator 'filter' (uid 'dear') failed at (price > 1)" in text
    assert "there is no field 'price'. The fields are: user." in text
    assert f"in the file {str(tmp_path / 'b.parquet')!r}" in notes(caught.value)
    assert "the record: Record(user='bob')" in notes(caught.value)


async def test_a_row_that_does_not_fit_its_class_is_named_with_the_file(
    tmp_path: Path,
) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"user": "ann", "more": 2}])
    with pytest.raises(JobFailedError, match="column 'more' has no field") as caught:
        await collect(FileSource(path, records=Person))
    assert f"in the file {str(path)!r}" in notes(caught.value)


async def test_compressed_and_marked_files_are_read(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + json.dumps(ORDERS[0]).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data))
    (tmp_path / "b.csv").write_bytes(b"\xef\xbb\xbfuser\nann\n")
    assert await collect(FileSource(tmp_path / "a.jsonl.gz")) == [ORDERS[0]]
    assert await collect(FileSource(tmp_path / "b.csv")) == [{"user": "ann"}]


async def test_files_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b/2", "a/1", "c/3"):
        write_json(tmp_path / f"{name}.jsonl", [name])
    for hidden in (".tmp/4", "_staging/5", "b/.6"):
        write_json(tmp_path / f"{hidden}.jsonl", [hidden])
    source = FileSource(tmp_path, "jsonl")
    assert await collect(source) == ["a/1", "b/2", "c/3"]
    assert await collect(FileSource(tmp_path / "*" / "[12].jsonl")) == ["a/1", "b/2"]
    several = FileSource([tmp_path / "c", tmp_path / "a" / "1.jsonl"], "jsonl")
    assert await collect(several) == ["c/3", "a/1"]


async def test_readers_share_the_files(tmp_path: Path) -> None:
    for number in range(7):
        write_json(tmp_path / f"{number}.jsonl", [number] * 3)
    found = await collect(FileSource(tmp_path, "jsonl"), parallelism=3)
    assert sorted(found) == sorted(list(range(7)) * 3)


async def test_an_empty_directory_has_no_records_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "_of_a_writer.jsonl").write_text("{}\n")
    assert await collect(FileSource(tmp_path, "jsonl")) == []
    [record] = caplog.records
    assert record.getMessage().startswith("a source has no files")
    assert vars(record)["line"].startswith(f"{__file__}:")
    assert str(tmp_path) in record.getMessage()


async def test_an_empty_directory_that_is_expected_is_no_news(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert await collect(FileSource(tmp_path, "jsonl", missing_ok=True)) == []
    context: Any = None
    FileSource(tmp_path, "jsonl", watch=1).create_enumerator(context)
    assert caplog.records == []


@pytest.mark.parametrize(("ending", "head"), [("jsonl", b""), ("csv", b"n\n")])
async def test_a_mebibyte_of_empty_lines_is_passed_over(
    tmp_path: Path, ending: str, head: bytes
) -> None:
    file = tmp_path / f"padded.{ending}"
    file.write_bytes(head + b"\n" * (1 << 20) + b"1\n")
    assert len(await collect(FileSource(file))) == 1


def test_a_directory_that_cannot_be_listed_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(tmp_path / "in" / "a.jsonl", [1])
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if str(path) == str(tmp_path / "in"):
            raise OSError(errno.EIO, "the disk is away")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    for path in (tmp_path, tmp_path / "in"):
        with pytest.raises(OSError, match="the disk is away"):
            find_files((str(path),))


async def test_a_url_is_read_through_fsspec(tmp_path: Path) -> None:
    import fsspec

    root = f"memory://{tmp_path.name}"
    for name in ("a", "b", "_c"):
        with fsspec.open(f"{root}/in/{name}.jsonl", "w") as file:
            file.write(json.dumps(name))
    assert await collect(FileSource(f"{root}/in", "jsonl")) == ["a", "b"]
    assert await collect(FileSource(f"{root}/in/b*.jsonl")) == ["b"]
    with pytest.raises(JobFailedError, match="there is no file or directory"):
        await collect(FileSource(f"{root}/nothing", "jsonl"))


def read_all(format_: FileFormat, name: str, position: int = 0) -> list[Any]:
    found: list[Any] = []
    for chunk in format_.read(name, position):
        assert len(chunk.run) == len(chunk.positions)
        found += zip(chunk.run.values, chunk.positions, strict=True)
    return found


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(
    st.lists(st.tuples(texts, st.integers(0, 9)), min_size=1, max_size=8),
    st.sampled_from(["jsonl", "csv", "parquet"]),
)
def test_reading_goes_on_behind_any_record(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[tuple[str, int]],
    format_: str,
) -> None:
    rows = [{"text": text or "-", "number": number} for text, number in records]
    path = tmp_path_factory.mktemp("files") / f"rows.{format_}"
    writers = {"jsonl": write_json, "csv": write_csv, "parquet": write_parquet}
    writers[format_](path, rows)
    reading = FileSource(path, records=dict)._reading
    whole = read_all(reading, str(path))
    assert [record["text"] for record, _ in whole] == [row["text"] for row in rows]
    for index, (_, position) in enumerate(whole):
        assert read_all(reading, str(path), position) == whole[index + 1 :]


async def test_large_files_come_in_bounded_runs(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.jsonl", list(range(5000)))
    assert await collect(FileSource(path)) == list(range(5000))
    long = ["x" * 300_000] * 9
    lengths = [
        len(chunk.run)
        for chunk in FileSource(write_json(tmp_path / "b.jsonl", long))._reading.read(
            str(tmp_path / "b.jsonl"), 0
        )
    ]
    assert lengths == [4, 4, 1]


class Context:
    """An enumerator's job, as lists."""

    parallelism = 2

    def __init__(self) -> None:
        self.assigned: list[tuple[int, str]] = []
        self.ended: list[int] = []

    def assign_splits(self, subtask_index: int, splits: list[FileSplit]) -> None:
        self.assigned += [(subtask_index, split.split_id) for split in splits]

    def signal_no_more_splits(self, subtask_index: int) -> None:
        self.ended.append(subtask_index)


def test_an_enumerator_goes_on_where_it_was(tmp_path: Path) -> None:
    paths = [str(write_json(tmp_path / f"{name}.jsonl", [])) for name in "abc"]
    source, context = FileSource(tmp_path, "jsonl"), Context()
    enumerator = source.create_enumerator(context)
    enumerator.handle_split_request(1)
    state = enumerator.snapshot()
    assert state == [FilesSeen([FileSplit(path) for path in paths[1:]], paths)]
    # What comes later is not of this reading.
    write_json(tmp_path / "d.jsonl", [])
    restored = source.create_enumerator(context, state)
    restored.add_splits_back([FileSplit(paths[0], 7)], 1)
    for _ in range(4):
        restored.handle_split_request(0)
    assert context.assigned == [(1, paths[0]), *((0, path) for path in paths)]
    assert context.ended == [0]


async def test_a_watched_directory_gives_new_files(tmp_path: Path) -> None:
    write_json(tmp_path / "a.jsonl", ["a"])
    env = am.StreamExecutionEnvironment(parallelism=2)
    source = FileSource(tmp_path, "jsonl", watch=0.01)
    assert source.boundedness is am.Boundedness.UNBOUNDED
    stream: AsyncIterator[Any] = aiter(env.from_source(source))
    assert await anext(stream) == "a"
    for name in "cb":
        temporary = write_json(tmp_path / f".{name}", [name])
        temporary.rename(tmp_path / f"{name}.jsonl")
        assert await anext(stream) == name
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_watched_directory_may_be_gone_for_a_while(tmp_path: Path) -> None:
    place = tmp_path / "in"
    write_json(place / "a.jsonl", ["a"])
    context = Context()
    enumerator = FileSource(place, "jsonl", watch=0.01).create_enumerator(context)
    enumerator.start()
    enumerator.handle_split_request(0)
    place.rename(tmp_path / "away")
    enumerator.handle_split_request(1)
    while not enumerator._failures:
        await asyncio.sleep(0.01)
    (tmp_path / "away").rename(place)
    write_json(place / "b.jsonl", ["b"])
    while len(context.assigned) < 2:
        await asyncio.sleep(0.01)
    enumerator.close()
    assert context.assigned[1] == (1, str(place / "b.jsonl"))
    assert context.ended == []


async def test_a_listing_that_fails_is_logged_once_and_so_is_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="aiomailbox")
    place = tmp_path / "in"
    write_json(place / "a.jsonl", ["a"])
    enumerator = FileSource(place, "jsonl", watch=0.01).create_enumerator(Context())
    enumerator.start()
    place.rename(tmp_path / "away")
    while not caplog.records or enumerator._failures < 2:
        await asyncio.sleep(0.01)
    (tmp_path / "away").rename(place)
    while len(caplog.records) < 2:
        await asyncio.sleep(0.01)
    enumerator.close()
    failed, again = caplog.records
    assert failed.levelname == "WARNING"
    assert "cannot be listed" in failed.message
    assert f"in {place}>" in failed.message
    assert "no file or directory" in failed.message
    assert again.failed > 1  # type: ignore[attr-defined]


async def test_a_watch_goes_on_after_a_listing_that_could_not_be_started(
    tmp_path: Path,
) -> None:
    class NoThreads(ThreadPoolExecutor):
        asked = 0

        def submit(self, *call: Any, **arguments: Any) -> Any:
            self.asked += 1
            if self.asked == 1:
                raise RuntimeError("can't start new thread")
            return super().submit(*call, **arguments)

    asyncio.get_running_loop().set_default_executor(NoThreads(1))
    context = Context()
    enumerator = FileSource(tmp_path, "jsonl", watch=0.01).create_enumerator(context)
    enumerator.start()
    enumerator.handle_split_request(0)
    path = write_json(tmp_path / "a.jsonl", [])
    async with asyncio.timeout(60):
        while not context.assigned:
            await asyncio.sleep(0.01)
    enumerator.close()
    assert context.assigned == [(0, str(path))]


@pytest.mark.parametrize(
    "path", ["*.jsonl", "**/*.jsonl", "in/*.jsonl", "memory://n/*.jsonl"]
)
async def test_a_pattern_that_matches_nothing_fails_unless_that_is_said_to_be_right(
    tmp_path: Path, path: str
) -> None:
    place = path if "://" in path else str(tmp_path / path)
    with pytest.raises(JobFailedError, match=r"no file matches .*missing_ok=True"):
        await collect(FileSource(place))
    assert await collect(FileSource(place, missing_ok=True)) == []
    # One that watches waits for what will match.
    FileSource(place, watch=1).create_enumerator(Context())


async def test_a_path_may_be_missing_if_that_is_said(tmp_path: Path) -> None:
    write_json(tmp_path / "a.jsonl", [1])
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "none" / "c.jsonl"]
    assert await collect(FileSource(paths, missing_ok=True)) == [1]


@pytest.mark.parametrize("function", ["listdir", "stat"])
def test_files_of_a_pattern_that_cannot_be_listed_do_not_seem_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """They would be read again as new ones when they come back."""
    write_json(tmp_path / "in" / "a.jsonl", [1])
    asked = getattr(os, function)

    def refuse(path: Any, *args: Any, **options: Any) -> Any:
        if str(path).startswith(str(tmp_path / "in")):
            raise OSError(errno.EIO, "the disk is away")
        return asked(path, *args, **options)

    monkeypatch.setattr(os, function, refuse)
    for pattern in ("in/*.jsonl", "*/*.jsonl", "**", "**/a.jsonl"):
        with pytest.raises(OSError, match="the disk is away"):
            find_files((str(tmp_path / pattern),))


def test_files_behind_fsspec_that_cannot_be_listed_do_not_seem_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = write_json(tmp_path / "in" / "a.jsonl", [1]).as_uri()
    place = url.removesuffix("/a.jsonl")

    def refuse(self: Any, path: str, **options: Any) -> Any:
        raise OSError(errno.EIO, "the disk is away")

    assert find_files((place,)) == find_files((f"{place}/*",)) == [url]
    monkeypatch.setattr(fsspec.get_filesystem_class("file"), "ls", refuse)
    for path in (f"{place}/*.jsonl", place):
        with pytest.raises(OSError, match="the disk is away"):
            find_files((path,))


@given(
    st.lists(
        st.sampled_from(
            [
                "a.x",
                "b.x",
                ".c.x",
                "_c.x",
                "d",
                "e/a.x",
                "e/.f/b.x",
                "e/_f/b.x",
                "e/g/b.x",
            ]
        )
    ),
    st.sampled_from(
        ["*", "*.x", "?.x", "[ab].x", "**", "**/*.x", "*/*.x", "e/**/b.x", ".*", "_*"]
    ),
)
def test_a_pattern_names_what_glob_names_but_what_begins_with_an_underscore(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], pattern: str
) -> None:
    place = tmp_path_factory.mktemp("glob")
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        if not (place / name).is_dir():
            (place / name).write_text("")
    asked = str(place / pattern)
    named = {name for name in glob.glob(asked, recursive=True) if os.path.isfile(name)}
    if pattern != "_*":
        named = {name for name in named if "/_" not in name[len(str(place)) :]}
    assert set(find_files((asked,), missing_ok=True)) == named


def test_a_pattern_of_a_url_names_no_file_of_a_writer(tmp_path: Path) -> None:
    place = f"memory://{tmp_path.name}/_in"
    files = fsspec.filesystem("memory")
    for name in ("a=1/b.x", "_SUCCESS", ".c.x", "d/_temporary/e.x"):
        files.pipe(f"{place}/{name}", b"")
    assert find_files((f"{place}/**",)) == [f"memory:///{tmp_path.name}/_in/a=1/b.x"]
    assert find_files((f"{place}/_*",)) == [f"memory:///{tmp_path.name}/_in/_SUCCESS"]


@pytest.mark.parametrize("given", ["", "**", "age=*/*.parquet"])
async def test_columns_in_the_names_of_directories_are_said_not_to_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    class Person(NamedTuple):
        name: str
        age: int

    env = am.StreamExecutionEnvironment()
    people = [Person("Ada", 36), Person("Bob", 41)]
    sink = am.ParquetSink(tmp_path / "out", partition_by="age")
    env.from_collection(people).sink_to(sink)
    await env.execute()
    caplog.clear()

    async def read(path: Path) -> list[Any]:
        source = FileSource(path, "parquet", records=dict)
        return await am.StreamExecutionEnvironment().from_source(source).collect()

    found = await read(tmp_path / "out" / given)
    assert sorted(found, key=str) == [{"name": "Ada"}, {"name": "Bob"}]
    [told] = [record for record in caplog.records if "names of dir" in record.message]
    assert told.columns == "age"
    # What it advises.
    table = dataset.dataset(tmp_path / "out", format="parquet", partitioning="hive")
    assert 'format="parquet", partitioning="hive"' in told.remedy
    rows = await am.StreamExecutionEnvironment().from_arrow(table.to_table()).collect()
    assert sorted(map(tuple, rows)) == people
    caplog.clear()
    # Who names the directory knows what it says.
    assert await read(tmp_path / "out" / "age=36") == [{"name": "Ada"}]
    assert caplog.records == []


@pytest.mark.real_time
def test_many_files_are_dealt_out_in_a_time_that_grows_as_their_number(
    tmp_path: Path,
) -> None:
    """Not as its square, which would be a hundred times the time for ten times as many."""

    def dealt(count: int) -> tuple[FileEnumerator, float]:
        names = [f"{number:07}.jsonl" for number in range(count)]
        enumerator = FileEnumerator(context, lambda: names, "names", None, None)
        began = time.thread_time()
        for _ in names:
            enumerator.handle_split_request(0)
        return enumerator, time.thread_time() - began

    # The least of some: others may use the processor and its caches meanwhile.
    context = Context()
    few_s = min(dealt(20_000)[1] for _ in range(3))
    many_s = min(dealt(200_000)[1] for _ in range(2))
    assert many_s < 40 * few_s
    context = Context()
    enumerator, _ = dealt(3)
    enumerator.add_splits_back([FileSplit("y"), FileSplit("z")], 0)
    for _ in range(2):
        enumerator.handle_split_request(1)
    assert context.assigned[-2:] == [(1, "y"), (1, "z")]


def test_files_that_are_all_gone_for_a_while_are_not_read_again() -> None:
    """The disk may be another for a moment."""
    listings = iter([["a", "b"], [], ["a", "b", "c"]])
    state = None
    for _ in range(3):
        context = Context()
        enumerator = FileEnumerator(
            context, lambda: next(listings), "files", 1.0, state
        )
        state = [FilesSeen([], enumerator.snapshot()[0].seen)]
    enumerator.handle_split_request(0)
    assert context.assigned == [(0, "c")]


def test_a_reader_that_asks_again_gets_one_file_as_soon_as_there_is_one() -> None:
    context = Context()
    enumerator = FileEnumerator(context, list, "files", 1.0, None)
    for reader in (0, 0, 1):
        enumerator.handle_split_request(reader)
    assert context.assigned == context.ended == []
    # Of a reader that failed: nobody asks for them once more.
    enumerator.add_splits_back([FileSplit("x"), FileSplit("y"), FileSplit("z")], 2)
    assert context.assigned == [(0, "x"), (1, "y")]
    assert enumerator.snapshot() == [FilesSeen([FileSplit("z")], [])]


async def test_what_was_found_while_it_was_closed_is_given_to_nobody() -> None:
    context = Context()
    enumerator = FileEnumerator(context, list, "files", 1.0, None)
    enumerator.start()
    enumerator.handle_split_request(0)
    found: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
    found.set_result(["late"])
    enumerator.close()
    enumerator._on_found(found)
    assert context.assigned == []


async def test_each_time_that_listings_begin_to_fail_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="aiomailbox")
    answers = iter("..ff.fff.")

    def find() -> list[str]:
        if next(answers, ".") == "f":
            raise OSError("away")
        return ["a"]

    enumerator = FileEnumerator(Context(), find, "files", 0.01, None)
    enumerator.start()
    async with asyncio.timeout(60):
        while len(caplog.records) < 4:
            await asyncio.sleep(0.01)
    enumerator.close()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2
    assert [vars(record)["failed"] for record in caplog.records[1::2]] == [2, 3]


def test_what_was_seen_and_deleted_is_forgotten(tmp_path: Path) -> None:
    gone, there = (write_json(tmp_path / f"{name}.jsonl", []) for name in "ab")
    source = FileSource(tmp_path, "jsonl", watch=1)
    state = source.create_enumerator(Context()).snapshot()
    gone.unlink()
    assert source.create_enumerator(Context(), state).snapshot()[0].seen == [str(there)]


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("a.jsonl", b'{"user": "a"}\n{"user"', "line 2, at byte 14"),
        ("a.jsonl", b'{"user": "a"}\n[1]\n', "line 2, at byte 14"),
        ("a.csv", b"user\na\nb,c\n", "line 3, at byte 7: the row has another number"),
        ("a.csv", b'user\na\n"b', "line 3, at byte 7: unexpected end of data"),
        ("a.csv", b"us\xffer\na\n", "line 1, at byte 0: 'utf-8' codec can't decode"),
        ("a.csv", b"user\na\n\n\xff\n", "line 4, at byte 8: 'utf-8' codec"),
        ("a.txt", b"a\n\nb\xff\n", "line 3, at byte 3: 'utf-8' codec can't decode"),
    ],
)
async def test_what_is_no_record_is_named_and_ends_the_job(
    tmp_path: Path, name: str, data: bytes, problem: str
) -> None:
    """Whatever the strategy: another attempt would read it again."""

    @dataclass
    class User:
        user: str

    (tmp_path / name).write_bytes(data)
    records = None if name.endswith(".txt") else User
    with pytest.raises(JobFailedError, match=problem) as caught:
        await restarting(FileSource(tmp_path / name, records=records))
    assert isinstance(caught.value.__cause__, InvalidRecordError)
    assert "on_error=am.skip" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data", "kept", "skipped", "told"),
    [
        (
            "a.jsonl",
            b'{"user": "a"}\n{"user"\n[1]\n\n{"user": "b"}\n{"user": 3}\n',
            "ab",
            3,
            "line 2, at byte 14",
        ),
        # Other columns than the first row, a quote that does not end, no UTF-8.
        (
            "a.csv",
            b'user\na\nb,c\n"d\n"e" f\ng\n\xff\n"h\n"\ni\n"j',
            ["a", "g", "h\n", "i"],
            5,
            "line 3, at byte 7: the row has another number",
        ),
        ("a.txt", b"a\n\xff\nb\n\xff", "ab", 2, "line 2, at byte 2"),
        ("a.jsonl", b"x\ny\n", "", 2, "line 1, at byte 0"),
    ],
)
async def test_lines_that_are_no_records_can_be_skipped(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    data: bytes,
    kept: Sequence[str],
    skipped: int,
    told: str,
) -> None:
    @dataclass
    class User:
        user: str

    (tmp_path / name).write_bytes(data)
    records = None if name.endswith(".txt") else User
    source = FileSource(tmp_path / name, records=records, on_error=am.skip)
    env, found = am.StreamExecutionEnvironment(), list[Any]()
    env.from_source(source, name="users").sink_to(found.append)
    async with env.start() as job:
        await job.result()
    assert [getattr(one, "user", one) for one in found] == list(kept)
    assert job.metrics().operators["users"]["skipped"] == skipped
    (warning,) = [vars(r) for r in caplog.records if "are skipped" in r.getMessage()]
    assert told in warning["first"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            {"path": "a.csv", "on_error": am.dead_letter(am.OutputTag("bad"))},
            "on_error: a source has no side outputs",
        ),
        (
            {"path": "a.parquet", "on_error": am.skip},
            "on_error: a Parquet file has no lines to skip",
        ),
    ],
)
def test_other_ways_with_lines_are_refused(
    arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        FileSource(**arguments)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.gz", "a.parquet"])
async def test_a_file_that_is_damaged_or_cut_short_ends_the_job(
    tmp_path: Path, name: str
) -> None:
    if name == "a.parquet":
        rows = pa.table({"n": range(10_000)})
        parquet.write_table(rows, tmp_path / name, compression="gzip")
        data = bytearray((tmp_path / name).read_bytes())
        data[100:-2000] = bytes(len(data) - 2100)
    else:
        data = bytearray(gzip.compress(b"[1]\n" * 10_000))[:-20]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(JobFailedError, match=f"{name} cannot be read: ") as caught:
        await restarting(FileSource(tmp_path / name))
    assert isinstance(caught.value.__cause__, DamagedFileError)


async def restarting(source: FileSource[Any]) -> None:
    """Run a job that starts again, as often as it may."""
    env = am.StreamExecutionEnvironment()
    env.configure(restart=am.restart.fixed_delay(1_000_000, am.millis(1)))
    async with asyncio.timeout(100):
        await env.from_source(source).collect()


async def test_texts_that_do_not_fit_their_class_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("user,price\nann,much\n", "utf-8")
    with pytest.raises(JobFailedError, match="at byte 11: Expected `float`"):
        await collect(FileSource(path, records=Order))


async def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"something else")
    with pytest.raises(JobFailedError, match=r"a\.parquet cannot be read") as caught:
        await collect(FileSource(path))
    assert isinstance(caught.value.__cause__, DamagedFileError)
    # Once is enough.
    assert not any(str(path) in note for note in notes(caught.value))


async def test_a_file_that_is_not_there_fails_the_job(tmp_path: Path) -> None:
    with pytest.raises(JobFailedError, match="no file or directory"):
        await collect(FileSource(tmp_path / "a.jsonl"))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"path": "a"}, "format: it cannot be inferred from a"),
        ({"path": ["a.csv", "b.jsonl"]}, "format: it cannot be inferred"),
        ({"path": []}, "path: it is empty"),
        ({"path": "a", "format": "xml"}, "format: 'xml' is unknown"),
        ({"path": "a.csv", "columns": ["a", "a"]}, "columns: it has duplicates"),
        ({"path": "a.jsonl", "columns": ["a"]}, "columns: jsonl files have no columns"),
        ({"path": "a.txt", "records": dict}, "records: records of text files"),
        ({"path": "a.jsonl", "records": int}, "records: <class 'int'>"),
        ({"path": "a.jsonl", "watch": 0}, "watch: 0 is too short"),
    ],
)
def test_arguments_that_cannot_work_are_refused(
    arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        FileSource(**arguments)


def test_arguments_of_another_type_are_refused() -> None:
    with pytest.raises(WrongTypeError, match="path: 3 is not a path"):
        FileSource(3)  # type: ignore[arg-type]
    # A set has no order, and a mapping says more than names.
    wrong: Any
    for wrong in ("user", {"user"}, {"user": str}):
        with pytest.raises(WrongTypeError, match=r"columns: .* is not a list of names"):
            FileSource("a.csv", columns=wrong)


def test_a_source_of_files_travels(tmp_path: Path) -> None:
    source = FileSource(tmp_path, "jsonl", records=Order)
    assert repr(pickle.loads(pickle.dumps(source))) == repr(source)
    assert source.record_types == (Order,)


def test_nothing_is_found_twice(tmp_path: Path) -> None:
    path = str(write_json(tmp_path / "a.jsonl", []))
    assert find_files((str(tmp_path), path, f"{tmp_path}/*")) == [path]


async def test_the_rows_of_parquet_files_are_known_from_their_footers(
    tmp_path: Path,
) -> None:
    for number in range(3):
        write_parquet(tmp_path / f"{number}.parquet", ORDERS)
    write_json(tmp_path / "orders.jsonl", ORDERS)
    source = am.FileSource(str(tmp_path / "*.parquet"))
    assert source.record_count is None
    for _ in range(2):
        # The second job knows it from the first moment.
        env = am.StreamExecutionEnvironment()
        env.from_source(source, name="orders").sink_to(lambda order: None)
        async with env.start() as job:
            await job.result()
            orders = job.snapshot().operator("orders")
        assert orders.records_expected == 3 * len(ORDERS)
        assert orders.metrics["num_records_out"] == 3 * len(ORDERS)
    lines = am.FileSource(tmp_path / "orders.jsonl")
    assert lines.record_count is None
    assert am.FileSource(str(tmp_path / "*.parquet"), watch=1).record_count is None


async def test_progress_counts_the_rows_of_batches(tmp_path: Path) -> None:
    for number in range(3):
        write_parquet(tmp_path / f"{number}.parquet", ORDERS)
    source = am.FileSource(tmp_path, "parquet", records="batch", batch_rows=2)
    env = am.StreamExecutionEnvironment()
    env.from_source(source, name="orders").sink_to(lambda batch: None)
    out = io.StringIO()
    async with env.start("batches") as job:
        await job.result()
        async with am.progress(job, stream=out):
            pass
        orders = job.snapshot().operator("orders")
    assert orders.metrics["num_records_out"] == 6
    assert out.getvalue().startswith("batches finished, 9 of 9 rows read (100%)")


async def test_a_footer_that_cannot_be_read_does_not_hide_who_fails(
    tmp_path: Path,
) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and nothing else")
    source = am.FileSource(tmp_path / "broken.parquet")
    env = am.StreamExecutionEnvironment()
    with pytest.raises(am.JobFailedError, match="broken"):
        await env.from_source(source).collect()
    assert source.record_count is None
