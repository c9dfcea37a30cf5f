"""The first records of a stream as a table: of fields, in a notebook, in a terminal."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest

import aiomailbox as am
from aiomailbox.api.showing import table_of

Captured = pytest.CaptureFixture[str]


class Named(NamedTuple):
    item: str
    price: float


@dataclass
class Data:
    item: str
    price: float


class Struct(msgspec.Struct):
    item: str
    price: float


ORDERS = """\
+------+-------+
| item | price |
+------+-------+
| tea  |   2.5 |
| jam  |     4 |
+------+-------+
"""


@pytest.mark.parametrize(
    "kind", [Named, Data, Struct, lambda item, price: {"item": item, "price": price}]
)
async def test_columns_are_the_fields_of_records(kind: Any, capsys: Captured) -> None:
    orders = [kind("tea", 2.5), kind("jam", 4)]
    await am.StreamExecutionEnvironment().from_collection(orders).show()
    assert capsys.readouterr().out == ORDERS


async def test_it_runs_for_no_more_records_than_it_shows(capsys: Captured) -> None:
    """The next record of a stream may be far away, or never come."""

    async def numbers() -> AsyncIterator[int]:
        yield 7
        yield 8
        await asyncio.Event().wait()

    await am.StreamExecutionEnvironment().from_async_iterable(numbers).show(2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:5] == ["| value |", "+-------+", "|     7 |", "|     8 |"]
    assert lines[-1] == "the first 2, there may be more"


@pytest.mark.parametrize(
    ("records", "columns", "rows"),
    [
        ([], ["value"], []),
        ([(1, "x"), (2,)], ["_1", "_2"], [["1", "x"], ["2", ""]]),
        ([{"a": 1}, {"b": None}], ["a", "b"], [["1", ""], ["", "None"]]),
        (["a\nb\t"], ["value"], [["a\\nb\\t"]]),
        ([Named, 1], ["value"], [[str(Named)], ["1"]]),
    ],
)
def test_records_of_all_kinds_are_rows(
    records: list[Any], columns: list[str], rows: list[list[str]]
) -> None:
    table = table_of(records)
    assert table.columns == columns
    assert table.rows == rows


def test_a_record_whose_text_fails_is_shown_all_the_same() -> None:
    class Broken:
        def __str__(self) -> str:
            raise ValueError

    assert table_of([Broken()]).rows == [["<Broken.__str__ raised ValueError>"]]


def test_long_values_are_cut_and_wide_letters_stand_below_each_other() -> None:
    table = table_of([{"city": "東京都" * 9, "n": 1}, {"city": "Oslo", "n": 2}])
    lines = table.text(8).splitlines()
    assert lines[3] == "| 東京都… | 1 |"
    assert lines[4] == "| Oslo    | 2 |"
    assert "東京都" * 9 in table.text(None)
    # Not the heads: they say what it is.
    assert table.text(1).splitlines()[1] == "| city | n |"


def test_a_narrow_terminal_gets_a_table_that_fits() -> None:
    table = table_of([{"id": 1, "text": "x" * 60, "other": "y" * 30}])
    assert {len(line) for line in table.text(40, 50).splitlines()} == {50}
    # Where nothing fits, something is still to be read.
    narrow = table.text(40, 10).splitlines()
    assert "xxxxxxx…" in narrow[3]
    assert "| 1 " not in table.text(40, 50).splitlines()[1]


async def test_a_terminal_says_how_wide_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(
        "shutil.get_terminal_size", lambda *_, **__: os.terminal_size((30, 24))
    )
    words = am.StreamExecutionEnvironment().from_collection(["w" * 39])
    await words.show()
    assert {len(line) for line in out.getvalue().splitlines()} == {30}


async def test_a_notebook_gets_a_table_of_html(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    shown: list[tuple[str, str]] = []
    monkeypatch.setattr("aiomailbox.api.showing.is_notebook", lambda: True)
    monkeypatch.setattr(
        "aiomailbox.api.showing.displayed",
        lambda html, text: shown.append((html, text)),
    )
    rows = [{"item": "<b>", "price": 1}]
    await am.StreamExecutionEnvironment().from_collection(rows).show(1)
    [(html, text)] = shown
    assert "<th>item</th><th>price</th>" in html
    assert '<td style="text-align: left">&lt;b&gt;</td>' in html
    assert '<td style="text-align: right">1</td>' in html
    assert html.endswith("<p>the first 1, there may be more</p>")
    assert text.startswith("+------+")
    assert capsys.readouterr().out == ""


async def test_wrong_arguments_are_refused() -> None:
    stream = am.StreamExecutionEnvironment().from_collection([1])
    with pytest.raises(am.InvalidArgumentError, match="count"):
        await stream.show(0)
    with pytest.raises(am.InvalidArgumentError, match="truncate"):
        await stream.show(truncate=0)
