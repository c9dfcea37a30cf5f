"""NamedTuple classes that are made from field names, and survive pickling."""

from __future__ import annotations

import keyword
from collections import namedtuple
from functools import lru_cache
from typing import Any

__all__ = ["is_field_name", "record_class", "record_of"]


def is_field_name(name: str) -> bool:
    """Say whether a NamedTuple can have a field of this name: a public identifier.

    Example:
        >>> [name for name in ("price", "a b", "class", "_x") if is_field_name(name)]
        ['price']
    """
    return (
        name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")
    )


@lru_cache(maxsize=1024)
def record_class(names: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """Return the NamedTuple class with these fields: the same one for the same names.

    Its instances pickle as their names and values, so that another process, which
    has made no such class, can read them.

    Args:
        names: The fields, each a public identifier.

    Example:
        >>> Point = record_class(("x", "y"))
        >>> Point(1, 2).x, record_class(("x", "y")) is Point
        (1, True)
    """
    # Called through a name that type checkers do not follow: the fields are a value.
    make: Any = namedtuple  # noqa: PYI024 -- the fields are known only now
    base = make("Record", names)
    members = {"__module__": __name__, "__reduce__": _reduce, "__slots__": ()}
    return type("Record", (base,), members)


def record_of(names: tuple[str, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the record with these fields and values; what a pickled one calls."""
    return tuple.__new__(record_class(names), values)


def _reduce(record: Any) -> tuple[Any, ...]:
    return record_of, (record._fields, tuple(record))
