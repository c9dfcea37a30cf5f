"""Which Spark types can be carried, by which path, and what becomes of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, Literal

from aiomailbox.errors import (
    InvalidArgumentError,
    MissingExtraError,
    UnsupportedColumnError,
)

ReadPath = Literal["arrow", "rows"]

# Types whose values need nothing but what Arrow or Spark's rows give by themselves.
_PLAIN = frozenset({
    "ArrayType", "BinaryType", "BooleanType", "ByteType", "CharType", "DateType",
    "DayTimeIntervalType", "DecimalType", "DoubleType", "FloatType", "IntegerType",
    "LongType", "MapType", "NullType", "ShortType", "StringType", "StructType",
    "TimeType", "TimestampNTZType", "TimestampType", "VarcharType", "VariantType",
    "GeographyType", "GeometryType",
})  # fmt: skip


def check_path(schema: Any, path: ReadPath | None) -> ReadPath:
    """Return the path to read a DataFrame by: Arrow, unless something prevents it.

    Args:
        schema: The DataFrame's schema.
        path: The path that the user insists on, or None.

    Raises:
        UnsupportedColumnError: If a column cannot be carried; names it.
        MissingExtraError: If the user insists on Arrow, and pandas, which Spark needs
            for it, is missing.
    """
    if path not in {None, "arrow", "rows"}:
        raise InvalidArgumentError(
            "path", f"{path!r} is not a path", 'Use "arrow", "rows" or None.'
        )
    can_pack = importlib.util.find_spec("pandas") is not None
    if path == "arrow" and not can_pack:
        raise MissingExtraError('SparkSource(path="arrow")', "spark")
    chosen = path or ("arrow" if can_pack and not _has_user_types(schema) else "rows")
    for where, kind in nested_types(schema):
        _check_type(".".join(where), kind, chosen)
    return chosen


def nested_types(schema: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Give path and type of every column, and of every part of a nested one."""
    for field in schema.fields:
        yield from _parts((field.name,), field.dataType)


def parts_of_type(kind: Any) -> Iterator[Any]:
    """Give a type, and those of all its parts."""
    return (part for _, part in _parts((), kind))


def special_columns(
    schema: Any,
) -> dict[tuple[str, ...], Callable[[list[Any]], list[Any]]]:
    """Return what to make of the columns that Arrow carries as structs of their parts.

    Variants become `VariantVal`, geometries and geographies what ``collect()`` gives.
    """
    from pyspark.sql import types

    special: dict[tuple[str, ...], Callable[[list[Any]], list[Any]]] = {}
    for where, kind in nested_types(schema):
        name = type(kind).__name__
        if name == "VariantType":
            special[where] = _rebuild(types.VariantVal, ("value", "metadata"))
        elif name in {"GeometryType", "GeographyType"}:
            value_type = getattr(types, name.removesuffix("Type"))
            special[where] = _rebuild(value_type, ("wkb", "srid"))
    return special


def _parts(where: tuple[str, ...], kind: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield where, kind
    name = type(kind).__name__
    if name == "ArrayType":
        yield from _parts((*where, "element"), kind.elementType)
    elif name == "MapType":
        yield from _parts((*where, "key"), kind.keyType)
        yield from _parts((*where, "value"), kind.valueType)
    elif name == "StructType":
        for field in kind.fields:
            yield from _parts((*where, field.name), field.dataType)


def _has_user_types(schema: Any) -> bool:
    return any(is_user_type(kind) for _, kind in nested_types(schema))


def is_user_type(kind: Any) -> bool:
    """Say whether a type is a user-defined one."""
    from pyspark.sql.types import UserDefinedType

    return isinstance(kind, UserDefinedType)


def _check_type(where: str, kind: Any, path: ReadPath) -> None:
    name = type(kind).__name__
    if name in _PLAIN:
        return
    remedy = "Cast it to string, or drop it."
    if name == "YearMonthIntervalType":
        remedy = "Spark cannot give it to Python. " + remedy
    elif name == "CalendarIntervalType":
        if path == "arrow":
            return
        remedy = 'Only path="arrow" can carry it.'
    elif is_user_type(kind):
        if path == "rows":
            return
        remedy = 'Only path="rows" can carry a user-defined type.'
    raise UnsupportedColumnError(
        f"column {where!r} of type {kind.simpleString()} cannot be carried. {remedy}"
    )


def _rebuild(
    value_type: Callable[..., Any], keys: tuple[str, str]
) -> Callable[[list[Any]], list[Any]]:
    first, second = keys

    def rebuild(values: list[Any]) -> list[Any]:
        return [
            None if value is None else value_type(value[first], value[second])
            for value in values
        ]

    return rebuild
