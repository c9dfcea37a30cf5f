"""Types of columns: canonical ones, what values mean in them, and how they unite."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# What operators on columns raise where only rows will do.


class RowsNeededError(Exception):
    """Only rows give the right result: nothing has been changed, and why."""


# The types in which expressions see columns: those that Python's values have.
_DECIMAL_BITS: Final = 128


_LISTS: Final = (
    (pa.types.is_list, pa.list_),
    (pa.types.is_large_list, pa.large_list),
)


_RARE_LISTS: Final = (
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def canonical_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type that a column's values would have as Python objects.

    Integers have 64 bits, floats too, times are in microseconds: so that an expression
    over a column gives what it gives over the rows made from it.

    Args:
        kind: The column's type.

    Returns:
        The type, or None if the rows of such a column have to be asked.

    Example:
        >>> canonical_type(pa.int8()), canonical_type(pa.float32())
        (DataType(int64), DataType(double))
        >>> canonical_type(pa.dictionary(pa.int8(), pa.large_string()))
        DataType(string)
    """
    types = pa.types
    if types.is_dictionary(kind):
        return canonical_type(kind.value_type)
    if types.is_struct(kind):
        return _plain_struct(kind)
    if types.is_list(kind) or types.is_large_list(kind):
        inner = canonical_type(kind.value_type)
        return None if inner is None else pa.list_(inner)
    if types.is_decimal(kind):
        # Narrower ones have few kernels.
        is_wide = kind.bit_width >= _DECIMAL_BITS
        return kind if is_wide else pa.decimal128(kind.precision, kind.scale)
    if types.is_boolean(kind) or types.is_null(kind):
        return kind
    for belongs, plain in (
        (types.is_integer, pa.int64()),
        (types.is_floating, pa.float64()),
        (types.is_string, pa.string()),
        (types.is_large_string, pa.string()),
        (types.is_binary, pa.binary()),
        (types.is_large_binary, pa.binary()),
        (types.is_fixed_size_binary, pa.binary()),
        (types.is_date, pa.date32()),
        (types.is_time, pa.time64("us")),
        (types.is_duration, pa.duration("us")),
    ):
        if belongs(kind):
            return plain
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    return None


def is_rare_list(kind: pa.DataType) -> bool:
    """Say whether a column has lists of one length, or views of lists."""
    return any(is_one(kind) for is_one in _RARE_LISTS)


def is_any_list(kind: pa.DataType) -> bool:
    """Say whether values of a type are lists, however Arrow stores them."""
    return is_rare_list(kind) or any(is_one(kind) for is_one, _ in _LISTS)


def cast_plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column with its plain type: of times, without digits below microseconds.

    Raises:
        ArrowInvalid: If a value does not fit, such as a time beyond 64 bits.

    Example:
        >>> moments = pa.array([1999], pa.timestamp("ns"))
        >>> cast_plain(moments, pa.timestamp("us")).cast(pa.int64()).to_pylist()
        [1]
    """
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    elif isinstance(column.type, pa.UuidType):
        texts = [None if each is None else str(each) for each in column.to_pylist()]
        column = pa.array(texts, pa.string())
    elif is_rare_list(column.type) and pa.types.is_list(kind):
        column = as_lists(column)
    coarse = _coarse_type(column.type)
    if not coarse.equals(column.type):
        # Only times may lose digits: beside them, integers must not wrap around.
        column = column.cast(coarse, safe=False)
    return column.cast(kind)


def as_lists(column: pa.Array) -> pa.Array:
    """Return rare lists as common ones. Arrow's cast makes wrong ones of some slices."""
    lengths = pc.list_value_length(column).fill_null(0)
    offsets: np.ndarray = np.zeros(len(column) + 1, np.int32)
    np.cumsum(lengths.to_numpy(), out=offsets[1:])
    return pa.ListArray.from_arrays(
        pa.array(offsets), column.flatten(), mask=column.is_null()
    )


def _coarse_type(kind: pa.DataType) -> pa.DataType:
    """Return a type whose times, also nested ones, are no finer than Python's."""
    types = pa.types
    if types.is_dictionary(kind):
        coarse = _coarse_type(kind.value_type)
        return kind if coarse.equals(kind.value_type) else coarse
    if types.is_nested(kind):
        return with_inner(kind, _coarse_type)
    if types.is_date64(kind):
        return pa.date32()
    if getattr(kind, "unit", "") != "ns":
        return kind
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.duration("us") if types.is_duration(kind) else pa.time64("us")


def _plain_struct(kind: pa.DataType) -> pa.DataType | None:
    fields = []
    for index in range(kind.num_fields):
        field = kind.field(index)
        inner = canonical_type(field.type)
        if inner is None:
            return None
        fields.append(pa.field(field.name, inner))
    return pa.struct(fields)


# Which values a column can hold as they are: Arrow makes others of many that it is
# given.
#
# Asked for a type, Arrow cuts moments to dates and fractions to integers, reads texts
# as numbers, and takes naive moments for those of UTC.
_KINDS: Final = {
    "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "bytes": (
        *(pa.types.is_binary, pa.types.is_large_binary),
        *(pa.types.is_binary_view, pa.types.is_fixed_size_binary),
    ),
    "truth": (pa.types.is_boolean,),
    "number": (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    "date": (pa.types.is_date,),
    "moment": (pa.types.is_timestamp,),
    "time of day": (pa.types.is_time,),
    "duration": (pa.types.is_duration,),
}


# The first that fits: a bool is an int, a datetime a date, a timedelta64 a number.
_CLASSES: Final[tuple[tuple[str, tuple[type, ...]], ...]] = (
    ("text", (str,)),
    ("bytes", (bytes, bytearray, memoryview)),
    ("truth", (bool, np.bool_)),
    ("duration", (timedelta, np.timedelta64)),
    ("number", (int, float, Decimal, np.number)),
    ("moment", (datetime,)),
    ("date", (date,)),
    ("time of day", (time,)),
    ("UUID", (UUID,)),
)


_OF_NUMBERS: Final = frozenset({"moment", "time of day", "duration"})


def check_type(kind: pa.DataType, wanted: pa.DataType) -> None:
    """Refuse a column of which a cast would make other values, or drop inner fields.

    Numbers may become moments and durations, as a schema may ask.

    Raises:
        ValueError: If it is one.

    Example:
        >>> check_type(pa.int8(), pa.int64())
        >>> check_type(pa.list_(pa.timestamp("us")), pa.list_(pa.date32()))
        Traceback (most recent call last):
            ...
        ValueError: it is timestamp[us]
    """
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_dictionary(wanted):
        wanted = wanted.value_type
    if types.is_struct(kind) and types.is_struct(wanted):
        for field in kind:
            place = wanted.get_field_index(field.name)
            if place < 0:
                raise ValueError(f"it has no field {field.name!r}")
            check_type(field.type, wanted.field(place).type)
    elif is_any_list(kind) and is_any_list(wanted):
        check_type(kind.value_type, wanted.value_type)
    elif types.is_map(kind) and types.is_map(wanted):
        check_type(kind.key_type, wanted.key_type)
        check_type(kind.item_type, wanted.item_type)
    else:
        _check_alone(kind, wanted)


def _check_alone(kind: pa.DataType, wanted: pa.DataType) -> None:
    found, asked = meaning(kind), meaning(wanted)
    is_number_of_time = found == "number" and asked in _OF_NUMBERS
    if _is_rounded(kind, wanted) or (
        found and asked and found != asked and not is_number_of_time
    ):
        raise ValueError(f"it is {kind}")
    if found == asked == "moment" and (kind.tz is None) != (wanted.tz is None):
        raise ValueError(f"it is {kind}, which is {'not ' if wanted.tz else ''}aware")


def _is_rounded(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Say whether decimals would become fractions, or the other way round."""
    kinds = kind, wanted
    return any(map(pa.types.is_decimal, kinds)) and any(
        map(pa.types.is_floating, kinds)
    )


def check_values(values: Iterable[Any], kind: pa.DataType) -> None:
    """Refuse values of Python of which Arrow would make others for a column of a type.

    Args:
        values: One a record, inner records as dicts.
        kind: The type of the column.

    Raises:
        TypeError: If an inner value is no list where it should be one.
        ValueError: If another one does not fit.

    Example:
        >>> check_values([1, None, 2.0], pa.int64())
        >>> check_values([[1.5]], pa.list_(pa.int64()))
        Traceback (most recent call last):
            ...
        ValueError: 1.5 is not a whole number
    """
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not pa.types.is_nested(kind):
        _check_flat(values, kind)
        return
    known = [value for value in values if value is not None]
    if pa.types.is_struct(kind):
        _check_records([each for each in known if isinstance(each, Mapping)], kind)
    elif pa.types.is_map(kind):
        pairs = [each.items() if isinstance(each, Mapping) else each for each in known]
        flat = list(chain.from_iterable(pairs))
        check_values([key for key, _ in flat], kind.key_type)
        check_values([item for _, item in flat], kind.item_type)
    elif is_any_list(kind):
        for value in known:
            if isinstance(value, str | bytes | bytearray | Mapping):
                raise ValueError(f"{value!r} is not a list")
        check_values(list(chain.from_iterable(known)), kind.value_type)


def _check_records(records: list[Any], kind: pa.DataType) -> None:
    fields = {field.name: field.type for field in kind}
    for record in records:
        for name in record:
            if name not in fields:
                raise ValueError(f"it has no field {name!r}")
    for name, inner in fields.items():
        check_values([record.get(name) for record in records], inner)


def _check_flat(values: Iterable[Any], kind: pa.DataType) -> None:
    asked = meaning(kind)
    if not asked:
        return
    classes = set(map(type, values))
    for each in classes:
        found = _class_meaning(each)
        if found and found != asked:
            value = next(value for value in values if type(value) is each)
            raise ValueError(f"{value!r} is a {found}")
    if pa.types.is_integer(kind):
        _check_whole(values, classes)
    elif asked == "moment":
        _check_zones(values, kind)
    elif asked == "time of day":
        for value in values:
            if isinstance(value, time) and value.tzinfo is not None:
                raise ValueError(f"{value!r} has a zone, and the column has none")


def _check_whole(values: Iterable[Any], classes: set[type]) -> None:
    broken = {
        each for each in classes if issubclass(each, float | Decimal | np.floating)
    }
    for value in values if broken else ():
        if type(value) in broken and value % 1 != 0:
            # Infinite ones and NaN are not whole, either.
            raise ValueError(f"{value!r} is not a whole number")


def _check_zones(values: Iterable[Any], kind: pa.DataType) -> None:
    aware = kind.tz is not None
    for value in values:
        if isinstance(value, datetime) and (value.utcoffset() is not None) != aware:
            said = "aware" if aware else "naive"
            raise ValueError(f"{value!r} is not {said}, as the column is")


@lru_cache(maxsize=256)
def meaning(kind: pa.DataType) -> str:
    """Return what values of a type are, empty if it does not matter."""
    found = (name for name, tests in _KINDS.items() if any(is_(kind) for is_ in tests))
    return next(found, "")


@lru_cache(maxsize=1024)
def _class_meaning(kind: type) -> str:
    """Return what objects of a class are, empty if Arrow may say it."""
    return next((name for name, base in _CLASSES if issubclass(kind, base)), "")


# Columns whose types differ from batch to batch: the types that hold the values of all.
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
    return _without_views(kind, unencoded_type)


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
    return _without_views(kind, _unviewed)


def _without_views(
    kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]
) -> pa.DataType:
    """Return a type that is no view, with the types inside of lists and structs changed."""
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    return kind if pa.types.is_map(kind) else with_inner(kind, change)


def with_inner(
    kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]
) -> pa.DataType:
    """Return a type with the types inside it changed, of structs, maps and lists."""
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(change(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(change(kind.key_type), change(kind.item_type))
    for is_list, make in _LISTS:
        if is_list(kind):
            return make(kind.value_field.with_type(change(kind.value_type)))
    return kind


# Values that are no numbers but have an order, as arrays that numpy can compare.
#
# Moments, dates and durations are int64 there, in the units that Python has; texts and
# bytes are objects, which compare as Python compares them.
class _Beyond:
    """Is larger, or smaller, than all values."""

    __slots__ = ("_is_largest",)

    def __init__(self, *, is_largest: bool) -> None:
        self._is_largest = is_largest

    def __le__(self, other: object) -> bool:
        return not self._is_largest

    def __lt__(self, other: object) -> bool:
        return not self._is_largest

    def __ge__(self, other: object) -> bool:
        return self._is_largest

    def __gt__(self, other: object) -> bool:
        return self._is_largest


LARGEST: Final = _Beyond(is_largest=True)


SMALLEST: Final = _Beyond(is_largest=False)


_SORTABLE: Final[dict[type, pa.DataType]] = {
    str: pa.string(),
    bytes: pa.binary(),
    dt.date: pa.date32(),
    dt.timedelta: pa.duration("us"),
    dt.time: pa.time64("us"),
}


def ordered_values(column: pa.Array) -> tuple[np.ndarray, pa.DataType] | None:
    """Return a column as an array, with the type of the values; None if it cannot be.

    Where there is no value there is anything.

    Example:
        >>> ordered_values(pa.array(["b", "a"]))
        (array(['b', 'a'], dtype=object), DataType(string))
        >>> ordered_values(pa.array([7, None], pa.timestamp("s", "UTC")))[0].tolist()
        [7000000, 0]
        >>> ordered_values(pa.array([[1]])) is None
        True
    """
    kind = canonical_type(column.type)
    if kind is None or kind not in _ORDERED:
        return None
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    numbers: np.ndarray
    if kind in _OBJECTS:
        numbers = column.to_numpy(zero_copy_only=False)
        return numbers, kind
    try:
        plain = cast_plain(column, kind)
    except pa.ArrowInvalid:
        # Rows say which of them Python cannot express.
        return None
    plain = plain.view(pa.int32() if pa.types.is_date(kind) else pa.int64())
    numbers = plain.cast(pa.int64()).fill_null(0).to_numpy()
    return numbers, kind


def as_kind(numbers: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column of int64 as one of what the numbers stand for."""
    if pa.types.is_date(kind):
        numbers = numbers.cast(pa.int32())
    return numbers.view(kind)


def loaded_values(values: list[Any]) -> tuple[np.ndarray, pa.DataType]:
    """Return values as `ordered_values` has them.

    Raises:
        RowsNeededError: If they are of several types, or one that has no such form.
    """
    types = set(map(type, values))
    kind = _SORTABLE.get(next(iter(types)))
    if types == {dt.datetime}:
        zones = {value.tzinfo for value in values}
        if zones <= {dt.UTC} or zones == {None}:
            kind = pa.timestamp("us", None if None in zones else "UTC")
    if types == {dt.time} and any(value.tzinfo is not None for value in values):
        kind = None
    if kind is None or len(types) > 1:
        raise RowsNeededError(_NO_ARRAY)
    try:
        column = pa.array(values, kind)
    except (pa.ArrowException, OverflowError) as error:
        # Spans of more than 64 bits.
        raise RowsNeededError(_NO_ARRAY) from error
    found = ordered_values(column)
    assert found is not None, "all these types have an order"
    return found


_NO_ARRAY: Final = "the state is not an array of values of one type"


_OBJECTS: Final = frozenset({pa.string(), pa.binary()})


_ORDERED: Final = _OBJECTS | {
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    *_SORTABLE.values(),
}


# The types that columns of keys have had, and those that hold all keys.
_SEEN_MAX: Final = 64


_MISFIT: Final = (pa.ArrowException, OverflowError, TypeError)


class KeyTypes:
    """A type for each field of a key, wide enough for all keys that came.

    Two streams that were united may have narrower and wider columns of keys in turns.

    Attributes:
        types: The types; None before the first run.

    Example:
        >>> types = KeyTypes()
        >>> types.add([pa.int64()], [300], alone=True)
        >>> types.add([pa.int8()], [300, 1], alone=True)
        >>> types.types
        [DataType(int64)]
    """

    def __init__(self) -> None:
        self.types: list[pa.DataType] | None = None
        self._seen: set[tuple[pa.DataType, ...]] = set()

    def add(self, kinds: list[pa.DataType], keys: list[Any], *, alone: bool) -> None:
        """Widen the types to those of a run's columns.

        Args:
            kinds: The types of the columns.
            keys: All keys that there are.
            alone: Whether a key is the value of the one field; else it is a tuple.

        Raises:
            RowsNeededError: If no type holds all keys of a field.
        """
        seen = tuple(kinds)
        if seen in self._seen:
            return
        plain = [
            kind.value_type if pa.types.is_dictionary(kind) else kind for kind in kinds
        ]
        known = plain if self.types is None else self.types
        self.types = _holding(list(map(_both, known, plain)), keys, alone=alone)
        if len(self._seen) >= _SEEN_MAX:
            self._seen.clear()
        self._seen.add(seen)

    def hold(self, keys: list[Any], *, alone: bool) -> None:
        """Widen the types to keys that a restore has brought.

        Raises:
            RowsNeededError: If no type holds all keys of a field.
        """
        if self.types is not None:
            self.types = _holding(self.types, keys, alone=alone)


def _holding(
    kinds: list[pa.DataType], keys: list[Any], *, alone: bool
) -> list[pa.DataType]:
    """Return types that hold keys, the same ones or wider."""
    if not keys:
        return kinds
    parts = [keys] if alone else zip(*keys, strict=True)
    return [
        kind if _holds(kind, part) else _plainer(kind, part)
        for kind, part in zip(kinds, parts, strict=True)
    ]


def _plainer(kind: pa.DataType, keys: Any) -> pa.DataType:
    """Return the type of all values like those of a column, for keys that it has not."""
    plain = canonical_type(kind)
    if plain is None or not _holds(plain, keys):
        raise RowsNeededError("keys are of several types")
    return plain


def _both(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type for all values of two types."""
    if kind.equals(other):
        return kind
    try:
        schemas = [pa.schema([("key", kind)]), pa.schema([("key", other)])]
        merged = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise RowsNeededError("keys are of several types") from error
    return merged.field(0).type


def _holds(kind: pa.DataType, keys: Any) -> bool:
    """Say whether a column of a type has just these keys."""
    try:
        return bool(pa.array(keys, kind).to_pylist() == list(keys))
    except _MISFIT:
        return False
