"""The types of columns before there is a value, from annotations and from sources.

A source that has columns knows their types, and an annotation names one. What is known
goes with a field (`RecordFields.types`) as long as nobody changes it, to whatever makes
columns of records again: a sink, a DataFrame, a stage in Spark.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import UnionType
from typing import Any, Final, NewType
from uuid import UUID

import pyarrow as pa

from aiomailbox.columnar.forms import (
    OTHER_LISTS,
    class_hints,
    field_hints,
    is_record_type,
    is_typed_dict,
)
from aiomailbox.columnar.types import is_any_list, unencoded_type
from aiomailbox.errors import UnsupportedColumnError
from aiomailbox.operators.core.fields import RecordFields
from aiomailbox.records.record_classes import SPARK_TYPES

DECIMAL_DIGITS: Final = 38


# Answers of services, and records, have few levels; deeper ones are rows.
DEPTH_MAX: Final = 16


# What an annotation says about a column.
_TYPES: Final[dict[Any, pa.DataType]] = {
    bool: pa.bool_(),
    bytes: pa.binary(),
    date: pa.date32(),
    datetime: pa.timestamp("us", "UTC"),
    # As Spark takes decimals of Python that say nothing more.
    Decimal: pa.decimal128(DECIMAL_DIGITS, 18),
    float: pa.float64(),
    int: pa.int64(),
    str: pa.string(),
    time: pa.time64("us"),
    timedelta: pa.duration("us"),
    # As Spark has it, which cannot read Parquet's own.
    UUID: pa.string(),
}


def known_types(fields: RecordFields | None) -> dict[str, pa.DataType]:
    """Return the types of the fields of records, as far as they are known.

    Example:
        >>> fields = RecordFields(
        ...     ("n", "who"), types={"n": pa.int8(), "who": str | None}
        ... )
        >>> known_types(fields)
        {'n': DataType(int8), 'who': DataType(string)}
    """
    if fields is None:
        return {}
    found = {}
    for name in fields.names:
        kind = fields.types.get(name)
        if kind is not None and not isinstance(kind, pa.DataType):
            kind = declared_type(kind)
        if kind is not None:
            found[name] = kind
    return found


def known_schema(fields: RecordFields | None) -> pa.Schema | None:
    """Return the schema of records, None if the type of a field is not known."""
    kinds = known_types(fields)
    if fields is None or not fields.names or len(kinds) < len(fields.names):
        return None
    return pa.schema([(name, kinds[name]) for name in fields.names])


def check_annotations(
    record_type: type, schema: Mapping[str, pa.DataType], where: str = ""
) -> None:
    """Refuse a class of records whose annotations say other values than columns have.

    What a checker of types would accept is accepted: an ``int`` where a ``float`` was
    annotated, and whatever has no annotation that a type of columns is known for.

    Args:
        record_type: The class.
        schema: The types of the columns, by name.
        where: The column that has the records inside.

    Raises:
        UnsupportedColumnError: If one does; names the column and the annotation.

    Example:
        >>> from typing import NamedTuple
        >>> class Visit(NamedTuple):
        ...     id: str
        >>> check_annotations(Visit, {"id": pa.int64()})
        Traceback (most recent call last):
            ...
        aiomailbox.errors.UnsupportedColumnError: column 'id' of type int64 has values \
of class int, and Visit.id is annotated as str. Cast the column, or annotate it as int.
    """
    for name, hint in class_hints(record_type).items():
        if name in schema:
            path = f"{where}.{name}" if where else name
            owner = f"{record_type.__qualname__}.{name}"
            _check_hint(hint, schema[name], path, owner, 0)


def plain_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the types of a file's or a table's columns, as `check_annotations` takes them."""
    return {field.name: unencoded_type(field.type) for field in schema}


class NullCheck:
    """Refuses NULL where a class of records leaves no room for None.

    Args:
        record_type: The class.
    """

    def __init__(self, record_type: type) -> None:
        self._owner = record_type.__qualname__
        self._hints = {
            name: hint
            for name, hint in class_hints(record_type).items()
            if not _may_be_none(hint)
        }

    def check(self, batch: pa.RecordBatch, first: int, of: str = "") -> None:
        """Check a batch, whose first row has this number; ``of`` says of what.

        Raises:
            UnsupportedColumnError: If there is such a NULL; names column and row.
        """
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if not column.null_count or name not in self._hints:
                continue
            row = first + column.is_null().to_pylist().index(True)
            hint = self._hints[name]
            shown = hint.__name__ if isinstance(hint, type) else str(hint)
            raise UnsupportedColumnError(
                f"column {name!r} is NULL in row {row}{of}, and {self._owner}.{name} is "
                f"annotated as {shown}. Annotate it as {shown} | None, or fill the column."
            )


def _may_be_none(hint: Any) -> bool:
    """Say whether an annotation leaves room for None, or says nothing that is known."""
    while isinstance(hint, NewType):
        hint = hint.__supertype__
    origin = typing.get_origin(hint)
    if origin in {typing.Union, UnionType}:
        return any(map(_may_be_none, typing.get_args(hint)))
    plain = origin or hint
    # In Python 3.11 Any is a class; of a protocol only None itself can tell.
    return (
        not isinstance(plain, type)
        or plain in {Any, object, type(None)}
        or getattr(plain, "_is_protocol", False)
    )


def _check_hint(
    hint: Any, kind: pa.DataType, where: str, owner: str, depth: int
) -> None:
    hint, _ = without_none(hint)
    while isinstance(hint, NewType):
        hint = hint.__supertype__
    arguments, origin = typing.get_args(hint), typing.get_origin(hint)
    if depth > DEPTH_MAX or _is_special(kind):
        return
    is_list = origin is list or (origin in OTHER_LISTS and not depth)
    if is_any_list(kind) and is_list:
        element = arguments[0] if arguments else Any
        _check_hint(element, kind.value_type, f"{where}.element", owner, depth + 1)
    elif pa.types.is_map(kind) and origin is dict:
        _check_hint(arguments[0], kind.key_type, f"{where}.key", owner, depth + 1)
        _check_hint(arguments[1], kind.item_type, f"{where}.value", owner, depth + 1)
    elif pa.types.is_struct(kind) and is_record_type(hint):
        inner = {field.name: field.type for field in kind}
        check_annotations(hint, inner, where)
    else:
        plain = origin or hint
        found = _class_of(kind)
        # In Python 3.11 Any is a class.
        is_class = isinstance(plain, type) and plain is not Any
        if found is None or not is_class or is_typed_dict(plain):
            return
        if not _is_of(found, plain):
            raise UnsupportedColumnError(
                f"column {where!r} of type {kind} has values of class "
                f"{found.__name__}, and {owner} is annotated as {plain.__name__}. Cast "
                f"the column, or annotate it as {found.__name__}."
            )


def _is_of(found: type, plain: type) -> bool:
    """Say whether values of a class are what an annotation says."""
    if is_record_type(plain):
        return found is tuple
    if plain is float:
        return found in {int, float}
    try:
        return issubclass(found, plain)
    except TypeError:
        # A protocol of attributes, which only values have.
        return True


def _class_of(kind: pa.DataType) -> type | None:
    """Return the class of a column's values in Python; None if that is not one."""
    types = pa.types
    for belongs, found in (
        (types.is_boolean, bool),
        (types.is_integer, int),
        (types.is_floating, float),
        (types.is_decimal, Decimal),
        (types.is_string, str),
        (types.is_large_string, str),
        (types.is_binary, bytes),
        (types.is_large_binary, bytes),
        (types.is_date, date),
        (types.is_timestamp, datetime),
        (types.is_time, time),
        (types.is_duration, timedelta),
        (types.is_map, dict),
        (is_any_list, list),
    ):
        if belongs(kind):
            return found
    # Of a struct, a record: any class may be meant but those of plain values.
    return tuple if types.is_struct(kind) else None


def hinted_type(hint: Any, otherwise: pa.DataType) -> pa.DataType:
    """Return the type of a column that an annotation such as ``float | None`` names."""
    found = declared_type(hint)
    return otherwise if found is None or pa.types.is_nested(found) else found


def declared_type(hint: Any) -> pa.DataType | None:
    """Return the type of a column whose values have an annotation; None if none has.

    Example:
        >>> declared_type(dict[str, list[float]])
        MapType(map<string, list<item: double>>)
    """
    try:
        return _Hints(says_null=False).type_of(hint, "", 0)
    except NoColumnTypeError:
        return None


def type_of_hint(hint: Any) -> pa.DataType:
    """Return the type of a column whose values have an annotation.

    Args:
        hint: The annotation; a record class becomes a struct of its fields, which may be
            null where the annotation says so.

    Raises:
        NoColumnTypeError: If there is none for it, or for a part of it; names the part.
    """
    return _Hints(says_null=True).type_of(hint, "", 0)


@dataclass(frozen=True, slots=True)
class _Hints:
    """Reads annotations.

    Attributes:
        says_null: Whether only what may be None is nullable, or everything.
    """

    says_null: bool

    def type_of(self, hint: Any, where: str, depth: int) -> pa.DataType:
        hint, _ = without_none(hint)
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if depth > DEPTH_MAX:
            # A class whose fields are of the class itself has no end.
            raise NoColumnTypeError(where, hint)
        if origin in {list, set, frozenset} and len(arguments) == 1:
            return pa.list_(self.field("item", arguments[0], f"{where}[]", depth))
        if origin is dict:
            key = self.type_of(arguments[0], f"{where} key", depth + 1)
            item = self.field("value", arguments[1], f"{where} value", depth)
            return pa.map_(key, item)
        if is_record_type(hint) or is_typed_dict(hint):
            within = where or hint.__qualname__
            return pa.struct(
                [
                    self.field(name, each, f"{within}.{name}", depth)
                    for name, each in field_hints(hint).items()
                ]
            )
        found = _TYPES.get(hint) if isinstance(hint, type) else None
        if found is None:
            raise NoColumnTypeError(where, hint)
        return found

    def field(self, name: str, hint: Any, where: str, depth: int) -> pa.Field:
        is_nullable = not self.says_null or without_none(hint)[1]
        return pa.field(name, self.type_of(hint, where, depth + 1), is_nullable)


class NoColumnTypeError(Exception):
    """There is no type of columns for an annotation.

    Args:
        where: The field.
        hint: Its annotation.
    """

    def __init__(self, where: str, hint: Any) -> None:
        super().__init__(where, hint)
        self.where: str = where
        self.hint: Any = hint


def without_none(hint: Any) -> tuple[Any, bool]:
    """Return an annotation without ``| None``, and whether it had that."""
    if typing.get_origin(hint) in {typing.Union, UnionType}:
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        if len(kinds) == 1:
            return kinds[0], True
    return hint, False


# Values of Spark that are structs of their parts in Arrow, and UUIDs, which are texts.


def type_of_special(value: Any) -> pa.DataType | None:
    """Return the type of a value of which Arrow's own is not Spark's; else None."""
    if type(value) is UUID:
        return _TYPES[UUID]
    if type(value).__module__ != SPARK_TYPES:
        return None
    name = type(value).__name__
    if name == "VariantVal":
        mark = {"variant": "true"}
        return pa.struct(
            [
                pa.field("value", pa.binary(), nullable=False),
                pa.field("metadata", pa.binary(), nullable=False, metadata=mark),
            ]
        )
    if name not in {"Geometry", "Geography"}:
        return None
    mark = {name.lower(): "true", "srid": str(value.srid)}
    return pa.struct(
        [
            pa.field("srid", pa.int32(), nullable=False),
            pa.field("wkb", pa.binary(), nullable=False, metadata=mark),
        ]
    )


def plain_special(value: Any, kind: pa.DataType) -> Any:
    """Return a value with the parts of Spark's classes, and texts of UUIDs, in it.

    It is the same object if there is nothing of these inside.
    """
    if value is None or not (pa.types.is_nested(kind) or type(value) is UUID):
        return value
    if type(value) is UUID:
        return str(value) if pa.types.is_string(kind) else value
    if pa.types.is_struct(kind):
        kinds = {field.name: field.type for field in kind}
        if type(value).__module__ == SPARK_TYPES and hasattr(value, next(iter(kinds))):
            return {name: getattr(value, name) for name in kinds}
        if not isinstance(value, Mapping):
            return value
        return {
            name: plain_special(each, kinds[name]) if name in kinds else each
            for name, each in value.items()
        }
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [
            (plain_special(key, kind.key_type), plain_special(item, kind.item_type))
            for key, item in pairs
        ]
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_special(each, kind.value_type) for each in value]
    return value


def _is_special(kind: pa.DataType) -> bool:
    """Say whether a type is of a struct that is one value of Spark."""
    if not pa.types.is_struct(kind) or kind.num_fields != 2:
        return False
    marks = kind.field(1).metadata or {}
    return not {b"variant", b"geometry", b"geography"}.isdisjoint(marks)
