"""Pages for users are in plain English: what can be counted about that.

A subject that is a clause ("What it returns is stored"), and a sentence that goes on for
long, have to be read twice. The rest is for readers to judge.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS_MAX = 45
# For contributors, or tables of measurements; and lists of exit codes.
NOT_FOR_USERS = {"architecture.md", "flink-map.md", "performance.md"}
LISTS = ("Exit codes:",)
PAGES = sorted(
    page
    for page in [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "concepts").glob("*.md"),
        *(ROOT / "docs" / "examples").glob("*.md"),
    ]
    if page.name not in NOT_FOR_USERS
)


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a page's prose, with code and links as single words."""
    text = re.sub(r"^```.*?^```", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`", "Code", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"<\1>", text)
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            blocks.append([])
        elif line.startswith("|"):
            blocks += [[cell.strip()] for cell in line.strip("|").split(" | ")]
            blocks.append([])
        elif re.match(r"\s*([*-]|\d+\.) ", line):
            blocks.append([line.strip().lstrip("*- ")])
        else:
            blocks[-1].append(line.strip())
    found: list[str] = []
    for block in blocks:
        found += re.split(r"(?<=[.!?])\s+(?=[A-Z<*(])", " ".join(block))
    return [sentence for sentence in found if sentence]


def faults(sentence: str) -> list[str]:
    """Return what makes a sentence hard to read."""
    found = []
    if re.match(r"[*(]*What\b", sentence) and not sentence.rstrip("*)").endswith("?"):
        found.append("its subject is a clause: name the thing that is meant")
    count = len(sentence.split())
    if count > WORDS_MAX and not sentence.startswith(LISTS):
        found.append(f"it has {count} words: make two of it")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_sentence_of_a_page_has_to_be_read_twice(page: Path) -> None:
    found = {
        sentence: problems
        for sentence in sentences_of(page.read_text("utf-8"))
        if (problems := faults(sentence))
    }
    assert not found


@pytest.mark.parametrize(
    ("sentence", "is_plain"),
    [
        ("The checkpoint stores its result.", True),
        ("What it returns is stored in the checkpoint.", False),
        ("*What* it returns is stored.", False),
        ("What is the total of everything?", True),
        (" ".join(["word"] * WORDS_MAX), True),
        (" ".join(["word"] * (WORDS_MAX + 1)), False),
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
