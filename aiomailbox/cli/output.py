"""The output of commands: a table, plain columns, or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.table import Table

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def end(code: int, problem: str = "") -> NoReturn:
    """End the command with an exit code, and say on standard error why."""
    if problem:
        sys.stderr.write(f"{problem}\n")
    raise typer.Exit(code)


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    sys.stdout.write(f"{text.decode()}\n")


def show_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows: as a table in a terminal, else with tabs between the columns."""
    console = Console()
    if console.is_terminal:
        table = Table(*heads)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    for row in (heads, *rows):
        sys.stdout.write("\t".join(row) + "\n")


def size_text(size_bytes: float) -> str:
    """Return a number of bytes as readable text.

    Example:
        >>> size_text(0), size_text(2048)
        ('0 B', '2.0 KiB')
    """
    for unit in _UNITS:
        if size_bytes < 1024 or unit == _UNITS[-1]:
            break
        size_bytes /= 1024
    return f"{size_bytes} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
