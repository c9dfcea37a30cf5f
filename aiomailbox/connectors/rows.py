"""Turns records into rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from operator import attrgetter, itemgetter
from typing import Any

from aiomailbox.errors import RecordTypeError

__all__ = ["RowReader", "field_names"]


def field_names(record: Any) -> tuple[str, ...]:
    """Return the names of a record's fields.

    Raises:
        RecordTypeError: If they have none.
    """
    if isinstance(record, Mapping):
        return tuple(str(name) for name in record)
    for attribute in ("_fields", "__struct_fields__", "__fields__"):
        names = getattr(type(record), attribute, None)
        if names:
            return tuple(names)
    if dataclasses.is_dataclass(record):
        return tuple(field.name for field in dataclasses.fields(record))
    raise RecordTypeError(
        "record",
        f"{record!r} of type {type(record).__name__} has no named fields",
        "Use a dict, NamedTuple, dataclass or msgspec.Struct.",
    )


class RowReader:
    """Reads the fields of records, in the order of columns.

    Args:
        columns: The columns.
        is_exact: Whether a dict must have no other fields.

    Attributes:
        columns: The columns.
    """

    def __init__(self, columns: tuple[str, ...], *, is_exact: bool) -> None:
        self.columns = columns
        self._width = len(columns) if is_exact else None
        self._of_mapping = _as_tuple(itemgetter(*columns), len(columns))
        self._of_object = _as_tuple(attrgetter(*columns), len(columns))

    def row(self, record: Any) -> tuple[Any, ...]:
        """Return a record's row.

        Raises:
            RecordTypeError: If it has other fields.
        """
        try:
            if not isinstance(record, Mapping):
                return self._of_object(record)
            if self._width is None or len(record) == self._width:
                return self._of_mapping(record)
        except (KeyError, AttributeError):
            pass
        raise RecordTypeError(
            "record",
            f"its fields are {list(field_names(record))}, not {list(self.columns)}",
            "All records of a sink must have the columns of the first one.",
        )


def _as_tuple(
    read: Callable[[Any], Any], width: int
) -> Callable[[Any], tuple[Any, ...]]:
    # With one name, the getters of `operator` return the value alone.
    return read if width > 1 else lambda record: (read(record),)
