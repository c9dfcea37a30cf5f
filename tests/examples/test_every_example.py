"""No example is left without a test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_a_test_that_loads_it(example: Path) -> None:
    test = Path(__file__).with_name(f"test_{example.stem}.py")
    assert test.exists(), f"write tests/examples/{test.name}"
    names = {
        node.value
        for node in ast.walk(ast.parse(test.read_text("utf-8")))
        if isinstance(node, ast.Constant)
    }
    assert names & {example.stem, example.name}, f"{test.name} does not run {example}"


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8
