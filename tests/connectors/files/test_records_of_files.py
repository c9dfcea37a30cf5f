"""The same words say for every source of files what a record is."""

from __future__ import annotations

import gzip
from dataclasses import dataclass, make_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import aiomailbox as am

CSV = "user,price,count\nann,2.5,3\nbob,4,\n"
JSON = '{"user": "ann", "price": 2.5, "count": 3}\n{"user": "bob", "price": 4}\n'


class Order(NamedTuple):
    user: str
    price: float


@dataclass
class Priced:
    user: str
    price: float


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "o.csv").write_text("user,price\nann,2.5\n")
    (tmp_path / "o.jsonl").write_text('{"user": "ann", "price": 2.5}\n')
    table = pa.table({"user": ["ann"], "price": [2.5]})
    pq.write_table(table, tmp_path / "o.parquet")
    return tmp_path


async def rows(source: Any) -> list[Any]:
    return await am.StreamExecutionEnvironment().from_source(source).collect()


@pytest.mark.parametrize("name", ["o.csv", "o.jsonl", "o.parquet"])
async def test_a_word_means_the_same_for_every_format(place: Path, name: str) -> None:
    price: Any = "2.5" if name == "o.csv" else 2.5
    as_dict = {"user": "ann", "price": price}
    for records in (dict, "dict"):
        source: Any = am.FileSource(place / name, records=records)  # type: ignore[call-overload]
        assert await rows(source) == [as_dict]
    (found,) = await rows(am.FileSource(place / name, records="namedtuple"))
    assert (found.user, found.price) == ("ann", price)
    assert found._asdict() == as_dict
    assert await rows(am.FileSource(place / name, records=Order)) == [Order("ann", 2.5)]
    assert await rows(am.FileSource(place / name, records=Priced)) == [
        Priced("ann", 2.5)
    ]


@pytest.mark.parametrize("name", ["o.csv", "o.jsonl"])
async def test_types_by_name_make_dicts_with_these_types(
    place: Path, name: str
) -> None:
    source = am.FileSource(place / name, records={"price": float})
    assert await rows(source) == [{"user": "ann", "price": 2.5}]


async def test_types_may_have_no_value_and_columns_any_name(tmp_path: Path) -> None:
    path = tmp_path / "o.csv"
    path.write_text("user name,unit price,day\nann,2,2024-05-01\n")
    source = am.FileSource(path, records={"unit price": int, "day": date})
    assert await rows(source) == [
        {"user name": "ann", "unit price": 2, "day": date(2024, 5, 1)}
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("user,price\nann,cheap\n", "Expected `float`"),
        ("user,cost\nann,2\n", "there is no column 'price'; it has user, cost"),
    ],
)
async def test_a_value_that_does_not_fit_its_type_names_file_and_place(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "o.csv"
    path.write_text(text)
    with pytest.raises(am.JobFailedError, match=problem) as caught:
        await rows(am.FileSource(path, records={"price": float}))
    assert "o.csv" in str(caught.value)


async def test_types_are_inferred_from_the_beginning_of_each_file(
    tmp_path: Path,
) -> None:
    header = "i,f,b,d,t,at,s,none\n"
    first = "1,2.5,true,2024-05-01,10:30:00,2024-05-01 10:30:00,x,\n"
    second = ",NA,false,,,,,\n"
    path = tmp_path / "o.csv.gz"
    path.write_bytes(gzip.compress((header + first + second).encode()))
    assert await rows(am.FileSource(path, "csv", records="infer")) == [
        {
            "i": 1,
            "f": 2.5,
            "b": True,
            "d": date(2024, 5, 1),
            "t": time(10, 30),
            "at": datetime(2024, 5, 1, 10, 30),
            "s": "x",
            "none": "",
        },
        {
            "i": None,
            "f": None,
            "b": False,
            "d": None,
            "t": None,
            "at": None,
            "s": "",
            "none": "",
        },
    ]


async def test_what_begins_with_a_zero_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "o.csv"
    path.write_text("zip,n\n12345,0\n00123,7\n")
    assert await rows(am.FileSource(path, records="infer")) == [
        {"zip": "12345", "n": 0},
        {"zip": "00123", "n": 7},
    ]


async def test_inferring_takes_columns_and_delimiter_as_they_are_given(
    tmp_path: Path,
) -> None:
    path = tmp_path / "o.csv"
    path.write_text("ann;2\nbob;3\n")
    source = am.FileSource(
        path, records="infer", columns=["user", "count"], delimiter=";"
    )
    assert [row["count"] for row in await rows(source)] == [2, 3]


@pytest.mark.parametrize("text", ["", "user,price\n"])
async def test_nothing_can_be_inferred_from_a_file_without_rows(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "o.csv"
    path.write_text(text)
    assert await rows(am.FileSource(path, records="infer")) == []


async def test_a_value_that_comes_late_and_does_not_fit_says_what_to_do(
    tmp_path: Path,
) -> None:
    path = tmp_path / "o.csv"
    # Types are inferred from the first megabyte.
    path.write_text("n,text\n" + f"1,{'-' * 1000}\n" * 1200 + "x,-\n")
    with pytest.raises(am.JobFailedError, match=r"Say them: records=\{"):
        await rows(am.FileSource(path, records="infer"))


@pytest.mark.parametrize(
    ("name", "records", "problem"),
    [
        ("o.csv", "batch", "sources of columns"),
        ("o.jsonl", "batch", "sources of columns"),
        ("o.jsonl", "infer", "JSON has types already"),
        ("o.csv", "tuple", "is not a kind of record"),
        ("o.csv", {"price": object()}, "not types by names"),
        ("o.csv", int, "is not a kind of record"),
        ("o.parquet", "infer", "is not a kind of record"),
    ],
)
def test_what_a_format_cannot_make_is_refused_where_it_is_written(
    place: Path, name: str, records: Any, problem: str
) -> None:
    with pytest.raises(am.InvalidArgumentError, match=problem):
        am.FileSource(place / name, records=records)


async def test_rows_of_a_file_are_read_on_from_where_a_job_stopped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "o.csv"
    path.write_text("n,text\n" + "".join(f"{n},t{n}\n" for n in range(2_000)))
    env = am.StreamExecutionEnvironment(
        config=am.JobConfig(
            checkpoints=am.CheckpointConfig(None), restart=am.restart.fixed_delay(1, 0)
        )
    )
    seen: list[int] = []
    failed: list[int] = []

    def keep(row: dict[str, Any]) -> int:
        if row["n"] == 1_500 and not failed:
            failed.append(1)
            raise ValueError("once")
        n: int = row["n"]
        return n

    rows_of = env.from_source(am.FileSource(path, records="infer")).uid("rows")
    rows_of.map(keep).sink_to(seen.append)
    await env.execute()
    assert seen[-2_000:] == list(range(2_000)) or sorted(set(seen)) == list(
        range(2_000)
    )


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("values", "hint", "told"),
    [
        (["a"], int, "of class str, and Row.v is annotated as int"),
        (["a"], date, "annotated as date"),
        (["1.5"], Decimal, "annotated as Decimal"),
        (["red"], Colour, "annotated as Colour"),
        ([str(UUID(int=7))], UUID, "annotated as UUID"),
        (
            [1, None],
            int,
            r"'v' is NULL in row 1, and Row.v is annotated as int.*\| None",
        ),
        ([None], int | str, r"'v' is NULL in row 0"),
        ([[["a"]]], list[set[str]], "'v.element'.*of class list"),
        ([["a"]], set[int], "'v.element'.*of class str"),
    ],
)
@pytest.mark.parametrize("is_file", [True, False], ids=["file", "table"])
async def test_a_column_that_is_not_what_the_class_says_is_refused(
    values: list[Any], hint: Any, told: str, tmp_path: Path, *, is_file: bool
) -> None:
    row: Any = make_dataclass("Row", [("v", hint)])
    table = pa.table({"v": values})
    pq.write_table(table, tmp_path / "o.parquet")
    if is_file:
        with pytest.raises(am.JobFailedError, match=told):
            await rows(am.FileSource(tmp_path / "o.parquet", records=row))
    else:
        with pytest.raises(am.UnsupportedColumnError, match=told):
            am.StreamExecutionEnvironment().from_arrow(table, records=row)


@dataclass
class Tagged:
    id: int
    tags: set[str]
    place: tuple[float, ...] | None
    score: float | None = None
    more: Any = None


async def test_lists_become_the_sets_and_tuples_that_the_class_says(
    tmp_path: Path,
) -> None:
    given = [Tagged(1, {"a", "b"}, (0.5, 1.0)), Tagged(2, set(), None, 2.0)]
    env = am.StreamExecutionEnvironment()
    env.from_collection(given).sink_to(am.ParquetSink(tmp_path / "out"))
    await env.execute()
    source = am.FileSource(tmp_path / "out", "parquet", records=Tagged)
    assert await rows(source) == given
    table = pq.read_table(tmp_path / "out").drop_columns(["more"])
    read = am.StreamExecutionEnvironment().from_arrow(table, records=Tagged)
    assert await read.collect() == given


async def test_the_row_of_a_null_is_that_of_the_file(tmp_path: Path) -> None:
    table = pa.table({"user": ["a", "b", "c", None], "price": [1.0] * 4})
    pq.write_table(table, tmp_path / "o.parquet", row_group_size=1)
    source = am.FileSource(tmp_path / "o.parquet", records=Order, batch_rows=2)
    with pytest.raises(am.JobFailedError, match="'user' is NULL in row 3"):
        await rows(source)


@pytest.mark.parametrize("values", [[Colour.RED], [None, Colour.RED]])
async def test_an_enum_for_a_column_is_told_what_to_emit(
    values: list[Any], tmp_path: Path
) -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([{"colour": value} for value in values])
    stream.sink_to(am.ParquetSink(tmp_path / "out"))
    with pytest.raises(am.JobFailedError, match=r"Emit its \.value"):
        await env.execute()
