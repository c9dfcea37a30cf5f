"""Rows by the values of columns, in directories that Spark and Arrow read as columns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from aiomailbox.errors import RecordTypeError

__all__ = ["check_columns", "split"]

# What Hive, Spark and Arrow write for NULL.
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
# What has a meaning in paths or URLs, for one of the readers.
_SPECIAL: Final = frozenset("\"#%'*/:=?\\{}[]^")
_CONTROL: Final = frozenset({*range(32), 127})


def check_columns(schema: pa.Schema, names: tuple[str, ...]) -> None:
    """Check that rows can be partitioned by columns.

    Raises:
        RecordTypeError: If there is no such column, or its values have no one text; or if
            no other column would be left.
    """
    for name in names:
        if name not in schema.names:
            raise RecordTypeError(
                "partition_by",
                f"there is no column {name!r}",
                f"The records have {schema.names}.",
            )
        kind = schema.field(name).type
        if not any(is_kind(kind) for is_kind in _KINDS):
            raise RecordTypeError(
                "partition_by",
                f"column {name!r} of type {kind} cannot be part of a directory's name",
                "Use a string, an integer, a bool or a date; convert a timestamp "
                "to its date.",
            )
    if len(names) == len(schema):
        raise RecordTypeError(
            "partition_by",
            "every column is a partition column, so that none is left for the files",
            "Leave one out.",
        )


def split(table: pa.Table, names: tuple[str, ...]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each partition, without its columns, and its directory.

    Rows of a partition stay in their order.

    Args:
        table: The rows.
        names: The columns, the outermost directory first.

    Example:
        >>> table = pa.table({"day": ["mon", "tue", "mon"], "n": [1, 2, 3]})
        >>> [(folder, part.to_pylist()) for folder, part in split(table, ("day",))]
        [('day=mon', [{'n': 1}, {'n': 3}]), ('day=tue', [{'n': 2}])]
    """
    if not table.num_rows:
        return
    rest = [name for name in table.schema.names if name not in names]
    codes = [pc.dictionary_encode(table[name], "encode") for name in names]
    columns = [code.combine_chunks() for code in codes]
    numbers = [str(number) for number in range(len(names))]
    indices = pa.table([column.indices for column in columns], names=numbers)
    order = pc.sort_indices(indices, [(number, "ascending") for number in numbers])
    ordered = indices.take(order)
    rows = table.select(rest).take(order)
    # Where one of the codes is another than in the row before, a partition begins.
    starts = [0, *_changes(ordered), table.num_rows]
    for start, stop in pairwise(starts):
        folder = "/".join(
            _folder(name, column.dictionary[ordered[number][start].as_py()])
            for name, column, number in zip(names, columns, numbers, strict=True)
        )
        yield folder, rows.slice(start, stop - start)


_KINDS: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_date32,
    pa.types.is_null,
)


def _changes(ordered: pa.Table) -> list[int]:
    found: set[int] = set()
    for column in ordered.columns:
        values = column.to_numpy()
        found.update((values[1:] != values[:-1]).nonzero()[0].tolist())
    return [row + 1 for row in sorted(found)]


def _folder(name: str, scalar: Any) -> str:
    value = scalar.as_py()
    if isinstance(value, bool):
        value = "true" if value else "false"
    # An empty text has no directory; Spark writes it as NULL, too.
    text = _NULL if value is None or value == "" else _escaped(str(value))
    return f"{_escaped(name)}={text}"


def _escaped(text: str) -> str:
    # No others: Spark takes each for one character, which it is in ASCII only.
    return "".join(
        f"%{ord(sign):02X}" if sign in _SPECIAL or ord(sign) in _CONTROL else sign
        for sign in text
    )
