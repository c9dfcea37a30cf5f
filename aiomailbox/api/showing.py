"""Shows records where a program runs: as text, or below a cell."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import Any

from aiomailbox.api.notebook import displayed, is_notebook
from aiomailbox.api.shown import table_of

__all__ = ["show_records"]


def show_records(records: Sequence[Any], asked: int, truncate: int | None) -> None:
    """Print the first records of a stream.

    Args:
        records: They.
        asked: How many were asked for: with as many there may be more.
        truncate: How many characters of a value are shown; None for all.
    """
    table = table_of(records)
    # Whether there are more would be known after the next one, which may never come.
    note = f"the first {asked}, there may be more" if len(records) == asked else ""
    if is_notebook():
        text = "\n".join([table.text(truncate), *([note] if note else [])])
        html = table.html(truncate)
        displayed(f"{html}<p>{note}</p>" if note else html, text)
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(table.text(truncate, width))  # noqa: T201 -- printing is what it is for
    if note:
        print(note)  # noqa: T201 -- likewise
