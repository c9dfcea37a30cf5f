"""Pages, the reference, examples and errors are in plain English, as far as one can count.

A subject that is a clause ("What it returns is stored"), and a sentence that goes on for
long, have to be read twice. The rest is for readers to judge.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.sentences import sentences_of
from tests.sources import parsed

ROOT = Path(__file__).parents[2]
WORDS_MAX = 45
# A clause as a subject, at the beginning or behind a semicolon or a colon.
CLAUSE = re.compile(r"(?:^[*(]*What|[;:] what)\b")
# Lists of exit codes.
LISTS = ("Exit codes:",)
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *(ROOT / "docs").glob("*.md"),
        *(
            page
            for folder in ("concepts", "examples", "decisions")
            for page in (ROOT / "docs" / folder).glob("*.md")
        ),
    ]
)
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
# Parts of a docstring, and the items of its sections, which are not one sentence.
BETWEEN_PARTS = re.compile(
    r"\n\s*\n|\n\s*(?=(?:Args|Returns|Raises|Yields|Attributes|Concept|Cost|Invariants"
    r"|Example):)|\n\s+(?=\*{0,2}\w+: )|\n\s*(?=[-*] )"
)
ERRORS = re.compile(r"(Error|Warning|warn|warning)$")


def faults(sentence: str) -> list[str]:
    """Return what makes a sentence hard to read."""
    found = []
    if CLAUSE.search(sentence) and not sentence.rstrip("*)").endswith("?"):
        found.append("its subject is a clause: name the thing that is meant")
    words = re.sub(r"(Code,? )+", "Code ", f"{sentence} ").split()
    count = len(words)
    if count > WORDS_MAX and not sentence.startswith(LISTS):
        found.append(f"it has {count} words: make two of it")
    return found


def faults_of(sentences: list[str]) -> dict[str, list[str]]:
    return {
        sentence: problems for sentence in sentences if (problems := faults(sentence))
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_sentence_of_a_page_has_to_be_read_twice(page: Path) -> None:
    assert not faults_of(sentences_of(page.read_text("utf-8")))


def sentences_of_docstring(text: str) -> list[str]:
    """Return the sentences of a docstring, without its code."""
    prose = re.sub(r"(?ms)^\s*(>>>|\.\.\.|===).*?(?=^\s*$|\Z)", "", text)
    prose = re.sub(r"``[^`]*``|`[^`]*`", "Code", prose)
    return [
        re.sub(r"^\*{0,2}\w+: ", "", sentence)
        for part in BETWEEN_PARTS.split(prose)
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z(])", " ".join(part.split()))
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_no_docstring_of_an_example_has_to_be_read_twice(path: Path) -> None:
    documented_kinds = (
        ast.Module,
        ast.ClassDef,
        ast.FunctionDef,
        ast.AsyncFunctionDef,
    )
    for node in ast.walk(parsed(path)):
        if isinstance(node, documented_kinds):
            text = ast.get_docstring(node) or ""
            assert not faults_of(sentences_of_docstring(text))


def documented() -> Iterator[Any]:
    """Yield the objects that the reference documents."""
    directive = re.compile(
        r"^\.\. (currentmodule|auto\w+):: (\S+?)(?:\(\))?$", re.MULTILINE
    )
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        module = "aiomailbox"
        for kind, name in directive.findall(page.read_text("utf-8")):
            if kind == "currentmodule":
                module = name
            elif kind == "automodule":
                found = importlib.import_module(name)
                yield found
                yield from vars(found).values()
            elif "." in name:
                owner, _, last = name.rpartition(".")
                yield getattr(importlib.import_module(owner), last)
            else:
                yield getattr(importlib.import_module(module), name)


def docstrings() -> dict[str, str]:
    """Return the docstrings of the reference, by the names of their objects."""
    found: dict[str, str] = {}
    for each in documented():
        members = [each]
        if inspect.isclass(each):
            members += [
                getattr(member, "__func__", getattr(member, "fget", member))
                for kind in each.__mro__
                for name, member in vars(kind).items()
                if not name.startswith("_")
            ]
        for one in members:
            home = getattr(one, "__module__", getattr(one, "__name__", None))
            text = getattr(one, "__doc__", None)
            if isinstance(text, str) and str(home).startswith("aiomailbox"):
                name = getattr(one, "__qualname__", "")
                found[f"{home} {name}"] = inspect.cleandoc(text)
    return found


def test_no_docstring_of_the_reference_has_to_be_read_twice() -> None:
    found = {}
    texts = docstrings()
    assert "aiomailbox.api.calls Calls.map_async" in texts
    for name, text in texts.items():
        if problems := faults_of(sentences_of_docstring(text)):
            found[name] = problems
    assert found == {}


def texts_of_errors(path: Path) -> Iterator[str]:
    """Yield the texts that a module gives to errors and warnings."""
    for call in ast.walk(parsed(path)):
        if isinstance(call, ast.Call) and ERRORS.search(ast.unparse(call.func)):
            for argument in [*call.args, *(each.value for each in call.keywords)]:
                if isinstance(argument, ast.Constant):
                    yield str(argument.value)
                elif isinstance(argument, ast.JoinedStr):
                    yield "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "X"
                        for part in argument.values
                    )


def test_no_error_has_to_be_read_twice() -> None:
    modules = sorted((ROOT / "aiomailbox").rglob("*.py"))
    texts = [text for module in modules for text in texts_of_errors(module)]
    assert len(texts) > 1_000
    sentences = [
        sentence for text in texts for sentence in re.split(r"(?<=[.!?:;])\s+", text)
    ]
    assert not faults_of(sentences)


@pytest.mark.parametrize(
    ("sentence", "is_plain"),
    [
        ("The checkpoint stores its result.", True),
        ("What it returns is stored in the checkpoint.", False),
        ("*What* it returns is stored.", False),
        ("What is the total of everything?", True),
        (" ".join(["word"] * WORDS_MAX), True),
        (" ".join(["word"] * (WORDS_MAX + 1)), False),
        (" ".join(["Code,"] * (WORDS_MAX + 1)), True),
    ],
)
def test_a_sentence_is_judged(sentence: str, *, is_plain: bool) -> None:
    assert (not faults(sentence)) is is_plain


def test_sentences_are_found_in_paragraphs_lists_and_tables() -> None:
    text = (
        "One. Two `a. B`\nends.\n\n* In a list. It goes\n  on.\n\n| cell | A cell. |\n"
    )
    assert sentences_of(text) == [
        "One.",
        "Two Code ends.",
        "In a list.",
        "It goes on.",
        "cell",
        "A cell.",
    ]
