"""Results of functions as a column, where that says exactly what they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.encode import hinted_type

__all__ = ["ResultColumn"]

_TYPES: Final[dict[type, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    np.float64: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    date: pa.date32(),
    time: pa.time64("us"),
    timedelta: pa.duration("us"),
}
_EXACT_MAX: Final = 2**53
_DECIMAL_DIGITS: Final = 38
# Answers of services have few levels; deeper ones are rows.
_DEPTH_MAX: Final = 16


class ResultColumn:
    """Makes columns of results.

    Args:
        hint: What the function says that it returns; Any for nothing.

    Example:
        >>> column = ResultColumn(float)
        >>> column.as_declared([2.5, None, 2])
        [2.5, None, 2.0]
        >>> column.of([2.5, None]).to_pylist(), column.of(["much"]) is None
        ([2.5, None], False)
        >>> column.of([2.5, "much"]) is None
        True
    """

    __slots__ = ("_kind", "_says_float")

    def __init__(self, hint: Any) -> None:
        declared = hinted_type(hint, pa.null())
        self._says_float = pa.types.is_floating(declared)
        # What a column is in which there is nothing: what the one before was.
        self._kind: pa.DataType = declared

    def as_declared(self, values: list[Any]) -> list[Any]:
        """Return results with floats for whole numbers if the function says float.

        Else it would depend on the others in a column what a result is.
        """
        if not self._says_float or int not in set(map(type, values)):
            return values
        return [
            float(value)
            if type(value) is int and -_EXACT_MAX <= value <= _EXACT_MAX
            else value
            for value in values
        ]

    def of(self, values: Sequence[Any]) -> pa.Array | None:
        """Return results as a column, None if reading it would give others.

        They are of one type that Arrow has, or None: integers have 64 bits, texts no
        surrogates, decimals one scale, dicts the same keys in the same order. The same
        holds for what is in lists and dicts.
        """
        kind = _kind_of(values, 0)
        if kind is None:
            return None
        if pa.types.is_null(kind):
            return pa.nulls(len(values), self._kind)
        try:
            array = pa.array(values, kind)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError, ValueError):
            return None
        self._kind = kind
        return array


def _kind_of(values: Sequence[Any], depth: int) -> pa.DataType | None:
    """Return the type of values, null if all are None, None if no column is exact."""
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return pa.null()
    if len(kinds) > 1 or depth > _DEPTH_MAX:
        return None
    (kind,) = kinds
    if kind is list:
        inner = [each for value in values if value is not None for each in value]
        items = _kind_of(inner, depth + 1)
        return None if items is None else pa.list_(items)
    if kind is dict:
        return _struct_of([value for value in values if value is not None], depth)
    if kind is time and any(map(_is_more_than_a_time, values)):
        return None
    return _TYPES.get(kind) or _by_values(values)


def _struct_of(dicts: list[dict[Any, Any]], depth: int) -> pa.DataType | None:
    names = list(dicts[0])
    if not names or set(map(type, names)) != {str}:
        return None
    if any(list(each) != names for each in dicts):
        return None
    fields = []
    for name in names:
        kind = _kind_of([each[name] for each in dicts], depth + 1)
        if kind is None:
            return None
        fields.append((name, kind))
    try:
        return pa.struct(fields)
    except UnicodeEncodeError:
        return None


def _is_more_than_a_time(value: Any) -> bool:
    """Say whether a time has what a column has not: a zone, or the later of two hours."""
    return value is not None and (value.tzinfo is not None or value.fold != 0)


def _by_values(values: Sequence[Any]) -> pa.DataType | None:
    """Return the type of moments or of decimals, None if it is not the same for all.

    A column gives moments back in UTC, or without a zone, and decimals of zero without
    a sign.
    """
    found = [value for value in values if value is not None]
    if type(found[0]) is datetime:
        zones = {None if each.tzinfo is None else str(each.tzinfo) for each in found}
        if zones == {"UTC"}:
            return pa.timestamp("us", "UTC")
        if zones == {None} and not any(each.fold for each in found):
            return pa.timestamp("us")
    elif type(found[0]) is Decimal:
        exponents = {value.as_tuple().exponent for value in found}
        exponent = exponents.pop()
        digits = -exponent if isinstance(exponent, int) else -1
        is_exact = not any(value.is_signed() for value in found if not value)
        if is_exact and not exponents and 0 <= digits <= _DECIMAL_DIGITS:
            return pa.decimal128(_DECIMAL_DIGITS, digits)
    return None
