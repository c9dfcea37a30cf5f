"""The row path's way around Spark's local times.

Spark gives timestamps in rows as naive datetimes of the driver's time zone, in which
two instants of an autumn night are equal. So the plan sends them as microseconds,
wherever they are nested, and the driver makes aware datetimes of them again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from aiomailbox.columnar.decode import EPOCH
from aiomailbox.columnar.forms import RecordForm

__all__ = ["ValueDecoder", "encode_timestamps", "value_decoder"]

ValueDecoder = Callable[[Any], Any]


def encode_timestamps(column: Any, kind: Any) -> Any:
    """Return a column in which every TIMESTAMP is its microseconds since the epoch."""
    from pyspark.sql import functions as sf

    name = type(kind).__name__
    if not _has_timestamp(kind):
        return column
    if name == "TimestampType":
        return sf.unix_micros(column)
    if name == "ArrayType":
        return sf.transform(
            column, lambda item: encode_timestamps(item, kind.elementType)
        )
    if name == "MapType":
        values = sf.transform_values(
            column, lambda _, value: encode_timestamps(value, kind.valueType)
        )
        return sf.transform_keys(
            values, lambda key, _: encode_timestamps(key, kind.keyType)
        )
    fields = [
        encode_timestamps(column.getField(field.name), field.dataType).alias(field.name)
        for field in kind.fields
    ]
    return sf.when(column.isNotNull(), sf.struct(*fields))


def value_decoder(
    kind: Any, form: RecordForm, path: tuple[str, ...]
) -> ValueDecoder | None:
    """Return what makes a Python value of a value from a row; None if nothing must.

    Args:
        kind: The column's Spark type, before `encode_timestamps`.
        form: What structs inside it become.
        path: The column's name, then the parts of a nested one.
    """
    name = type(kind).__name__
    if name == "TimestampType":
        return _moment
    if name == "ArrayType":
        return _items(value_decoder(kind.elementType, form, (*path, "element")))
    if name == "MapType":
        return _entries(
            value_decoder(kind.keyType, form, (*path, "key")),
            value_decoder(kind.valueType, form, (*path, "value")),
        )
    if name == "StructType":
        return _structs(kind, form, path)
    return None


def _has_timestamp(kind: Any) -> bool:
    name = type(kind).__name__
    if name == "ArrayType":
        return _has_timestamp(kind.elementType)
    if name == "MapType":
        return _has_timestamp(kind.keyType) or _has_timestamp(kind.valueType)
    if name == "StructType":
        return any(_has_timestamp(field.dataType) for field in kind.fields)
    return name == "TimestampType"


def _moment(micros: int | None) -> Any:
    return None if micros is None else EPOCH + timedelta(0, 0, micros)


def _items(decode: ValueDecoder | None) -> ValueDecoder | None:
    if decode is None:
        return None
    return lambda items: None if items is None else [decode(item) for item in items]


def _entries(
    decode_key: ValueDecoder | None, decode_value: ValueDecoder | None
) -> ValueDecoder | None:
    if decode_key is None and decode_value is None:
        return None
    as_key = decode_key or _same
    as_value = decode_value or _same
    return lambda entries: (
        None
        if entries is None
        else {as_key(key): as_value(value) for key, value in entries.items()}
    )


def _structs(kind: Any, form: RecordForm, path: tuple[str, ...]) -> ValueDecoder:
    build = form.builder(tuple(field.name for field in kind.fields), ".".join(path))
    decoders = [
        value_decoder(field.dataType, form.nested(field.name), (*path, field.name))
        or _same
        for field in kind.fields
    ]

    def decode(struct: Any) -> Any:
        if struct is None:
            return None
        columns = [
            [decoder(value)] for decoder, value in zip(decoders, struct, strict=True)
        ]
        return build(columns, 1)[0]

    return decode


def _same(value: Any) -> Any:
    return value
