"""Columns whose types differ from batch to batch: the types that hold the values of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

__all__ = ["promoted", "unencoded_type", "unified_schema", "without_views"]

_TEXTS: Final = (pa.types.is_string, pa.types.is_large_string)


def unified_schema(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return a schema for the columns of both: those of the first, then new ones.

    Narrow types become wider ones, integers floats; a dictionary beside plain values
    becomes these; moments of two time zones have UTC. Text never becomes bytes, nor a
    decimal a float: the values would be read as others.

    Raises:
        ArrowException: If there is no type for a column of both; names it.

    Example:
        >>> plain = pa.schema({"city": pa.string(), "n": pa.int32()})
        >>> coded = pa.schema({"city": pa.dictionary(pa.int8(), pa.string())})
        >>> unified_schema(plain, coded).types
        [DataType(string), DataType(int32)]
    """
    fields = list(one)
    places = {field.name: index for index, field in enumerate(fields)}
    for field in other:
        place = places.get(field.name)
        if place is None:
            fields.append(field)
        elif not field.type.equals(fields[place].type):
            fields[place] = _unified_field(fields[place], field)
    return pa.schema(fields)


def promoted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns of a schema that was unified with its own.

    Raises:
        ArrowInvalid: If a value does not fit.
    """
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch without views of texts and bytes, which few of Arrow's kernels take.

    Polars gives them where it is asked for a stream.
    """
    schema = batch.schema
    plain = pa.schema([field.with_type(_unviewed(field.type)) for field in schema])
    return batch if plain.equals(schema) else promoted(batch, plain)


def unencoded_type(kind: pa.DataType) -> pa.DataType:
    """Return a type of the same values, without dictionaries, views, runs and zones."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return unencoded_type(kind.value_type)
    if pa.types.is_timestamp(kind) and kind.tz:
        return pa.timestamp(kind.unit, "UTC")
    return _with_inner(kind, unencoded_type)


def _unified_field(one: pa.Field, other: pa.Field) -> pa.Field:
    first = _merged(one, other)
    if first is not None:
        return first
    plain = [field.with_type(unencoded_type(field.type)) for field in (one, other)]
    merged = _merged(*plain)
    if merged is None:
        raise pa.ArrowTypeError(
            f"Field {one.name} has incompatible types: {one.type} vs {other.type}"
        )
    return merged


def _merged(one: pa.Field, other: pa.Field) -> pa.Field | None:
    try:
        schemas = [pa.schema([one]), pa.schema([other])]
        merged = pa.unify_schemas(schemas, promote_options="permissive").field(0)
    except pa.ArrowException:
        return None
    kinds = one.type, other.type, merged.type
    return None if _changes_values(*kinds) else merged


def _changes_values(one: pa.DataType, other: pa.DataType, merged: pa.DataType) -> bool:
    """Say whether values of one type become others in the type for both."""
    types = pa.types
    if types.is_floating(merged):
        return bool(types.is_decimal(one) or types.is_decimal(other))
    if types.is_binary(merged) or types.is_large_binary(merged):
        return any(is_text(kind) for is_text in _TEXTS for kind in (one, other))
    return False


def _unviewed(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        values = _unviewed(kind.value_type)
        return pa.dictionary(kind.index_type, values, kind.ordered)
    return _with_inner(kind, _unviewed)


def _with_inner(
    kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]
) -> pa.DataType:
    """Return a type that is no view, with the types inside it changed."""
    types = pa.types
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(change(kind.value_type)))
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(change(kind.value_type)))
    if types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([field.with_type(change(field.type)) for field in fields])
    return kind
