"""From records to Arrow batches of one schema."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import groupby
from types import UnionType
from typing import Any, Final, NoReturn
from uuid import UUID

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.forms import (
    RecordShape,
    field_hints,
    is_record_type,
    record_shape,
)
from aiomailbox.columnar.ipc import types_in
from aiomailbox.columnar.types import (
    cast_plain,
    check_type,
    check_values,
    unencoded_type,
)
from aiomailbox.errors import RecordTypeError
from aiomailbox.records.run import Run

_DECIMAL_DIGITS: Final = 38


# What Arrow raises for a value that is not of a type.
_UNFIT: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)


_SCHEMA_ADVICE: Final = (
    "The first records decide the types where no schema= is given. Give all records the "
    "same types."
)


# Where Spark's classes of values are that Arrow has no type for.
_SPARK_TYPES: Final = "pyspark.sql.types"


# What an annotation says about a column.
_TYPES: Final[dict[Any, pa.DataType]] = {
    bool: pa.bool_(),
    bytes: pa.binary(),
    date: pa.date32(),
    datetime: pa.timestamp("us", "UTC"),
    # As Spark takes decimals of Python that say nothing more.
    Decimal: pa.decimal128(_DECIMAL_DIGITS, 18),
    float: pa.float64(),
    int: pa.int64(),
    str: pa.string(),
    time: pa.time64("us"),
    timedelta: pa.duration("us"),
    # As Spark has it, which cannot read Parquet's own.
    UUID: pa.string(),
}


# Answers of services, and records, have few levels; deeper ones are rows.
_DEPTH_MAX: Final = 16


class BatchMaker:
    """Turns runs into Arrow batches that all have one schema.

    Times become microseconds, and those with a time zone UTC; dictionaries become plain
    values, unless the schema has them: what every reader of Parquet understands.

    Args:
        schema: The schema; None takes that of the first records.
        kind_of: What becomes of the types of columns whose schema is taken.
        needs_columns: Whether rows are lost where they go if they have no columns, so
            that they are refused.

    Attributes:
        schema: The schema, as soon as it is known. A column in which all values were
            None so far may still get its type.

    Example:
        >>> from aiomailbox.records import ListRun
        >>> maker = BatchMaker()
        >>> maker.batches(ListRun([{"city": "Oslo", "visits": 3}]))[0].num_rows
        1
        >>> maker.schema.names
        ['city', 'visits']
    """

    def __init__(
        self,
        schema: pa.Schema | None = None,
        kind_of: Callable[[pa.DataType], pa.DataType] | None = None,
        *,
        needs_columns: bool = False,
    ) -> None:
        self.schema = None if schema is None else _in_micros(schema)
        self._is_given = schema is not None
        self._needs_columns = needs_columns
        self._kind_of = kind_of or canonical_in_micros
        self._shape: RecordShape | None = None

    def batches(self, run: Run) -> list[pa.RecordBatch]:
        """Return a run's records as batches.

        Raises:
            RecordTypeError: If a record does not fit the schema; names the column.
        """
        if not len(run):
            return []
        if isinstance(run, ArrowRun):
            return [self.fit(run.batch)]
        batches: list[pa.RecordBatch] = []
        for is_batch, values in groupby(run.values, _is_batch):
            if not is_batch:
                batches.append(self._from_records(list(values)))
                continue
            for value in values:
                pieces = value.to_batches() if isinstance(value, pa.Table) else [value]
                batches += map(self.fit, pieces)
        return batches

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the columns of the schema, in its order and types.

        Raises:
            RecordTypeError: If it does not fit; names the column.
        """
        if self._needs_columns and batch.num_rows and not batch.num_columns:
            raise RecordTypeError(
                "record",
                f"{batch.num_rows} records have no fields, and would be lost",
                "Give them one at least.",
            )
        schema = self.schema
        if schema is None:
            fields = [each.with_type(self._kind_of(each.type)) for each in batch.schema]
            schema = pa.schema(fields)
        if not batch.schema.equals(schema):
            schema = self._completed(batch.schema, schema)
            batch = self._fitted(batch, schema)
        self.schema = schema
        return batch

    def _from_records(self, records: list[Any]) -> pa.RecordBatch:
        shape = self._shape or record_shape(records[0])
        if not shape.names:
            # A batch without columns would have no records.
            raise RecordTypeError(
                "record", f"{records[0]!r} has no fields", "Give it one at least."
            )
        self._check(records, shape)
        try:
            columns = shape.columns(records)
        except (AttributeError, KeyError, TypeError) as error:
            raise RecordTypeError(
                "record",
                f"a record has other fields than the first, {list(shape.names)}: "
                f"{error!r}",
                "All records must have the same fields.",
            ) from error
        schema = self._schema_for(shape, columns)
        by_name = dict(zip(shape.names, columns, strict=True))
        extra = sorted(set(shape.names) - set(schema.names))
        if extra:
            raise self._extra("fields", extra, schema)
        arrays = [
            self._encoded(by_name[field.name], field)
            if field.name in by_name
            else self._no_column(field, list(shape.names))
            for field in schema
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        # Only now: what is refused decides nothing about what follows.
        self._shape, self.schema = shape, schema
        return batch

    def _schema_for(self, shape: RecordShape, columns: list[list[Any]]) -> pa.Schema:
        """Return the schema; a column that was None so far gets its type when not."""
        schema = self.schema
        if schema is None:
            return _inferred(shape, columns)
        for index, field in enumerate(schema):
            if lacks_type(field.type) and field.name in shape.names:
                values = columns[shape.names.index(field.name)]
                found = _inferred_field(field.name, values).type
                schema = schema.set(index, field.with_type(_filled(field.type, found)))
        return schema

    def _completed(self, other: pa.Schema, schema: pa.Schema) -> pa.Schema:
        """Return a schema with the types that it lacks, as far as another one has them."""
        for index, field in enumerate(schema):
            if lacks_type(field.type) and other.names.count(field.name) == 1:
                found = self._kind_of(other.field(field.name).type)
                schema = schema.set(index, field.with_type(_filled(field.type, found)))
        return schema

    def _fitted(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        names = batch.schema.names
        extra = sorted(set(names) - set(schema.names))
        if extra:
            raise self._extra("columns", extra, schema)
        columns = [
            self._cast(batch.column(names.index(field.name)), field)
            if names.count(field.name) == 1
            else self._no_column(field, names)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _encoded(self, values: list[Any], field: pa.Field) -> pa.Array:
        try:
            return _converted(values, field.type)
        except _UNFIT as error:
            raise self._misfit(field, str(error)) from error

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        if column.type.equals(field.type):
            return column
        try:
            check_type(column.type, field.type)
            return cast_plain(column, field.type)
        except (pa.ArrowException, ValueError) as error:
            raise self._misfit(field, str(error)) from error

    def _misfit(self, field: pa.Field, problem: str) -> RecordTypeError:
        if not self._is_given:
            return _misfit(field, problem)
        return RecordTypeError(
            f"column {field.name!r}",
            f"a record does not fit {field.type}, which the schema says: {problem}",
            f"Convert the values, or give {field.name!r} another type in the schema.",
        )

    def _no_column(self, field: pa.Field, names: list[str]) -> NoReturn:
        if not self._is_given:
            raise _misfit(field, f"there is not exactly one such field in {names}")
        raise RecordTypeError(
            f"column {field.name!r}",
            f"the schema has it, as {field.type}, and a record has "
            f"{'several' if field.name in names else 'none'}: its fields are {names}",
            f"Let records have {field.name!r} once, or leave it out of the schema.",
        )

    def _extra(self, what: str, names: list[str], schema: pa.Schema) -> RecordTypeError:
        if not self._is_given:
            return RecordTypeError(
                "record",
                f"{what} {names} are not among those of the first record, "
                f"{schema.names}",
                "All records must have the same fields.",
            )
        known = ", ".join(f"{field.name}: {field.type}" for field in schema)
        return RecordTypeError(
            "record",
            f"{what} {names} are not in the schema, which has {known or 'none'}",
            "Add them to the schema, or leave them out of the records.",
        )

    def _check(self, records: list[Any], shape: RecordShape) -> None:
        if issubclass(shape.record_type, dict):
            width = len(shape.names)
            kinds = {
                one for one in set(map(type, records)) if not issubclass(one, Mapping)
            }
            odd = (
                (record for record in records if type(record) in kinds)
                if kinds
                else (record for record in records if len(record) != width)
            )
        else:
            kinds = set(map(type, records)) - {shape.record_type}
            firsts = (next(r for r in records if type(r) is kind) for kind in kinds)
            names = set(shape.names)
            odd = (each for each in firsts if set(record_shape(each).names) != names)
        for record in odd:
            raise RecordTypeError(
                "record",
                f"{record!r} has other fields than the first, {list(shape.names)}",
                "All records must have the same fields.",
            )


def lacks_type(kind: pa.DataType) -> bool:
    """Say whether all values of a type are None, or all inside of them."""
    return any(map(pa.types.is_null, types_in(kind)))


def _filled(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type with those of another one where it has none."""
    types = pa.types
    if types.is_null(kind):
        return other
    if _is_list(kind) and _is_list(other):
        inner = kind.value_field.with_type(_filled(kind.value_type, other.value_type))
        return pa.large_list(inner) if types.is_large_list(kind) else pa.list_(inner)
    if types.is_struct(kind) and types.is_struct(other):
        fields = []
        for field in kind:
            place = other.get_field_index(field.name)
            if place >= 0:
                field = field.with_type(_filled(field.type, other.field(place).type))
            fields.append(field)
        return pa.struct(fields)
    return kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def record_batches(schema: pa.Schema | None = None) -> Any:
    """Return a function from runs to lists of Arrow batches, all of one schema.

    Args:
        schema: The schema; None takes that of the first records.
    """
    return BatchMaker(schema).batches


def in_micros(kind: pa.DataType) -> pa.DataType:
    """Return a type with all times, also nested ones, in microseconds and UTC."""
    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_time(kind):
        return pa.time64("us")
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([field.with_type(in_micros(field.type)) for field in fields])
    if types.is_map(kind):
        return pa.map_(in_micros(kind.key_type), in_micros(kind.item_type))
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(in_micros(kind.value_type)))
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(in_micros(kind.value_type)))
    return kind


def canonical_in_micros(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values without dictionaries, times in microseconds.

    A dictionary of one batch may have no room for the values of all, nor any reader.
    """
    return in_micros(unencoded_type(kind))


def _in_micros(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(in_micros(field.type)) for field in schema])


def _inferred(shape: RecordShape, columns: list[list[Any]]) -> pa.Schema:
    hints = shape.hints()
    fields = []
    for name, values in zip(shape.names, columns, strict=True):
        declared = declared_type(hints.get(name))
        fields.append(_inferred_field(name, values, declared))
    return pa.schema(fields)


def _inferred_field(
    name: str, values: list[Any], declared: pa.DataType | None = None
) -> pa.Field:
    try:
        kind = _special_type(values) or pa.infer_type(values)
    except _UNFIT as error:
        raise _misfit(pa.field(name, pa.null()), str(error)) from error
    if declared is not None:
        kind = _settled(kind, declared)
    if pa.types.is_decimal(kind):
        # Later values may have more digits before the point.
        kind = pa.decimal128(_DECIMAL_DIGITS, kind.scale)
    return pa.field(name, in_micros(kind))


def _special_type(values: list[Any]) -> pa.DataType | None:
    """Return the type of values of which Arrow's own is not Spark's."""
    first: Any = next((value for value in values if value is not None), None)
    if type(first) is UUID:
        return _TYPES[UUID]
    if type(first).__module__ != _SPARK_TYPES:
        return None
    name = type(first).__name__
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
    mark = {name.lower(): "true", "srid": str(first.srid)}
    return pa.struct(
        [
            pa.field("srid", pa.int32(), nullable=False),
            pa.field("wkb", pa.binary(), nullable=False, metadata=mark),
        ]
    )


def _settled(kind: pa.DataType, declared: pa.DataType) -> pa.DataType:
    """Return the type of values, as declared where other values might give another.

    There may be none, whole numbers of a float, decimals with fewer places, or some keys
    of a map; whether moments have a zone the values say.
    """
    types = pa.types
    if types.is_null(kind) or (types.is_map(declared) and types.is_struct(kind)):
        return declared
    if types.is_integer(kind) and types.is_floating(declared):
        return declared
    if types.is_decimal(kind) and types.is_decimal(declared):
        return declared if declared.scale > kind.scale else kind
    if types.is_list(kind) and types.is_list(declared):
        return pa.list_(_settled(kind.value_type, declared.value_type))
    if types.is_struct(kind) and types.is_struct(declared):
        fields = []
        for field in kind:
            place = declared.get_field_index(field.name)
            if place >= 0:
                inner = _settled(field.type, declared.field(place).type)
                field = field.with_type(inner)
            fields.append(field)
        return pa.struct(fields)
    return kind


def encoded_column(
    values: list[Any], field: pa.Field, advice: str = _SCHEMA_ADVICE
) -> pa.Array:
    """Return values as a column of a field's type.

    Args:
        values: One a record, shape ``(n,)``.
        field: The column's name and type.
        advice: What an error advises.

    Raises:
        RecordTypeError: If one does not fit it; names the field.
    """
    try:
        return _converted(values, field.type)
    except _UNFIT as error:
        raise _misfit(field, str(error), advice) from error


def _converted(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_struct(kind):
        # A key of several fields, which was a struct as long as there were columns.
        names = [kind.field(index).name for index in range(kind.num_fields)]
        values = [_as_struct(value, names) for value in values]
    elif pa.types.is_string(kind) and UUID in set(map(type, values)):
        values = [str(value) if type(value) is UUID else value for value in values]
    check_values(values, kind)
    return pa.array(values, kind)


def _as_struct(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return dict(zip(names, value, strict=True))
    if type(value).__module__ == _SPARK_TYPES:
        # Variants and geometries, whose parts are a struct in Arrow.
        return {name: getattr(value, name) for name in names}
    return value


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
        if depth > _DEPTH_MAX:
            # A class whose fields are of the class itself has no end.
            raise NoColumnTypeError(where, hint)
        if origin in {list, set, frozenset} and len(arguments) == 1:
            return pa.list_(self.field("item", arguments[0], f"{where}[]", depth))
        if origin is dict:
            key = self.type_of(arguments[0], f"{where} key", depth + 1)
            item = self.field("value", arguments[1], f"{where} value", depth)
            return pa.map_(key, item)
        if is_record_type(hint):
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


def _misfit(
    field: pa.Field, problem: str, advice: str = _SCHEMA_ADVICE
) -> RecordTypeError:
    return RecordTypeError(
        f"column {field.name!r}",
        f"a record does not fit its type, {field.type}: {problem}",
        advice,
    )


def _is_batch(value: Any) -> bool:
    return isinstance(value, pa.RecordBatch | pa.Table)


# Results of functions as a column, where that says exactly what they are.


_RESULT_TYPES: Final[dict[type, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    np.float64: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    date: pa.date32(),
    time: pa.time64("us"),
    timedelta: pa.duration("us"),
}


_EXACT_MAX: Final = 2**53


class ResultColumn:
    """Makes columns of results.

    Args:
        hint: What the function says that it returns; Any for nothing.

    Example:
        >>> column = ResultColumn(float)
        >>> column.as_declared([2.5, None, 2])
        [2.5, None, 2.0]
        >>> column.of([2.5, None]).to_pylist(), column.of(["much"]) is None
        ([2.5, None], False)
        >>> column.of([2.5, "much"]) is None
        True
    """

    __slots__ = ("_kind", "_says_float")

    def __init__(self, hint: Any) -> None:
        declared = hinted_type(hint, pa.null())
        self._says_float = pa.types.is_floating(declared)
        # What a column is in which there is nothing: what the one before was.
        self._kind: pa.DataType = declared

    def as_declared(self, values: list[Any]) -> list[Any]:
        """Return results with floats for whole numbers if the function says float.

        Else it would depend on the others in a column what a result is.
        """
        if not self._says_float or int not in set(map(type, values)):
            return values
        return [
            float(value)
            if type(value) is int and -_EXACT_MAX <= value <= _EXACT_MAX
            else value
            for value in values
        ]

    def of(self, values: Sequence[Any]) -> pa.Array | None:
        """Return results as a column, None if reading it would give others.

        They are of one type that Arrow has, or None: integers have 64 bits, texts no
        surrogates, decimals one scale, dicts the same keys in the same order. The same
        holds for what is in lists and dicts.
        """
        kind = _kind_of(values, 0)
        if kind is None:
            return None
        if pa.types.is_null(kind):
            return pa.nulls(len(values), self._kind)
        try:
            array = pa.array(values, kind)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError, ValueError):
            return None
        self._kind = kind
        return array


def _kind_of(values: Sequence[Any], depth: int) -> pa.DataType | None:
    """Return the type of values, null if all are None, None if no column is exact."""
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return pa.null()
    if len(kinds) > 1 or depth > _DEPTH_MAX:
        return None
    (kind,) = kinds
    if kind is list:
        inner = [each for value in values if value is not None for each in value]
        items = _kind_of(inner, depth + 1)
        return None if items is None else pa.list_(items)
    if kind is dict:
        return _struct_of([value for value in values if value is not None], depth)
    if kind is time and any(map(_is_more_than_a_time, values)):
        return None
    return _RESULT_TYPES.get(kind) or _by_values(values)


def _struct_of(dicts: list[dict[Any, Any]], depth: int) -> pa.DataType | None:
    names = list(dicts[0])
    if not names or set(map(type, names)) != {str}:
        return None
    if any(list(each) != names for each in dicts):
        return None
    fields = []
    for name in names:
        kind = _kind_of([each[name] for each in dicts], depth + 1)
        if kind is None:
            return None
        fields.append((name, kind))
    try:
        return pa.struct(fields)
    except UnicodeEncodeError:
        return None


def _is_more_than_a_time(value: Any) -> bool:
    """Say whether a time has what a column has not: a zone, or the later of two hours."""
    return value is not None and (value.tzinfo is not None or value.fold != 0)


def _by_values(values: Sequence[Any]) -> pa.DataType | None:
    """Return the type of moments or of decimals, None if it is not the same for all.

    A column gives moments back in UTC, or without a zone, and decimals of zero without
    a sign.
    """
    found = [value for value in values if value is not None]
    if type(found[0]) is datetime:
        zones = {None if each.tzinfo is None else str(each.tzinfo) for each in found}
        if zones == {"UTC"}:
            return pa.timestamp("us", "UTC")
        if zones == {None} and not any(each.fold for each in found):
            return pa.timestamp("us")
    elif type(found[0]) is Decimal:
        exponents = {value.as_tuple().exponent for value in found}
        exponent = exponents.pop()
        digits = -exponent if isinstance(exponent, int) else -1
        is_exact = not any(value.is_signed() for value in found if not value)
        if is_exact and not exponents and 0 <= digits <= _DECIMAL_DIGITS:
            return pa.decimal128(_DECIMAL_DIGITS, digits)
    return None
