"""The types in which expressions see columns: those that Python's values have."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["cast_plain", "is_any_list", "is_rare_list", "plain_type"]

_DECIMAL_BITS: Final = 128
_LISTS: Final = (
    (pa.types.is_list, pa.list_),
    (pa.types.is_large_list, pa.large_list),
)
_RARE_LISTS: Final = (
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type that a column's values would have as Python objects.

    Integers have 64 bits, floats too, times are in microseconds: so that an expression
    over a column gives what it gives over the rows made from it.

    Args:
        kind: The column's type.

    Returns:
        The type, or None if the rows of such a column have to be asked.

    Example:
        >>> plain_type(pa.int8()), plain_type(pa.float32())
        (DataType(int64), DataType(double))
        >>> plain_type(pa.dictionary(pa.int8(), pa.large_string()))
        DataType(string)
    """
    types = pa.types
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_struct(kind):
        return _plain_struct(kind)
    if types.is_list(kind) or types.is_large_list(kind):
        inner = plain_type(kind.value_type)
        return None if inner is None else pa.list_(inner)
    if types.is_decimal(kind):
        # Narrower ones have few kernels.
        is_wide = kind.bit_width >= _DECIMAL_BITS
        return kind if is_wide else pa.decimal128(kind.precision, kind.scale)
    if types.is_boolean(kind) or types.is_null(kind):
        return kind
    for belongs, plain in (
        (types.is_integer, pa.int64()),
        (types.is_floating, pa.float64()),
        (types.is_string, pa.string()),
        (types.is_large_string, pa.string()),
        (types.is_binary, pa.binary()),
        (types.is_large_binary, pa.binary()),
        (types.is_fixed_size_binary, pa.binary()),
        (types.is_date, pa.date32()),
        (types.is_time, pa.time64("us")),
        (types.is_duration, pa.duration("us")),
    ):
        if belongs(kind):
            return plain
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    return None


def is_rare_list(kind: pa.DataType) -> bool:
    """Say whether a column has lists of one length, or views of lists."""
    return any(is_one(kind) for is_one in _RARE_LISTS)


def is_any_list(kind: pa.DataType) -> bool:
    """Say whether values of a type are lists, however Arrow stores them."""
    return is_rare_list(kind) or any(is_one(kind) for is_one, _ in _LISTS)


def cast_plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column with its plain type: of times, without digits below microseconds.

    Raises:
        ArrowInvalid: If a value does not fit, such as a time beyond 64 bits.

    Example:
        >>> moments = pa.array([1999], pa.timestamp("ns"))
        >>> cast_plain(moments, pa.timestamp("us")).cast(pa.int64()).to_pylist()
        [1]
    """
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    elif is_rare_list(column.type) and pa.types.is_list(kind):
        column = _as_lists(column)
    coarse = _coarse_type(column.type)
    if not coarse.equals(column.type):
        # Only times may lose digits: beside them, integers must not wrap around.
        column = column.cast(coarse, safe=False)
    return column.cast(kind)


def _as_lists(column: pa.Array) -> pa.Array:
    """Return rare lists as common ones. Arrow's cast makes wrong ones of some slices."""
    lengths = pc.list_value_length(column).fill_null(0)
    offsets: np.ndarray = np.zeros(len(column) + 1, np.int32)
    np.cumsum(lengths.to_numpy(), out=offsets[1:])
    return pa.ListArray.from_arrays(
        pa.array(offsets), column.flatten(), mask=column.is_null()
    )


def _coarse_type(kind: pa.DataType) -> pa.DataType:
    """Return a type whose times, also nested ones, are no finer than Python's."""
    types = pa.types
    if types.is_dictionary(kind):
        coarse = _coarse_type(kind.value_type)
        return kind if coarse.equals(kind.value_type) else coarse
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return pa.struct([each.with_type(_coarse_type(each.type)) for each in fields])
    if types.is_map(kind):
        return pa.map_(_coarse_type(kind.key_type), _coarse_type(kind.item_type))
    for is_list, make in _LISTS:
        if is_list(kind):
            return make(kind.value_field.with_type(_coarse_type(kind.value_type)))
    if types.is_date64(kind):
        return pa.date32()
    if getattr(kind, "unit", "") != "ns":
        return kind
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.duration("us") if types.is_duration(kind) else pa.time64("us")


def _plain_struct(kind: pa.DataType) -> pa.DataType | None:
    fields = []
    for index in range(kind.num_fields):
        field = kind.field(index)
        inner = plain_type(field.type)
        if inner is None:
            return None
        fields.append(pa.field(field.name, inner))
    return pa.struct(fields)
