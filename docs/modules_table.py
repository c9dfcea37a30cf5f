"""Writes the last part of architecture.md: every module, by the first line of its docstring.

Run it from the project's directory: ``python docs/modules_table.py``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "aiomailbox"
PAGE = Path(__file__).with_name("architecture.md")

TITLE = "## Every module\n"
HEAD = """
Each module by the first line of its docstring, from the highest floor to the lowest. The sections
above say where a decision is made. This one says where else to look.
"""


def packages() -> list[str]:
    """The packages in the order of the floors, as the page's first table lists them."""
    named = []
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("| ") and line[2:4].strip().isdigit():
            named += [
                name for name in line.split("|")[2].split("`") if name.isidentifier()
            ]
    return named


def first_line(path: Path) -> str:
    """What a module says of itself, in Markdown."""
    said = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return said.partition("\n")[0].replace("``", "`").replace("|", "\\|")


def rows(paths: list[Path]) -> Iterator[str]:
    """One row for each module of these that is not only a package's face."""
    yield "| module | its idea |"
    yield "|---|---|"
    for path in sorted(paths):
        if path.name != "__init__.py":
            name = path.relative_to(PACKAGE).with_suffix("").as_posix()
            yield f"| `{name}` | {first_line(path)} |"


def part() -> str:
    """The part of the page that this script writes."""
    lines = [TITLE + HEAD]
    for package in packages():
        lines.append(f"### `{package}`\n")
        lines += [*rows(list((PACKAGE / package).rglob("*.py"))), ""]
    lines.append("### Modules without a package\n")
    lines += rows(list(PACKAGE.glob("*.py")))
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page, with that part as it should be."""
    kept, _, _ = PAGE.read_text("utf-8").partition(TITLE)
    return kept + part()


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
