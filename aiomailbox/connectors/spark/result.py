"""Results as a Spark DataFrame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from aiomailbox.columnar.encode import BatchMaker, plain_in_micros
from aiomailbox.columnar.types import is_rare_list, plain_type
from aiomailbox.connectors.spark.frame_checks import check_session
from aiomailbox.connectors.spark.jobs import explaining_loss
from aiomailbox.errors import InvalidArgumentError, UnsupportedColumnError
from aiomailbox.records.run import ListRun
from aiomailbox.threads import run_in_thread


async def dataframe_from_records(
    spark: Any, records: Iterable[Any], *, schema: Any = None
) -> Any:
    """Return a Spark DataFrame of records that this process holds.

    An aware datetime becomes a TIMESTAMP, a naive one a TIMESTAMP_NTZ.

    Args:
        spark: The session.
        records: NamedTuples, dicts, dataclasses, Structs, Rows, or Arrow batches.
        schema: The DataFrame's schema, as a StructType or as text; None takes that of
            the records.

    Raises:
        WrongTypeError: If ``spark`` is no session.
        InvalidArgumentError: If it was stopped, or there is neither a schema nor a
            record.
        RecordTypeError: If the records are not of one form.
        UnsupportedColumnError: If Spark has no type for a column; names it.
        SparkJobError: If Spark's Java process has ended.
    """
    check_session(spark)
    values = list(records)
    if not values and schema is None:
        raise InvalidArgumentError(
            "schema", "there are no records to take it from", "Give schema=."
        )
    with explaining_loss(spark, "a DataFrame was made"):
        return await run_in_thread(_create, spark, values, schema)


def _create(spark: Any, values: list[Any], schema: Any) -> Any:
    if not values:
        return spark.createDataFrame([], schema)
    maker = BatchMaker(needs_columns=True)
    table = pa.Table.from_batches(maker.batches(ListRun(values)), maker.schema)
    return spark.createDataFrame(table, schema or spark_schema(table.schema))


def spark_schema(schema: pa.Schema) -> Any:
    """Return the Spark schema of an Arrow schema.

    Spark itself would take times without a zone for TIMESTAMP.

    Raises:
        UnsupportedColumnError: If Spark has no type for a column; names it.
    """
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [
            StructField(field.name, _spark_type(field.type, field.name), field.nullable)
            for field in schema
        ]
    )


def kind_of_spark(kind: pa.DataType) -> pa.DataType:
    """Return a type that Spark has for the values of a column.

    Without one, as for unsigned integers, it is that of the values in Python.
    """
    kind = plain_in_micros(kind)
    if is_rare_list(kind):
        return pa.list_(kind_of_spark(kind.value_type))
    if pa.types.is_decimal(kind) and kind.precision > _DIGITS_MAX >= kind.scale:
        return pa.decimal128(_DIGITS_MAX, kind.scale)
    try:
        _spark_type(kind, "")
    except UnsupportedColumnError:
        return plain_type(kind) or kind
    return kind


def _spark_type(kind: pa.DataType, where: str) -> Any:
    from pyspark.sql import types as spark

    if pa.types.is_timestamp(kind):
        return spark.TimestampType() if kind.tz else spark.TimestampNTZType()
    if pa.types.is_decimal(kind):
        return spark.DecimalType(kind.precision, kind.scale)
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return spark.StructType(
            [
                spark.StructField(
                    field.name,
                    _spark_type(field.type, f"{where}.{field.name}"),
                    field.nullable,
                )
                for field in fields
            ]
        )
    if pa.types.is_map(kind):
        return spark.MapType(
            _spark_type(kind.key_type, f"{where}.key"),
            _spark_type(kind.item_type, f"{where}.value"),
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return spark.ArrayType(_spark_type(kind.value_type, f"{where}.element"))
    name = _SIMPLE.get(str(kind))
    if name is None or not hasattr(spark, name):
        raise UnsupportedColumnError(
            f"column {where!r}: Spark has no type for {kind}. Convert it before."
        )
    return getattr(spark, name)()


# Of decimals in Spark.
_DIGITS_MAX: Final = 38
_SIMPLE = {
    "binary": "BinaryType",
    "bool": "BooleanType",
    "date32[day]": "DateType",
    "double": "DoubleType",
    "duration[us]": "DayTimeIntervalType",
    "float": "FloatType",
    "int16": "ShortType",
    "int32": "IntegerType",
    "int64": "LongType",
    "int8": "ByteType",
    "large_binary": "BinaryType",
    "large_string": "StringType",
    "null": "NullType",
    "string": "StringType",
    "time64[us]": "TimeType",
}
