"""Shows records where a program runs: as text, or below a cell."""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final, NamedTuple

from aiomailbox.errors import safe_str
from aiomailbox.records.record_classes import fields_of

# Whether a program runs in a notebook, and how something is shown there.


def is_notebook() -> bool:
    """Say whether this program is a kernel of Jupyter, which shows HTML below a cell."""
    if "ipykernel" not in sys.modules:
        return False
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def displayed(html: str, text: str) -> Any:
    """Show HTML below the cell that runs, and text where there is no HTML.

    Returns:
        What shows something else in its place: ``update({"text/html": ...}, raw=True)``.
    """
    from IPython.display import display

    shown = {"text/html": html, "text/plain": text}
    return display(shown, raw=True, display_id=True)


# Records as a table, for people (pure).


# Shorter cells tell nothing.
_CELL_MIN: Final = 8


class RecordTable(NamedTuple):
    """Records as cells.

    Attributes:
        columns: Their heads.
        rows: A text per column.
        is_number: Per column, whether its values are numbers.
    """

    columns: list[str]
    rows: list[list[str]]
    is_number: list[bool]

    def text(self, truncate: int | None, width: int | None = None) -> str:
        """Return the table as lines.

        Example:
            >>> print(table_of([{"item": "tea", "price": 2.5}]).text(40))
            +------+-------+
            | item | price |
            +------+-------+
            | tea  |   2.5 |
            +------+-------+
        """
        cells = [[_cut(text, truncate) for text in row] for row in self.rows]
        lines = [self.columns, *cells]
        widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
        if width is not None:
            widths = _fitted(widths, width)
        rule = "".join(f"+{'-' * (each + 2)}" for each in widths) + "+"
        head, *body = (
            "".join(
                f"| {_placed(_cut(text, each), each, right)} "
                for text, each, right in zip(line, widths, self.is_number, strict=True)
            )
            + "|"
            for line in lines
        )
        return "\n".join([rule, head, rule, *body, *([rule] if body else [])])

    def html(self, truncate: int | None) -> str:
        """Return the table as HTML, which looks as the notebook shows data frames."""
        heads = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        rows = "".join(
            f"<tr>{''.join(self._cell(line, at, truncate) for at in range(len(line)))}</tr>"
            for line in self.rows
        )
        return (
            f'<table class="dataframe"><thead><tr>{heads}</tr></thead>'
            f"<tbody>{rows}</tbody></table>"
        )

    def _cell(self, line: list[str], place: int, truncate: int | None) -> str:
        side = "right" if self.is_number[place] else "left"
        text = escape(_cut(line[place], truncate))
        return f'<td style="text-align: {side}">{text}</td>'


def table_of(records: Sequence[Any]) -> RecordTable:
    """Return records as a table, with a column for each of their fields.

    The elements of a tuple are ``_1``, ``_2`` and so on, as in Spark; a record without
    fields is ``value``.
    """
    fields = [_fields_of(record) for record in records]
    columns = list(dict.fromkeys(name for one in fields for name in one)) or ["value"]
    return RecordTable(
        columns,
        # What a record does not have is not the same as None.
        [[_text(one.get(name, "")) for name in columns] for one in fields],
        [
            all(
                isinstance(value, int | float) and not isinstance(value, bool)
                for one in fields
                if (value := one.get(name)) is not None
            )
            for name in columns
        ],
    )


def _fields_of(record: Any) -> dict[str, Any]:
    if isinstance(record, Mapping):
        return {safe_str(name): value for name, value in record.items()}
    names = fields_of(record)
    if isinstance(record, tuple):
        numbered = [f"_{number}" for number in range(1, len(record) + 1)]
        return dict(zip(names or numbered, record, strict=False))
    if names is None:
        return {"value": record}
    return {name: getattr(record, name, "") for name in names}


def _text(value: Any) -> str:
    """Return a value as one line."""
    text = safe_str(value)
    return text if text.isprintable() else repr(text)[1:-1]


def _cut(text: str, limit: int | None) -> str:
    if limit is None or _width(text) <= limit:
        return text
    text = text[:limit]
    while _width(text) >= limit:
        text = text[:-1]
    return f"{text}…"


def _placed(text: str, width: int, right: bool) -> str:
    room = " " * (width - _width(text))
    return f"{room}{text}" if right else f"{text}{room}"


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.combining(letter)
        else 2
        if unicodedata.east_asian_width(letter) in "WF"
        else 1
        for letter in text
    )


def _fitted(widths: list[int], width: int) -> list[int]:
    """Make the widest columns narrower until a line fits, or nothing would be left."""
    widths = list(widths)
    while sum(widths) + 3 * len(widths) + 1 > width and max(widths) > _CELL_MIN:
        widths[widths.index(max(widths))] -= 1
    return widths


def show_records(records: Sequence[Any], asked: int, truncate: int | None) -> None:
    """Print the first records of a stream."""
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
