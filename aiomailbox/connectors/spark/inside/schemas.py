"""What schema an output has: what the user says, or what its record class declares."""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa

from aiomailbox.columnar.encode import NoColumnTypeError, type_of_hint
from aiomailbox.columnar.forms import field_hints, is_record_type
from aiomailbox.connectors.spark.jobs import explaining_loss
from aiomailbox.connectors.spark.result import spark_schema
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.graph.transformation import Origin


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
    if is_record_type(given):
        return _of_class(given, parameter)
    raise WrongTypeError(
        parameter,
        f"{given!r} is not a schema",
        "Use a StructType, text such as 'city string', or a record class.",
    )


def _check_fits(schema: Any, declared: type, parameter: str) -> None:
    """Check that records of a class have the columns of a schema, and no others."""
    columns, fields = set(schema.fieldNames()), set(field_hints(declared))
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
        if is_record_type(kind):
            return kind
    return None


def _of_class(kind: type, parameter: str) -> Any:
    try:
        return spark_schema(pa.schema(list(type_of_hint(kind))))
    except NoColumnTypeError as error:
        raise WrongTypeError(
            parameter,
            f"{error.where} is a {error.hint!r}, which has no Spark type",
            "Give the schema as text or a StructType.",
        ) from None
