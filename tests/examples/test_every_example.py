"""No example is left without a test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.sources import parsed

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PACKAGES = sorted(path.parent for path in (ROOT / "examples").glob("*/__main__.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_a_test_that_loads_it(example: Path) -> None:
    test = Path(__file__).with_name(f"test_{example.stem}.py")
    assert test.exists(), f"write tests/examples/{test.name}"
    names = {
        node.value for node in ast.walk(parsed(test)) if isinstance(node, ast.Constant)
    }
    assert names & {example.stem, example.name}, f"{test.name} does not run {example}"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_package_of_examples_has_tests_that_run_it(package: Path) -> None:
    tests = Path(__file__).with_name(package.name).glob("test_*.py")
    imported = {
        node.module
        for test in tests
        for node in ast.walk(parsed(test))
        if isinstance(node, ast.ImportFrom)
    }
    assert f"examples.{package.name}.__main__" in imported


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8
    assert len(PACKAGES) >= 1
