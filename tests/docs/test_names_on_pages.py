"""What the pages call by name exists: ``am.x``, and methods of streams, env and job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import aiomailbox
from aiomailbox.exchange.gate import InputGate
from aiomailbox.exchange.partition import PipelinedSubpartition, ResultPartition

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
# Public names that need an extra are checked by name only: pyspark may be missing.
AM = {*aiomailbox.__all__, *dir(aiomailbox)}


def owners_of() -> dict[str, tuple[type, ...]]:
    """Return what the words of the pages stand for."""
    stream = (aiomailbox.DataStream, aiomailbox.KeyedStream)
    return {
        "env": (aiomailbox.StreamExecutionEnvironment,),
        "stream": stream,
        "connected": (aiomailbox.ConnectedStreams,),
        "job": (aiomailbox.JobClient,),
        "executor": (aiomailbox.MailboxExecutor,),
        "partition": (ResultPartition,),
        "subpartition": (PipelinedSubpartition,),
        "gate": (InputGate,),
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_after_am_exist(page: Path) -> None:
    names = set(re.findall(r"\bam\.(\w+)", right_side(page, page.read_text("utf-8"))))
    assert names <= AM, names - AM


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_methods_that_are_called_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    for word, owners in owners_of().items():
        for method in re.findall(rf"(?<![\w.]){word}\.(\w+)", right_side(page, text)):
            assert any(hasattr(owner, method) for owner in owners), (word, method)


def test_what_is_the_same_as_in_pyflink_exists() -> None:
    owners = [owner for group in owners_of().values() for owner in group]
    owners += [aiomailbox.WindowedStream, aiomailbox.WatermarkStrategy]
    for left, right in rows(DOCS / "pyflink.md"):
        if not right.startswith("the same"):
            continue
        for name in re.findall(r"`\.?(\w+)[^`]*`", left):
            found = name in AM or any(hasattr(owner, name) for owner in owners)
            assert found, name


def right_side(page: Path, text: str) -> str:
    """Return what is about this package: of a table of two worlds the right column."""
    if page.name not in {"pyflink.md", "upgrading.md"}:
        return text
    return "\n".join(right for _, right in rows(page))


def rows(page: Path) -> list[tuple[str, str]]:
    """Return the two columns of the rows of a page's tables."""
    cells = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in page.read_text("utf-8").splitlines()
        if line.startswith("|")
    ]
    return [(row[0], row[1]) for row in cells if len(row) == 2]
