"""From records of any kind to columns of plain Python values."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from aiomailbox.errors import RecordTypeError
from aiomailbox.records.mapping import map_all

__all__ = ["RecordShape", "class_hints", "plain_values", "record_shape"]

# What stands alone becomes one column of this name, as in Spark.
_VALUE: Final = "value"
_SCALARS: Final = (
    bool,
    int,
    float,
    str,
    bytes,
    datetime,
    date,
    time,
    timedelta,
    Decimal,
)
_NESTED: Final = (list, tuple, dict, set, frozenset, msgspec.Struct)


class RecordShape(NamedTuple):
    """The fields of records of one kind.

    Attributes:
        record_type: The records' class.
        names: The fields' names.
        columns: Turns records into columns, one a field; raises when a record does
            not have the field.
    """

    record_type: type
    names: tuple[str, ...]
    columns: Callable[[list[Any]], list[list[Any]]]

    def hints(self) -> dict[str, Any]:
        """Return the annotations of the fields, as far as there are any."""
        return class_hints(self.record_type)

    def picked(self, names: Iterable[str], records: list[Any]) -> dict[str, list[Any]]:
        """Return the columns of these fields, as they are in the records.

        Raises:
            RecordTypeError: If a record does not have one of them.
        """
        reader = itemgetter if issubclass(self.record_type, Mapping) else attrgetter
        if issubclass(self.record_type, _SCALARS):
            return dict.fromkeys(names, records)
        try:
            return {name: map_all(reader(name), records) for name in names}
        except (AttributeError, KeyError) as error:
            raise RecordTypeError(
                "record",
                f"a record has other fields than the first, {list(self.names)}: "
                f"{error!r}",
                "All records must have the same fields.",
            ) from error


@lru_cache(maxsize=256)
def class_hints(record_type: type | None) -> dict[str, Any]:
    """Return the annotations of a class's fields, as far as there are any."""
    if record_type is None:
        return {}
    try:
        return typing.get_type_hints(record_type)
    except (NameError, TypeError):
        return {}


def record_shape(record: Any) -> RecordShape:
    """Return the shape of records like this one.

    Args:
        record: A NamedTuple, a mapping, a dataclass, a `msgspec.Struct`, a Row of
            Spark, or a single value, which becomes a column named ``value``.

    Raises:
        RecordTypeError: If its fields have no names, or names that are not text.
    """
    names = _names(record)
    if names is not None:
        _check_text(record, names)
        reader = itemgetter if isinstance(record, Mapping) else attrgetter
        return RecordShape(type(record), names, _by_field(names, reader))
    if isinstance(record, _SCALARS):
        return RecordShape(type(record), (_VALUE,), lambda values: [values])
    raise RecordTypeError(
        "record",
        f"{record!r} of type {type(record).__name__} has no named fields",
        "Use a NamedTuple, dict, dataclass or msgspec.Struct.",
    )


def _by_field(
    names: tuple[str, ...], reader: Callable[[str], Callable[[Any], Any]]
) -> Callable[[list[Any]], list[list[Any]]]:
    readers = [reader(name) for name in names]

    def columns(records: list[Any]) -> list[list[Any]]:
        return [plain_values(map_all(read, records)) for read in readers]

    return columns


def _names(record: Any) -> tuple[str, ...] | None:
    if isinstance(record, Mapping):
        return tuple(record)
    if isinstance(record, tuple):
        names = getattr(record, "_fields", None) or getattr(record, "__fields__", None)
        return None if names is None else tuple(names)
    if isinstance(record, msgspec.Struct):
        return record.__struct_fields__
    if dataclasses.is_dataclass(record):
        return tuple(field.name for field in dataclasses.fields(record))
    return None


def _check_text(record: Any, names: tuple[Any, ...]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise RecordTypeError(
                "record",
                f"{record!r} has a field {name!r}, whose name is not a string",
                "Name the fields of a dict by strings.",
            )


def plain_values(values: list[Any]) -> list[Any]:
    """Return a column with its nested records as dicts, which Arrow takes for structs."""
    sample = next((value for value in values if value is not None), None)
    if isinstance(sample, _NESTED) or dataclasses.is_dataclass(sample):
        return [_plain(value) for value in values]
    return values


def _plain(value: Any) -> Any:
    """Return nested records as dicts, which Arrow understands as structs."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    names = _names(value)
    if names is not None:
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value
