"""Every Python block in the README and the pages runs, and prints what the page says.

The blocks of a page share a namespace and run in order, in an empty directory. A block
with a top-level ``await`` runs on the page's event loop; any other block runs as a
script would, without a loop. The page's loop is one of virtual time, except where a
block is marked ``python spark``: such a page gets the Spark session as ``spark`` and a
real loop. A block ``text output`` is what the Python block before it has to print.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from aiomailbox.testing import virtual_time_loop_factory

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```[ \t]*$", re.MULTILINE | re.DOTALL)
SHOWS_OUTPUT = ["text", "output"]


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    info: list[str]
    line: int
    text: str

    @property
    def is_python(self) -> bool:
        return self.info[:1] == ["python"]

    @property
    def needs_spark(self) -> bool:
        return self.info == ["python", "spark"]


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text("utf-8")
    return [
        Block(
            match[2].split(),
            text.count("\n", 0, match.start()) + 2,
            "\n".join(line.removeprefix(match[1]) for line in match[3].splitlines()),
        )
        for match in FENCE.finditer(text)
    ]


PAGES = {
    str(page.relative_to(ROOT)): blocks_of(page)
    for page in [
        ROOT / "README.md",
        *sorted(
            page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts
        ),
    ]
}
WITH_CODE = {
    name: blocks
    for name, blocks in PAGES.items()
    if any(block.is_python for block in blocks)
}
SPARK = [
    name for name, blocks in WITH_CODE.items() if any(b.needs_spark for b in blocks)
]
PLAIN = [name for name in WITH_CODE if name not in SPARK]


@pytest.mark.parametrize("name", PLAIN)
def test_the_blocks_of_a_page_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with asyncio.Runner(loop_factory=virtual_time_loop_factory()) as runner:
        run_page(name, runner, {})


@pytest.mark.spark
@pytest.mark.parametrize("name", SPARK)
def test_the_blocks_of_a_page_with_spark_run(
    name: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        spark_directory(spark, tmp_path),
        asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner,
    ):
        run_page(name, runner, {"spark": spark})


def test_every_fence_is_of_a_known_kind() -> None:
    """A block that is marked in another way would be left out unseen."""
    known = [
        ["python"],
        ["python", "spark"],
        # A copy of a program, which is tested where it is.
        ["py"],
        ["text"],
        SHOWS_OUTPUT,
        ["sh"],
        ["mermaid"],
        ["ini"],
        ["yaml"],
    ]
    for name, blocks in PAGES.items():
        for block in blocks:
            directive = bool(block.info) and block.info[0].startswith("{")
            assert directive or block.info in known, (name, block.line, block.info)
            assert block.info[:1] != ["{code-block}"], (name, block.line)


def run_page(name: str, runner: asyncio.Runner, namespace: dict[str, Any]) -> None:
    """Run the Python blocks of a page and compare what they print."""
    # Dataclasses and annotations look up the module of what is defined.
    namespace["__name__"] = "__main__"
    printed = ""
    for block in PAGES[name]:
        if block.is_python:
            printed = run_block(name, block, runner, namespace)
        elif block.info == SHOWS_OUTPUT:
            where = f"{name}:{block.line}"
            assert printed.rstrip() == block.text.rstrip(), where


def run_block(
    name: str, block: Block, runner: asyncio.Runner, namespace: dict[str, Any]
) -> str:
    """Run a block and return what it prints."""
    # Newlines in front make line numbers those of the page.
    source = "\n" * (block.line - 1) + block.text
    code = compile(source, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    printed = io.StringIO()
    with redirect_stdout(printed):
        if code.co_flags & inspect.CO_COROUTINE:
            runner.run(_top_level(code, namespace))
        else:
            exec(code, namespace)
    return printed.getvalue()


async def _top_level(code: CodeType, namespace: dict[str, Any]) -> None:
    await eval(code, namespace)


@contextmanager
def spark_directory(spark: Any, path: Path) -> Iterator[None]:
    """Let relative paths mean the same to Spark, whose JVM was started elsewhere."""
    hadoop = spark._jvm.org.apache.hadoop.fs
    files = hadoop.FileSystem.get(spark._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(hadoop.Path(str(path)))
    try:
        yield
    finally:
        files.setWorkingDirectory(before)


@contextmanager
def page(text: str, path: Path) -> Iterator[str]:
    """Add a page to those that are known."""
    path.write_text(text, "utf-8")
    PAGES["made up"] = blocks_of(path)
    try:
        yield "made up"
    finally:
        del PAGES["made up"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```python\n1 / 0\n```\n", ZeroDivisionError),
        ("```python\nawait nothing\n```\n", NameError),
        ("```python\nprint(1)\n```\n\n```text output\n2\n```\n", AssertionError),
    ],
)
def test_a_page_that_lies_is_noticed(
    text: str, problem: type[Exception], tmp_path: Path
) -> None:
    with (
        page(text, tmp_path / "page.md") as name,
        asyncio.Runner(loop_factory=virtual_time_loop_factory()) as runner,
        pytest.raises(problem),
    ):
        run_page(name, runner, {})
