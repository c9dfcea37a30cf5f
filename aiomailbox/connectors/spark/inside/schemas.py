"""What schema an output has: what the user says, or what its record class declares."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa

from aiomailbox.connectors.spark.jobs import explaining_loss
from aiomailbox.connectors.spark.result import spark_schema
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.graph.transformation import Origin

_SIMPLE: Final[dict[Any, str]] = {
    bool: "BooleanType",
    bytes: "BinaryType",
    date: "DateType",
    datetime: "TimestampType",
    float: "DoubleType",
    int: "LongType",
    str: "StringType",
    timedelta: "DayTimeIntervalType",
}


def output_schema(
    given: Any, origins: list[Origin], session: Any, parameter: str = "schema"
) -> Any:
    """Return the Spark schema of an output.

    Args:
        given: A StructType, text, an Arrow schema, or a record class; None for what is
            declared of the stream.
        origins: Where the records come from.
        session: Reads text.
        parameter: The argument's name, for messages.

    Raises:
        InvalidArgumentError: If nothing says it, or the record class that is declared
            has other fields.
        WrongTypeError: If it is none of these, or a field's type has no Spark type.
    """
    declared = declared_class(origins)
    given = declared if given is None else given
    schema = _schema(given, session, parameter)
    if declared is not None:
        _check_fits(schema, declared, parameter)
    return schema


def _schema(given: Any, session: Any, parameter: str) -> Any:
    from pyspark.sql.types import StructType

    if given is None:
        raise InvalidArgumentError(
            parameter,
            "nothing says which columns the records have: a function has no schema",
            'Give e.g. schema="city string, visits long", a record class, or declare '
            "one: .map(function, output_type=Visit).",
        )
    if isinstance(given, StructType):
        return given
    if isinstance(given, pa.Schema):
        return spark_schema(given)
    if isinstance(given, str):
        with explaining_loss(session, "a schema was read"):
            return session.createDataFrame([], given).schema
    if isinstance(given, type) and _is_record(given):
        return _of_class(given, parameter)
    raise WrongTypeError(
        parameter,
        f"{given!r} is not a schema",
        "Use a StructType, text such as 'city string', or a record class.",
    )


def _check_fits(schema: Any, declared: type, parameter: str) -> None:
    """Check that records of a class have the columns of a schema, and no others."""
    columns, fields = set(schema.fieldNames()), set(_field_names(declared))
    if columns == fields:
        return
    raise InvalidArgumentError(
        parameter,
        f"it has the columns {sorted(columns)}, and the records are declared to be "
        f"{declared.__qualname__}, with the fields {sorted(fields)}",
        "Leave the schema out, or let the last step make records of its columns.",
    )


def declared_class(origins: list[Origin]) -> type | None:
    """Return the record class that the makers of a stream all declare, if they do."""
    found = {_declared_by(origin) for origin in origins}
    return found.pop() if len(found) == 1 else None


def arrow_columns(schema: Any) -> pa.Schema:
    """Return a Spark schema as Arrow's, times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _declared_by(origin: Origin) -> type | None:
    factory = origin.transformation.factory
    if origin.tag is not None or not isinstance(factory, functools.partial):
        return None
    for argument in (*factory.args, *factory.keywords.values()):
        kind = getattr(argument, "record_type", None)
        if isinstance(kind, type) and _is_record(kind):
            return kind
    return None


def _is_record(kind: type) -> bool:
    return (
        dataclasses.is_dataclass(kind)
        or issubclass(kind, msgspec.Struct)
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )


def _of_class(kind: type, parameter: str) -> Any:
    from pyspark.sql.types import StructField, StructType

    hints = typing.get_type_hints(kind)
    fields = []
    for name in _field_names(kind):
        hint, nullable = _without_none(hints[name])
        where = f"{kind.__qualname__}.{name}"
        fields.append(StructField(name, _type_of(hint, where, parameter), nullable))
    return StructType(fields)


def _field_names(kind: type) -> list[str]:
    hints = typing.get_type_hints(kind)
    return [name for name in inspect.signature(kind).parameters if name in hints]


def _type_of(hint: Any, where: str, parameter: str) -> Any:
    from pyspark.sql import types as spark

    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {list, set, frozenset} and len(arguments) == 1:
        item, nullable = _without_none(arguments[0])
        return spark.ArrayType(_type_of(item, f"{where}[]", parameter), nullable)
    if origin is dict:
        item, nullable = _without_none(arguments[1])
        key = _type_of(arguments[0], f"{where} key", parameter)
        return spark.MapType(key, _type_of(item, f"{where} value", parameter), nullable)
    if hint is Decimal:
        return spark.DecimalType(38, 18)
    if isinstance(hint, type) and hint in _SIMPLE:
        return getattr(spark, _SIMPLE[hint])()
    if isinstance(hint, type) and _is_record(hint):
        return _of_class(hint, parameter)
    raise WrongTypeError(
        parameter,
        f"{where} is a {hint!r}, which has no Spark type",
        "Give the schema as text or a StructType.",
    )


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        if len(kinds) == 1:
            return kinds[0], True
    return hint, False
