"""The map from Flink's names is complete, and every name on its right side exists."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "flink-map.md").read_text("utf-8")

# The names that descriptions of Flink's mailbox task and data exchange use.
FLINK_NAMES = (Path(__file__).parent / "flink_names.txt").read_text("utf-8").split()

LEFT_COLUMN = "\n".join(
    line.split("|")[1]
    for line in PAGE.splitlines()
    if line.startswith("|") and line.count("|") >= 3
)
HERE = sorted(set(re.findall(r"`(aiomailbox(?:\.\w+)+)`", PAGE)))


@pytest.mark.parametrize("name", FLINK_NAMES)
def test_a_flink_name_is_in_the_left_column_of_the_map(name: str) -> None:
    assert re.search(rf"\b{name}\b", LEFT_COLUMN), name


@pytest.mark.parametrize("name", HERE)
def test_a_name_of_this_package_on_the_map_exists(name: str) -> None:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        break
    for part in parts[length:]:
        found = member(found, part)


def test_the_map_names_many_things_of_this_package() -> None:
    assert len(HERE) > 100


def member(owner: object, name: str) -> object:
    """Return an attribute; one that instances get is looked up in the class body."""
    if hasattr(owner, name):
        return getattr(owner, name)
    assert inspect.isclass(owner), f"{owner!r} has no {name}"
    made = rf"self\.{name}(: [^=]+)? ="
    assert re.search(made, inspect.getsource(owner)), f"{owner!r} has no {name}"
    return None
