"""Values that are no numbers but have an order, as arrays that numpy can compare.

Moments, dates and durations are int64 there, in the units that Python has; texts and bytes
are objects, which compare as Python compares them.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.plain import cast_plain, plain_type
from aiomailbox.columnar.rows_needed import RowsNeededError

__all__ = ["LARGEST", "SMALLEST", "as_kind", "loaded_values", "ordered_values"]


class _Beyond:
    """Is larger, or smaller, than all values."""

    __slots__ = ("_is_largest",)

    def __init__(self, *, is_largest: bool) -> None:
        self._is_largest = is_largest

    def __le__(self, other: object) -> bool:
        return not self._is_largest

    def __lt__(self, other: object) -> bool:
        return not self._is_largest

    def __ge__(self, other: object) -> bool:
        return self._is_largest

    def __gt__(self, other: object) -> bool:
        return self._is_largest


LARGEST: Final = _Beyond(is_largest=True)
SMALLEST: Final = _Beyond(is_largest=False)

_KINDS: Final[dict[type, pa.DataType]] = {
    str: pa.string(),
    bytes: pa.binary(),
    dt.date: pa.date32(),
    dt.timedelta: pa.duration("us"),
    dt.time: pa.time64("us"),
}


def ordered_values(column: pa.Array) -> tuple[np.ndarray, pa.DataType] | None:
    """Return a column as an array, with the type of the values; None if it cannot be.

    Where there is no value there is anything.

    Example:
        >>> ordered_values(pa.array(["b", "a"]))
        (array(['b', 'a'], dtype=object), DataType(string))
        >>> ordered_values(pa.array([7, None], pa.timestamp("s", "UTC")))[0].tolist()
        [7000000, 0]
        >>> ordered_values(pa.array([[1]])) is None
        True
    """
    kind = plain_type(column.type)
    if kind is None or kind not in _ORDERED:
        return None
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    numbers: np.ndarray
    if kind in _OBJECTS:
        numbers = column.to_numpy(zero_copy_only=False)
        return numbers, kind
    try:
        plain = cast_plain(column, kind)
    except pa.ArrowInvalid:
        # Rows say which of them Python cannot express.
        return None
    plain = plain.view(pa.int32() if pa.types.is_date(kind) else pa.int64())
    numbers = plain.cast(pa.int64()).fill_null(0).to_numpy()
    return numbers, kind


def as_kind(numbers: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column of int64 as one of what the numbers stand for."""
    if pa.types.is_date(kind):
        numbers = numbers.cast(pa.int32())
    return numbers.view(kind)


def loaded_values(values: list[Any]) -> tuple[np.ndarray, pa.DataType]:
    """Return values as `ordered_values` has them.

    Raises:
        RowsNeededError: If they are of several types, or one that has no such form.
    """
    types = set(map(type, values))
    kind = _KINDS.get(next(iter(types)))
    if types == {dt.datetime}:
        zones = {value.tzinfo for value in values}
        if zones <= {dt.UTC} or zones == {None}:
            kind = pa.timestamp("us", None if None in zones else "UTC")
    if types == {dt.time} and any(value.tzinfo is not None for value in values):
        kind = None
    if kind is None or len(types) > 1:
        raise RowsNeededError(_NO_ARRAY)
    try:
        column = pa.array(values, kind)
    except (pa.ArrowException, OverflowError) as error:
        # Spans of more than 64 bits.
        raise RowsNeededError(_NO_ARRAY) from error
    found = ordered_values(column)
    assert found is not None, "all these types have an order"
    return found


_NO_ARRAY: Final = "the state is not an array of values of one type"


_OBJECTS: Final = frozenset({pa.string(), pa.binary()})
_ORDERED: Final = _OBJECTS | {
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    *_KINDS.values(),
}
