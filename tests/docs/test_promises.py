"""A sentence of a page that promises something has a test.

`promises.toml` names the tests. A promise whose words change, or whose test is renamed or
removed, fails here: look whether the one still proves the other.
"""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.docs.sentences import sentences_of
from tests.sources import parsed

ROOT = Path(__file__).parents[2]
TABLE: dict[str, dict[str, str | list[str]]] = tomllib.loads(
    (Path(__file__).parent / "promises.toml").read_text("utf-8")
)
# Sentences of the page about guarantees that lead from one promise to the next.
LEADING = (
    "The table below lists each sink.",
    "Each promise on this page has a test:",
    "Two jobs may have the same `job_id`,",
    "If they use two directories, each job has its own checkpoints, but",
    "decides what happens when you start a finished job again:",
    "Use it for",
)
WORDS_OF_A_FRAGMENT = 4


def one_line(text: str) -> str:
    return " ".join(text.split())


@cache
def names_of_tests(path: Path) -> frozenset[str]:
    """Return the names of the tests in a module."""
    tree = parsed(path)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, functions)
    )


@pytest.mark.parametrize("page", TABLE)
def test_a_promise_stands_on_its_page(page: str) -> None:
    text = one_line((ROOT / page).read_text("utf-8"))
    assert [promise for promise in TABLE[page] if promise not in text] == []


@pytest.mark.parametrize("page", TABLE)
def test_a_promise_has_a_test(page: str) -> None:
    named = {
        test
        for tests in TABLE[page].values()
        for test in ([tests] if isinstance(tests, str) else tests)
    }
    assert named
    missing = []
    for test in sorted(named):
        path, name = test.split("::")
        if not (ROOT / path).exists() or name not in names_of_tests(ROOT / path):
            missing.append(test)
    assert missing == []


def test_each_sentence_about_guarantees_has_a_test() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
    promises = list(TABLE["docs/guarantees.md"])
    prose = [
        one_line(sentence)
        for sentence in sentences_of(text, as_written=True)
        if len(sentence.split()) > WORDS_OF_A_FRAGMENT and sentence[-1] in ".:"
    ]
    assert len(prose) > len(LEADING)
    assert [
        sentence
        for sentence in prose
        if not any(
            promise in sentence or sentence in promise
            for promise in [*promises, *LEADING]
        )
    ] == []
