"""From records to Arrow batches of one schema."""

from __future__ import annotations

import importlib
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.declared import (
    DECIMAL_DIGITS,
    DEPTH_MAX,
    declared_type,
    hinted_type,
    known_schema,
    known_types,
    plain_special,
    type_of_special,
)
from aiomailbox.columnar.forms import RecordShape, record_shape
from aiomailbox.columnar.ipc import types_in
from aiomailbox.columnar.types import (
    cast_plain,
    check_type,
    check_values,
    unencoded_type,
    with_inner,
)
from aiomailbox.errors import RecordTypeError
from aiomailbox.operators.core.fields import RecordFields
from aiomailbox.operators.core.operator import Pending
from aiomailbox.records.run import Run
from aiomailbox.supervision import run_in_thread

# What Arrow raises for a value that is not of a type.
_UNFIT: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)


_SCHEMA_ADVICE: Final = (
    "The first records decide the types where no schema= is given. Give all records the "
    "same types."
)
_ENUM_ADVICE: Final = "An Enum has no type of columns. Emit its .value."


class BatchMaker:
    """Turns runs into Arrow batches that all have one schema.

    Times become microseconds, and those with a time zone UTC; dictionaries become plain
    values, unless the schema has them: what every reader of Parquet understands.

    Args:
        schema: The schema; None takes that of the first records.
        kind_of: What becomes of the types of columns whose schema is taken.
        needs_columns: Whether rows are lost where they go if they have no columns, so
            that they are refused.
        fields: What is known of the records' fields where there is no schema: the types
            of columns whose values fit them, and of those that have no value.

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
        fields: RecordFields | None = None,
    ) -> None:
        self.schema = None if schema is None else _in_micros(schema)
        self._fields = fields
        self._is_given = schema is not None
        self._needs_columns = needs_columns
        self._kind_of = kind_of or canonical_in_micros
        self._shape: RecordShape | None = None

    def expect(self) -> pa.Schema | None:
        """Return the schema, if there was no record that which is known; else None."""
        known = known_schema(self._fields) if self.schema is None else None
        if known is not None:
            self.schema = self._own(known)
        return self.schema

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
        for is_batch, values in groupby(run.values, is_one_batch):
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
        batch = filled_below_nulls(batch)
        schema = self.schema
        if schema is None:
            schema = self._completed_by_fields(self._own(batch.schema))
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
            return _inferred(shape, columns, self._known())
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

    def _completed_by_fields(self, schema: pa.Schema) -> pa.Schema:
        """Return a schema with the types that are known of columns without a value."""
        known = self._known()
        for index, field in enumerate(schema):
            if lacks_type(field.type) and field.name in known:
                kind = _filled(field.type, known[field.name])
                schema = schema.set(index, field.with_type(kind))
        return schema

    def _known(self) -> dict[str, pa.DataType]:
        """Return the types that are known of fields."""
        return {
            name: self._kind_of(kind)
            for name, kind in known_types(self._fields).items()
        }

    def _own(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([each.with_type(self._kind_of(each.type)) for each in schema])

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
            found = _converted(values, field.type)
        except _UNFIT as error:
            raise self._misfit(field, str(error), _advice(values)) from error
        if not field.nullable and found.null_count:
            raise self._misfit(field, "it is None, and the column takes no null")
        return found

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        if not field.nullable and column.null_count:
            raise self._misfit(field, "it is None, and the column takes no null")
        if column.type.equals(field.type):
            return column
        try:
            check_type(column.type, field.type)
            return cast_plain(column, field.type)
        except (pa.ArrowException, ValueError) as error:
            raise self._misfit(field, str(error)) from error

    def _misfit(
        self, field: pa.Field, problem: str, advice: str = _SCHEMA_ADVICE
    ) -> RecordTypeError:
        if not self._is_given:
            return _misfit(field, problem, advice)
        return RecordTypeError(
            f"column {field.name!r}",
            f"a record does not fit {field.type}, its type in the schema: {problem}",
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
    if pa.types.is_null(kind):
        return other
    return _matched(kind, other, _filled)


def _matched(
    kind: pa.DataType,
    other: pa.DataType,
    change: Callable[[pa.DataType, pa.DataType], pa.DataType],
) -> pa.DataType:
    """Return a list or struct whose inner types are changed by those of another one."""
    if _is_list(kind) and _is_list(other):
        return with_inner(kind, lambda inner: change(inner, other.value_type))
    if not pa.types.is_struct(kind) or not pa.types.is_struct(other):
        return kind
    fields = []
    for field in kind:
        place = other.get_field_index(field.name)
        if place >= 0:
            field = field.with_type(change(field.type, other.field(place).type))
        fields.append(field)
    return pa.struct(fields)


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
    return with_inner(kind, in_micros)


def canonical_in_micros(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values without dictionaries, times in microseconds.

    A dictionary of one batch may have no room for the values of all, nor any reader.
    UUIDs are texts: Spark cannot read those of Parquet.
    """
    if isinstance(kind, pa.UuidType):
        return pa.string()
    return in_micros(unencoded_type(kind))


def _in_micros(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(in_micros(field.type)) for field in schema])


def _inferred(
    shape: RecordShape, columns: list[list[Any]], known: Mapping[str, pa.DataType]
) -> pa.Schema:
    hints = shape.hints()
    fields = []
    for name, values in zip(shape.names, columns, strict=True):
        if name in known and _fits(values, known[name]):
            fields.append(pa.field(name, known[name]))
            continue
        declared = declared_type(hints.get(name))
        fields.append(_inferred_field(name, values, declared))
    return pa.schema(fields)


def _fits(values: list[Any], kind: pa.DataType) -> bool:
    """Say whether a column has just these values; a function may have changed them."""
    try:
        _converted(values, kind)
    except _UNFIT:
        return False
    return True


def _inferred_field(
    name: str, values: list[Any], declared: pa.DataType | None = None
) -> pa.Field:
    try:
        kind = _type_of(values)
    except _UNFIT as error:
        unknown = pa.field(name, pa.null())
        raise _misfit(unknown, str(error), _advice(values)) from error
    if declared is not None:
        kind = _settled(kind, declared)
    if pa.types.is_decimal(kind):
        # Later values may have more digits before the point.
        kind = pa.decimal128(DECIMAL_DIGITS, kind.scale)
    return pa.field(name, in_micros(kind))


def _type_of(values: list[Any]) -> pa.DataType:
    """Return the type of values, as Arrow has it, or Spark where that cannot read it.

    Raises:
        ArrowException: If there is none for all of them.
    """
    try:
        kind = pa.infer_type(values)
        if not any(isinstance(each, pa.BaseExtensionType) for each in types_in(kind)):
            return kind
    except _UNFIT:
        # Of what is inside, this may fail again, and says of which value.
        pass
    # Arrow has a type of its own for UUIDs, and none for Spark's classes.
    known = [value for value in values if value is not None]
    first = known[0]
    if isinstance(first, Mapping):
        names = dict.fromkeys(name for value in known for name in value)
        return pa.struct(
            [(name, _type_of([value.get(name) for value in known])) for name in names]
        )
    if isinstance(first, list | tuple | set | frozenset):
        return pa.list_(_type_of([each for value in known for each in value]))
    return type_of_special(first) or pa.infer_type(values)


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
    return _matched(kind, declared, _settled)


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
        values = [
            dict(zip(names, value, strict=True)) if isinstance(value, list) else value
            for value in values
        ]
    try:
        check_values(values, kind)
        return pa.array(values, kind)
    except _UNFIT:
        plain = [plain_special(value, kind) for value in values]
        if not pa.types.is_nested(kind) and all(map(operator.is_, plain, values)):
            raise
    check_values(plain, kind)
    return pa.array(plain, kind)


def _advice(values: list[Any]) -> str:
    has_enum = any(isinstance(value, Enum) for value in values)
    return _ENUM_ADVICE if has_enum else _SCHEMA_ADVICE


def _misfit(
    field: pa.Field, problem: str, advice: str = _SCHEMA_ADVICE
) -> RecordTypeError:
    return RecordTypeError(
        f"column {field.name!r}",
        f"a record does not fit its type, {field.type}: {problem}",
        advice,
    )


def is_one_batch(value: Any) -> bool:
    """Say whether a record is a batch of records."""
    return isinstance(value, pa.RecordBatch | pa.Table)


# Fields that are never NULL, in structs that may be.
#
# What lies below a NULL struct no reader sees. Spark has NULL there, also in fields that
# are never NULL, and Arrow neither casts nor writes these. Arrow itself has some value.


def filled_below_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with some value in each never-NULL field of a NULL struct.

    Example:
        >>> never = pa.field("x", pa.int64(), nullable=False)
        >>> below = pa.array([1, None])
        >>> structs = pa.StructArray.from_arrays(
        ...     [below], fields=[never], mask=pa.array([False, True])
        ... )
        >>> batch = pa.record_batch({"s": structs})
        >>> filled = filled_below_nulls(batch)
        >>> filled.to_pylist() == batch.to_pylist()
        True
        >>> filled.column(0).field(0).null_count
        0
    """
    nested = filter(pa.types.is_nested, batch.schema.types)
    if not any(map(_has_never_null, nested)):
        return batch
    return pa.RecordBatch.from_arrays(
        [*map(_filled_column, batch.columns)], schema=batch.schema
    )


@lru_cache(maxsize=256)
def _has_never_null(kind: pa.DataType) -> bool:
    return any(
        pa.types.is_struct(each) and not all(field.nullable for field in each)
        for each in types_in(kind)
    )


def _filled_column(column: pa.Array) -> pa.Array:
    kind = column.type
    if not _has_never_null(kind):
        return column
    if pa.types.is_struct(kind):
        inner = [
            _filled_field(_filled_column(column.field(index)), field, column)
            for index, field in enumerate(kind)
        ]
        return pa.StructArray.from_arrays(
            inner, fields=list(kind), mask=column.is_null()
        )
    if pa.types.is_map(kind):
        inner = [column.keys, _filled_column(column.items)]
        fields = [kind.key_field, kind.item_field]
        values = pa.StructArray.from_arrays(inner, fields=fields)
    elif _is_list(kind):
        values = _filled_column(column.values)
    else:
        return column
    return pa.Array.from_buffers(
        kind,
        len(column),
        column.buffers()[:2],
        column.null_count,
        column.offset,
        [values],
    )


def _filled_field(values: pa.Array, field: pa.Field, structs: pa.Array) -> pa.Array:
    if field.nullable or not values.null_count:
        return values
    # A NULL that can be seen is none of Spark's, and Arrow refuses it.
    if pc.any(pc.and_(values.is_null(), structs.is_valid())).as_py():
        return values
    # What Arrow itself has in a field of a NULL struct.
    some = pa.array([None], pa.struct([("value", field.type)])).field(0)[0]
    return pc.fill_null(values, some)


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
    if len(kinds) > 1 or depth > DEPTH_MAX:
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
        if is_exact and not exponents and 0 <= digits <= DECIMAL_DIGITS:
            return pa.decimal128(DECIMAL_DIGITS, digits)
    return None


# The first array that pyarrow makes of Python's values imports pandas, if it is there: a
# third of a second, and on a busy machine three.


def warmed() -> Pending:
    """Import in a thread what pyarrow imports later; None if that is done."""
    # Not by what `sys.modules` has: a module is there while it is still being imported,
    # by the thread of another operator, and who uses it then is held until that ends.
    return None if _is_warm.is_set() else run_in_thread(_warm)


_is_warm: Final = threading.Event()


def _warm() -> None:
    importlib.import_module("pyarrow.acero")
    pa.array([])
    _is_warm.set()
