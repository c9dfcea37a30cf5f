"""Which values a column can hold as they are: Arrow makes others of many that it is given.

Asked for a type, Arrow cuts moments to dates and fractions to integers, reads texts as
numbers, and takes naive moments for those of UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.plain import is_any_list

__all__ = ["check_type", "check_values"]

_KINDS: Final = {
    "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "bytes": (
        *(pa.types.is_binary, pa.types.is_large_binary),
        *(pa.types.is_binary_view, pa.types.is_fixed_size_binary),
    ),
    "truth": (pa.types.is_boolean,),
    "number": (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    "date": (pa.types.is_date,),
    "moment": (pa.types.is_timestamp,),
    "time of day": (pa.types.is_time,),
    "duration": (pa.types.is_duration,),
}
# The first that fits: a bool is an int, a datetime a date, a timedelta64 a number.
_CLASSES: Final[tuple[tuple[str, tuple[type, ...]], ...]] = (
    ("text", (str,)),
    ("bytes", (bytes, bytearray, memoryview)),
    ("truth", (bool, np.bool_)),
    ("duration", (timedelta, np.timedelta64)),
    ("number", (int, float, Decimal, np.number)),
    ("moment", (datetime,)),
    ("date", (date,)),
    ("time of day", (time,)),
    ("UUID", (UUID,)),
)
_OF_NUMBERS: Final = frozenset({"moment", "time of day", "duration"})


def check_type(kind: pa.DataType, wanted: pa.DataType) -> None:
    """Refuse a column of which a cast would make other values, or drop inner fields.

    Numbers may become moments and durations, as a schema may ask.

    Raises:
        ValueError: If it is one.

    Example:
        >>> check_type(pa.int8(), pa.int64())
        >>> check_type(pa.list_(pa.timestamp("us")), pa.list_(pa.date32()))
        Traceback (most recent call last):
            ...
        ValueError: it is timestamp[us]
    """
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_dictionary(wanted):
        wanted = wanted.value_type
    if types.is_struct(kind) and types.is_struct(wanted):
        for field in kind:
            place = wanted.get_field_index(field.name)
            if place < 0:
                raise ValueError(f"it has no field {field.name!r}")
            check_type(field.type, wanted.field(place).type)
    elif is_any_list(kind) and is_any_list(wanted):
        check_type(kind.value_type, wanted.value_type)
    elif types.is_map(kind) and types.is_map(wanted):
        check_type(kind.key_type, wanted.key_type)
        check_type(kind.item_type, wanted.item_type)
    else:
        _check_alone(kind, wanted)


def _check_alone(kind: pa.DataType, wanted: pa.DataType) -> None:
    found, asked = _meaning(kind), _meaning(wanted)
    is_number_of_time = found == "number" and asked in _OF_NUMBERS
    if _is_rounded(kind, wanted) or (
        found and asked and found != asked and not is_number_of_time
    ):
        raise ValueError(f"it is {kind}")
    if found == asked == "moment" and (kind.tz is None) != (wanted.tz is None):
        raise ValueError(f"it is {kind}, which is {'not ' if wanted.tz else ''}aware")


def _is_rounded(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Say whether decimals would become fractions, or the other way round."""
    kinds = kind, wanted
    return any(map(pa.types.is_decimal, kinds)) and any(
        map(pa.types.is_floating, kinds)
    )


def check_values(values: Iterable[Any], kind: pa.DataType) -> None:
    """Refuse values of Python of which Arrow would make others for a column of a type.

    Args:
        values: One a record, inner records as dicts.
        kind: The type of the column.

    Raises:
        TypeError: If an inner value is no list where it should be one.
        ValueError: If another one does not fit.

    Example:
        >>> check_values([1, None, 2.0], pa.int64())
        >>> check_values([[1.5]], pa.list_(pa.int64()))
        Traceback (most recent call last):
            ...
        ValueError: 1.5 is not a whole number
    """
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not pa.types.is_nested(kind):
        _check_flat(values, kind)
        return
    known = [value for value in values if value is not None]
    if pa.types.is_struct(kind):
        _check_records([each for each in known if isinstance(each, Mapping)], kind)
    elif pa.types.is_map(kind):
        pairs = [each.items() if isinstance(each, Mapping) else each for each in known]
        flat = list(chain.from_iterable(pairs))
        check_values([key for key, _ in flat], kind.key_type)
        check_values([item for _, item in flat], kind.item_type)
    elif is_any_list(kind):
        for value in known:
            if isinstance(value, str | bytes | bytearray | Mapping):
                raise ValueError(f"{value!r} is not a list")
        check_values(list(chain.from_iterable(known)), kind.value_type)


def _check_records(records: list[Any], kind: pa.DataType) -> None:
    fields = {field.name: field.type for field in kind}
    for record in records:
        for name in record:
            if name not in fields:
                raise ValueError(f"it has no field {name!r}")
    for name, inner in fields.items():
        check_values([record.get(name) for record in records], inner)


def _check_flat(values: Iterable[Any], kind: pa.DataType) -> None:
    asked = _meaning(kind)
    if not asked:
        return
    classes = set(map(type, values))
    for each in classes:
        found = _class_meaning(each)
        if found and found != asked:
            value = next(value for value in values if type(value) is each)
            raise ValueError(f"{value!r} is a {found}")
    if pa.types.is_integer(kind):
        _check_whole(values, classes)
    elif asked == "moment":
        _check_zones(values, kind)
    elif asked == "time of day":
        for value in values:
            if isinstance(value, time) and value.tzinfo is not None:
                raise ValueError(f"{value!r} has a zone, and the column has none")


def _check_whole(values: Iterable[Any], classes: set[type]) -> None:
    broken = {
        each for each in classes if issubclass(each, float | Decimal | np.floating)
    }
    for value in values if broken else ():
        if type(value) in broken and value % 1 != 0:
            # Infinite ones and NaN are not whole, either.
            raise ValueError(f"{value!r} is not a whole number")


def _check_zones(values: Iterable[Any], kind: pa.DataType) -> None:
    aware = kind.tz is not None
    for value in values:
        if isinstance(value, datetime) and (value.utcoffset() is not None) != aware:
            said = "aware" if aware else "naive"
            raise ValueError(f"{value!r} is not {said}, as the column is")


@lru_cache(maxsize=256)
def _meaning(kind: pa.DataType) -> str:
    """Return what values of a type are, empty if it does not matter."""
    found = (name for name, tests in _KINDS.items() if any(is_(kind) for is_ in tests))
    return next(found, "")


@lru_cache(maxsize=1024)
def _class_meaning(kind: type) -> str:
    """Return what objects of a class are, empty if Arrow may say it."""
    return next((name for name, base in _CLASSES if issubclass(kind, base)), "")
