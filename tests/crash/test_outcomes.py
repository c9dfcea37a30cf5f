"""The table of docs/guarantees.md is what happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.outcomes import FAILURES, SINKS, outcome

PAGE = Path(__file__).parents[2] / "docs" / "guarantees.md"
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in PAGE.read_text("utf-8").splitlines()
    if line.count("|") == 5 and line.split("|")[1].strip() in SINKS
]


def test_the_table_has_every_sink_and_every_failure() -> None:
    assert {row[0] for row in ROWS} == set(SINKS)
    assert {row[1] for row in ROWS} == set(FAILURES)


@pytest.mark.parametrize(
    ("sink", "failure", "promised", "checkpoints"),
    [
        (row[0], row[1], row[place], place == 2)
        for row in ROWS
        for place in (2, 3)
        if row[place] != "-"
    ],
)
def test_what_becomes_of_the_rows_is_what_the_page_says(
    sink: str, failure: str, promised: str, checkpoints: bool
) -> None:
    assert outcome(sink, failure, checkpoints=checkpoints) == promised
