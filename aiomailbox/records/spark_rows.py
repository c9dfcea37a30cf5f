"""Spark's Row as a record: a tuple whose objects each know the names of their fields."""

from __future__ import annotations

from typing import Any, Final

from aiomailbox.errors import CorruptStreamError
from aiomailbox.records.record_classes import RecordClass

_MODULE: Final = "pyspark.sql.types"


def is_spark_row(kind: object) -> bool:
    """Say whether a class is `pyspark.sql.Row`; imports nothing.

    Example:
        >>> is_spark_row(tuple)
        False
    """
    return (
        isinstance(kind, type)
        and issubclass(kind, tuple)
        and (kind.__module__, kind.__qualname__) == (_MODULE, "Row")
    )


def row_class(kind: type) -> RecordClass:
    """Return how Rows are taken apart: the names, None without any, and the values."""

    def split(row: Any) -> tuple[Any, ...]:
        names = getattr(row, "__fields__", None)
        return None if names is None else tuple(names), tuple(row)

    def build(parts: Any) -> Any:
        names, values = parts
        if not isinstance(values, tuple) or not isinstance(names, tuple | None):
            raise CorruptStreamError("a Row is made of names and values")
        row: Any = tuple.__new__(kind, values)
        if names is not None:
            if not all(isinstance(name, str) for name in names):
                raise CorruptStreamError("the names of a Row are texts")
            row.__fields__ = list(names)
        return row

    return RecordClass.taken_apart(
        kind, ("names", "values"), split, build, names_fields=True
    )
