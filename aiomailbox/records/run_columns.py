"""Rows of one shape as columns: what makes undeclared values cheap to send.

Theory of operation: values are converted one by one only where they have to be. Rows
that are plain tuples of one length, or objects of one declared class, are turned by 90
degrees, again and again while their columns are such rows; of each column the types are
looked at once, and a column of scalars goes to msgspec as it is. Where all columns are
such, as in most runs, they go together: a run of a few hundred rows costs one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import countOf
from typing import Any, Final

from aiomailbox.errors import CorruptStreamError
from aiomailbox.records.mapping import map_all
from aiomailbox.records.record_classes import RecordClasses

__all__ = [
    "PLAIN_RECORDS",
    "PLAIN_TUPLES",
    "RECORDS",
    "ROWS",
    "TUPLES",
    "are_plain",
    "columns_of",
    "kinds_of",
    "rows_of",
]

# The forms of many values: one by one, columns of rows of one kind each in a form of its
# own, or such columns all at once.
ROWS: Final = 0
TUPLES: Final = 1
RECORDS: Final = 2
PLAIN_TUPLES: Final = 3
PLAIN_RECORDS: Final = 4

_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes})
_STRINGS: Final = frozenset({str})
_DICTS: Final = {dict}


def kinds_of(values: Sequence[Any]) -> set[type]:
    """Return the types of values.

    Example:
        >>> kinds_of([1, 2]) == {int}, kinds_of([1, "a"]) == {int, str}
        (True, True)
    """
    if not values:
        return set()
    kind = type(values[0])
    # Mostly there is one: to count it costs less than to put each into a set.
    if countOf(map(type, values), kind) == len(values):
        return {kind}
    return set(map(type, values))


def are_plain(values: Sequence[Any], kinds: set[type]) -> bool:
    """Say whether msgspec gives all the values, of these types, back as they are.

    Scalars do, and dicts of them with texts as keys; ints beyond 64 bits it refuses.
    """
    if kinds == _DICTS:
        items = chain.from_iterable(map(dict.values, values))
        return _STRINGS.issuperset(
            map(type, chain.from_iterable(values))
        ) and _SCALARS.issuperset(map(type, items))
    return _SCALARS.issuperset(kinds)


def columns_of(
    values: Sequence[Any], kinds: set[type], classes: RecordClasses
) -> tuple[str | None, list[Sequence[Any]]] | None:
    """Return the name of the rows' class, None for tuples, and their columns.

    None if the rows, of these types, have no common shape, or no columns.
    """
    if len(kinds) != 1:
        return None
    (kind,) = kinds
    if kind is tuple:
        columns: list[Sequence[Any]]
        try:
            columns = list(zip(*values, strict=True))
        except ValueError:
            return None
        return (None, columns) if columns else None
    entry = classes.of(kind)
    if entry is None or not entry.fields:
        return None
    return entry.name, list(zip(*map_all(entry.split, values), strict=True))


def rows_of(
    name: str | None, columns: list[list[Any]], classes: RecordClasses
) -> list[Any]:
    """Return the rows that columns make; the counterpart of `columns_of`.

    Raises:
        CorruptStreamError: If no such class was declared, or it has other fields.
    """
    rows = list(zip(*columns, strict=True))
    if name is None:
        return rows
    entry = classes.named(name)
    if entry is None:
        raise CorruptStreamError(f"no class {name!r} was declared for this job")
    if len(columns) != len(entry.fields):
        raise CorruptStreamError(f"{name} has {len(entry.fields)} fields")
    return map_all(entry.build, rows)
