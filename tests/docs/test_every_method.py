"""The page for users of PyFlink names every method of Flink's streams, and ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import aiomailbox as am

PAGE = (Path(__file__).parents[2] / "docs" / "pyflink.md").read_text("utf-8")
# Public methods of Flink 2.3.0's classes, by name, without constructors.
LISTED = (Path(__file__).parent / "datastream_methods.txt").read_text("utf-8")
OURS = {
    "DataStream": am.DataStream,
    "KeyedStream": am.KeyedStream,
    "WindowedStream": am.WindowedStream,
    "PartitionWindowedStream": am.PartitionWindowedStream,
    "ConnectedStreams": am.ConnectedStreams,
}


def methods() -> list[tuple[str, str]]:
    lines = [line.partition(": ") for line in LISTED.splitlines()]
    return [(kind, name) for kind, _, names in lines for name in names.split()]


def tables() -> dict[str, list[tuple[str, str]]]:
    """Return the rows of each class's table."""
    section = PAGE.partition("## Every method of a stream\n")[2].partition("\n## ")[0]
    found: dict[str, list[tuple[str, str]]] = {}
    for table in section.split("\n\n"):
        if not table.lstrip().startswith("|"):
            continue
        lines = [line.strip("|").split("|") for line in table.strip().splitlines()]
        kinds = re.findall(r"`(\w+)`", lines[0][0])
        rows = [(left, right.strip()) for left, right in lines[2:]]
        found |= dict.fromkeys(kinds, rows)
    return found


@pytest.mark.parametrize(("kind", "name"), methods())
def test_a_method_of_flink_is_on_the_page(kind: str, name: str) -> None:
    rights = [right for left, right in tables()[kind] if f"`{name}`" in left]
    assert len(rights) == 1, f"{kind}.{name}"
    assert rights[0]


def test_no_method_is_on_the_page_that_flink_has_not() -> None:
    listed = set(methods())
    for kind, rows in tables().items():
        others = {"SingleOutputStreamOperator", "DataStream"}
        kinds = others if kind in others else {kind}
        if kind in {"WindowedStream", "AllWindowedStream"}:
            kinds = {"WindowedStream", "AllWindowedStream"}
        if kind in {"ConnectedStreams", "BroadcastConnectedStream"}:
            kinds = {"ConnectedStreams", "BroadcastConnectedStream"}
        for left, _ in rows:
            for name in re.findall(r"`(\w+)`", left):
                assert any((one, name) in listed for one in kinds), (kind, name)


@pytest.mark.parametrize("kind", OURS)
def test_a_method_that_is_named_alone_is_ours(kind: str) -> None:
    owners = [OURS[kind], am.DataStream]
    for _, right in tables()[kind]:
        for name in re.findall(r"`(\w+)`", right):
            assert any(hasattr(owner, name) for owner in owners), name
