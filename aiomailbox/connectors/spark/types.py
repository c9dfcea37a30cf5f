"""Spark's types: which can be carried, and what they are in Arrow."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NoReturn

import msgspec
import pyarrow as pa

from aiomailbox.columnar.async_column import Declared
from aiomailbox.columnar.declared import (
    NoColumnTypeError,
    declared_type,
    known_schema,
    type_of_hint,
)
from aiomailbox.columnar.encode import canonical_in_micros, in_micros
from aiomailbox.columnar.forms import (
    check_unique,
    field_hints,
    is_record_type,
    is_typed_dict,
)
from aiomailbox.columnar.types import canonical_type, is_rare_list, meaning
from aiomailbox.connectors.parquet import spark_type
from aiomailbox.connectors.spark.jobs import explaining_loss
from aiomailbox.errors import (
    InvalidArgumentError,
    MissingExtraError,
    UnsupportedColumnError,
    WrongTypeError,
)
from aiomailbox.graph.transformation import Origin, known_fields
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.stateless.fused import StageKind

# Types that Arrow has batches of; those that users define are made of these.
_CARRIED = frozenset({
    "ArrayType", "BinaryType", "BooleanType", "ByteType", "CalendarIntervalType",
    "CharType", "DateType",
    "DayTimeIntervalType", "DecimalType", "DoubleType", "FloatType", "IntegerType",
    "LongType", "MapType", "NullType", "ShortType", "StringType", "StructType",
    "TimeType", "TimestampNTZType", "TimestampType", "VarcharType", "VariantType",
    "GeographyType", "GeometryType",
})  # fmt: skip


def check_types(schema: Any) -> None:
    """Check that Spark can give a DataFrame's columns to Python as Arrow batches."""
    if importlib.util.find_spec("pandas") is None:
        raise MissingExtraError("SparkSource", "spark")
    for where, kind in nested_types(schema):
        if type(kind).__name__ not in _CARRIED and not is_user_type(kind):
            remedy = "Cast it to string, or drop it."
            if type(kind).__name__ == "YearMonthIntervalType":
                remedy = "Spark cannot give it to Python. " + remedy
            raise UnsupportedColumnError(
                f"column {'.'.join(where)!r} of type {kind.simpleString()} cannot be "
                f"carried. {remedy}"
            )


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
    """Return what to make of the columns that Arrow carries as their parts.

    Variants become `VariantVal`, geometries, geographies and types of users what
    ``collect()`` gives.
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
        elif is_user_type(kind):
            special[where] = _as_user_type(kind)
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


def is_user_type(kind: Any) -> bool:
    """Say whether a type is a user-defined one."""
    from pyspark.sql.types import UserDefinedType

    return isinstance(kind, UserDefinedType)


def _as_user_type(kind: Any) -> Callable[[list[Any]], list[Any]]:
    names = getattr(kind.sqlType(), "names", None)

    def rebuild(values: list[Any]) -> list[Any]:
        # Spark gives the parts of one as a row.
        return [
            None
            if value is None
            else kind.deserialize(
                value if names is None else tuple(value[name] for name in names)
            )
            for value in values
        ]

    return rebuild


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


# Spark's types and Arrow's.


# In a schema as JSON: Spark's own functions for Arrow do not know them.
_TEXTS_OF_A_LENGTH: Final = re.compile(
    r'("(?:type|elementType|keyType|valueType)":)"(?:var)?char\(\d+\)"'
)
# Of decimals in Spark.
_DIGITS_MAX: Final = 38


def spark_schema(schema: pa.Schema) -> Any:
    """Return the Spark schema of an Arrow schema.

    Spark itself would take times without a zone for TIMESTAMP.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        return StructType.fromJson(spark_type(pa.struct(list(schema)), _other_type))
    except (PySparkException, ValueError) as error:
        # An older Spark has fewer types.
        raise UnsupportedColumnError(
            f"this Spark has no type for a column of {schema}: {error}"
        ) from error


def arrow_columns(schema: Any) -> pa.Schema:
    """Return a Spark schema as Arrow's, times in UTC; texts of a length are texts."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    told = schema.json()
    plain = _TEXTS_OF_A_LENGTH.sub(r'\1"string"', told)
    if plain != told:
        schema = StructType.fromJson(msgspec.json.decode(plain))
    return to_arrow_schema(schema, timezone="UTC")


def column_types(schema: Any) -> dict[str, pa.DataType]:
    """Return the Arrow types of a Spark schema's columns, of those that have one."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    found: dict[str, pa.DataType] = {}
    for field in schema.fields:
        # Values of user-defined types are objects.
        if any(map(is_user_type, parts_of_type(field.dataType))):
            continue
        # There are types that an older Spark does not give to Arrow, or no Spark; and
        # Arrow has no nulls that may not be null, as of an empty array().
        with contextlib.suppress(PySparkException, ValueError):
            column = arrow_columns(StructType([field])).field(0)
            found[field.name] = in_micros(column.type)
    return found


def kind_of_spark(kind: pa.DataType) -> pa.DataType:
    """Return a type that Spark has for the values of a column.

    Without one, as for unsigned integers, it is that of the values in Python.
    """
    kind = canonical_in_micros(kind)
    if is_rare_list(kind):
        return pa.list_(kind_of_spark(kind.value_type))
    if pa.types.is_decimal(kind) and kind.precision > _DIGITS_MAX >= kind.scale:
        return pa.decimal128(_DIGITS_MAX, kind.scale)
    try:
        spark_type(kind, _other_type)
    except UnsupportedColumnError:
        return canonical_type(kind) or kind
    return kind


def _other_type(kind: pa.DataType, where: str) -> Any:
    from pyspark.sql.pandas.types import from_arrow_type

    if pa.types.is_struct(kind):
        marks = kind.field(kind.num_fields - 1).metadata
        is_place = b"geometry" in marks or b"geography" in marks
        return from_arrow_type(kind).jsonValue() if is_place else None
    raise UnsupportedColumnError(
        f"column {where!r}: Spark has no type for {kind}. Convert it before."
    )


# The schema of an output: what the user says, or what is known of the records.


def output_schema(
    given: Any, origins: list[Origin], session: Any, parameter: str = "schema"
) -> Any:
    """Return the Spark schema of an output."""
    declared = declared_class(origins)
    if given is None:
        given = declared or known_schema(known_fields(origins))
    if given is None:
        given = _shared(map(_returned_by, origins))
    if given is None:
        raise InvalidArgumentError(
            parameter,
            "the columns of the records are unknown: a function has no schema",
            'Give e.g. schema="city string, visits long", or a record class; or let the '
            "last step say one: .map(function, output_type=Visit), or map or map_async "
            "with a function that is annotated to return it.",
        )
    schema = as_spark_schema(given, session, parameter)
    if declared is not None:
        _check_fits(schema, declared, parameter)
    return schema


def as_spark_schema(given: Any, session: Any, parameter: str = "schema") -> Any:
    """Return a schema that a user gives as Spark's; blocks."""
    found = _as_spark_schema(given, session, parameter)
    check_unique(tuple(found.fieldNames()), "")
    return found


def _as_spark_schema(given: Any, session: Any, parameter: str) -> Any:
    from pyspark.sql.types import StructType

    if isinstance(given, StructType):
        return given
    if isinstance(given, pa.Schema):
        return spark_schema(given)
    if isinstance(given, str):
        with explaining_loss(session, "a schema was read"):
            return session.createDataFrame([], given).schema
    if not is_record_type(given) and not is_typed_dict(given):
        raise WrongTypeError(
            parameter,
            f"{given!r} is not a schema",
            "Use a StructType, text such as 'city string', or a record class.",
        )
    try:
        return spark_schema(pa.schema(list(type_of_hint(given))))
    except NoColumnTypeError as error:
        raise WrongTypeError(
            parameter,
            f"{error.where} is a {error.hint!r}, which has no Spark type",
            "Give the schema as text or a StructType.",
        ) from None


def declared_class(origins: list[Origin]) -> type | None:
    """Return the record class that the makers of a stream all declare, if they do."""
    return _shared(map(_declared_by, origins))


def _shared(classes: Iterable[type | None]) -> type | None:
    found = {*classes}
    return found.pop() if len(found) == 1 else None


def _returned_by(origin: Origin) -> type | None:
    """Return the record class that the function of a `map` or `map_async` returns."""
    factory = origin.transformation.factory
    if origin.tag is not None or not isinstance(factory, functools.partial):
        return None
    match factory.args:
        case (kind, function) if kind is StageKind.MAP or kind is AsyncMapOperator:
            batched = factory.keywords.get("batch") is not None
            found = Declared.by(function, batched=batched).returned
            return found if is_record_type(found) or is_typed_dict(found) else None
    return None


def _declared_by(origin: Origin) -> type | None:
    factory = origin.transformation.factory
    if origin.tag is not None or not isinstance(factory, functools.partial):
        return None
    for argument in (*factory.args, *factory.keywords.values()):
        kind = getattr(argument, "record_type", None)
        if is_record_type(kind):
            return kind
    return None


def _check_fits(schema: Any, declared: type, parameter: str) -> None:
    """Check that records of a class have the columns of a schema, and no others."""

    def refuse(problem: str) -> NoReturn:
        raise InvalidArgumentError(
            parameter,
            problem,
            "Leave the schema out, or let the last step make records of its columns.",
        )

    columns, hints = set(schema.fieldNames()), field_hints(declared)
    name = declared.__qualname__
    if columns != set(hints):
        refuse(
            f"it has the columns {sorted(columns)}, and the records are declared to be "
            f"{name}, with the fields {sorted(hints)}"
        )
    for column, kind in column_types(schema).items():
        found = declared_type(hints[column])
        if found is not None and meaning(found) != meaning(kind):
            said = schema[column].dataType.simpleString()
            refuse(
                f"it has the column {column!r} of type {said}, and the records are "
                f"declared to be {name}, with {column}: {_text(hints[column])}"
            )


def _text(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)
