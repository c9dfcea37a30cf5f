"""The form of records made from columns: NamedTuple, dict, or object of a class.

A form turns columns of Python values into records, one call per run. The same form
makes the records of nested structs.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, Protocol, TypeGuard

import msgspec
import pyarrow as pa

from aiomailbox.columnar.ipc import BatchReader, BatchWriter
from aiomailbox.errors import (
    CorruptStreamError,
    InvalidArgumentError,
    RecordTypeError,
    UnsupportedColumnError,
)
from aiomailbox.operators.aggregates.compiled import result_type
from aiomailbox.operators.core.fields import RecordFields
from aiomailbox.records.record_classes import (
    RecordClass,
    fields_of,
    fields_of_class,
    is_field_name,
    record_class,
)
from aiomailbox.records.run import map_all

# What a column of lists becomes if the field of a class is annotated as that.
OTHER_LISTS: Final = frozenset({tuple, set, frozenset})

# (columns of Python values, how many rows) → records.
StructBuilder = Callable[[Sequence[Sequence[Any]], int], list[Any]]


class RecordForm(Protocol):
    """How records are made from columns."""

    def builder(self, names: tuple[str, ...], where: str = "") -> StructBuilder:
        """Return the function that makes records with fields of these names.

        Args:
            names: The columns' names, in order.
            where: The path of the struct column whose fields they are; empty for the
                record itself.

        Raises:
            UnsupportedColumnError: If a name does not fit the form; names it.
        """

    def nested(self, name: str) -> RecordForm:
        """Return the form of the structs inside the field ``name``."""


class NamedTupleForm:
    """Records as NamedTuples: the default.

    Args:
        inner: What structs inside of some fields are; all others are NamedTuples, too.

    Attributes:
        inner: As given.
    """

    def __init__(self, inner: Mapping[str, RecordForm] | None = None) -> None:
        self.inner: Mapping[str, RecordForm] = inner or {}

    def builder(self, names: tuple[str, ...], where: str = "") -> StructBuilder:
        """Return the function that makes NamedTuples with these fields."""
        check_unique(names, where)
        for name in names:
            if not is_field_name(name):
                raise UnsupportedColumnError(
                    f"column {_path(where, name)!r} cannot be a field of a NamedTuple: "
                    "its name is not a public identifier. Rename the column, or use "
                    "records=dict."
                )
        cls = record_class(names)
        new = tuple.__new__

        def build(columns: Sequence[Sequence[Any]], count: int) -> list[Any]:
            if not columns:
                return [new(cls, ()) for _ in range(count)]
            return list(map(new, repeat(cls), zip(*columns, strict=True)))

        return build

    def nested(self, name: str) -> RecordForm:
        """Return what structs inside of a field are."""
        return self.inner.get(name) or NamedTupleForm()


class DictForm:
    """Records as dicts from column name to value.

    Args:
        inner: What structs inside of some fields are; all others are dicts, too.

    Attributes:
        inner: As given.
    """

    def __init__(self, inner: Mapping[str, RecordForm] | None = None) -> None:
        self.inner: Mapping[str, RecordForm] = inner or {}

    def builder(self, names: tuple[str, ...], where: str = "") -> StructBuilder:
        """Return the function that makes dicts with these keys."""
        check_unique(names, where)

        def build(columns: Sequence[Sequence[Any]], count: int) -> list[Any]:
            if not columns:
                return [{} for _ in range(count)]
            return [
                dict(zip(names, values, strict=True))
                for values in zip(*columns, strict=True)
            ]

        return build

    def nested(self, name: str) -> RecordForm:
        """Return what structs inside of a field are."""
        return self.inner.get(name) or DictForm()


class ClassForm:
    """Records as objects of a dataclass, a `msgspec.Struct` or a NamedTuple class.

    The columns must be the class's fields, in any order; a field with a default may be
    missing. A struct column becomes the record class named in the field's annotation,
    or else a NamedTuple; a list becomes the set or the tuple that is annotated.

    Args:
        record_type: The class.
    """

    def __init__(self, record_type: type) -> None:
        self.record_type = record_type
        self._fields = _class_fields(record_type)
        self._kinds = {
            name: kind
            for name, hint in class_hints(record_type).items()
            if (kind := _other_list(hint)) is not None
        }

    def builder(self, names: tuple[str, ...], where: str = "") -> StructBuilder:
        """Return the function that makes objects of the class."""
        check_unique(names, where)
        self._check_fields(names, where)
        cls: Callable[..., Any] = self.record_type
        kinds = [self._kinds.get(name) for name in names]

        def converted(columns: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
            if not any(kinds):
                return columns
            return [
                column if kind is None else _as_kind(column, kind)
                for kind, column in zip(kinds, columns, strict=True)
            ]

        order = [field.name for field in self._fields if field.name in names]
        if len(order) == len(self._fields) and not any(
            field.keyword_only for field in self._fields
        ):
            positions = [names.index(name) for name in order]

            def by_position(columns: Sequence[Sequence[Any]], count: int) -> list[Any]:
                if not columns:
                    return [cls() for _ in range(count)]
                columns = converted(columns)
                return map_all(cls, *[columns[position] for position in positions])

            return by_position

        def by_keyword(columns: Sequence[Sequence[Any]], count: int) -> list[Any]:
            if not columns:
                return [cls() for _ in range(count)]
            return [
                cls(**dict(zip(names, values, strict=True)))
                for values in zip(*converted(columns), strict=True)
            ]

        return by_keyword

    def nested(self, name: str) -> RecordForm:
        """Return the form of the class that the field's annotation names."""
        try:
            hint = typing.get_type_hints(self.record_type).get(name)
        except (NameError, TypeError):
            hint = None
        inner = _record_type_in(hint)
        return NamedTupleForm() if inner is None else ClassForm(inner)

    def _check_fields(self, names: tuple[str, ...], where: str) -> None:
        class_name = self.record_type.__qualname__
        known = [field.name for field in self._fields]
        for name in names:
            if name not in known:
                raise UnsupportedColumnError(
                    f"column {_path(where, name)!r} has no field in {class_name}, "
                    f"whose fields are {known}. Drop the column or add the field."
                )
        for field in self._fields:
            if field.required and field.name not in names:
                raise UnsupportedColumnError(
                    f"no column {_path(where, field.name)!r} for that field of "
                    f"{class_name}; the columns are {list(names)}. Add the column, or "
                    "give the field a default."
                )


def _other_list(hint: Any) -> Callable[[list[Any]], Any] | None:
    """Return what makes the values of an annotation such as ``set[int] | None`` of lists."""
    parts = typing.get_args(hint)
    if type(None) in parts and len(parts) == 2:
        hint = parts[0] if parts[1] is type(None) else parts[1]
    origin = typing.get_origin(hint)
    return origin if origin in OTHER_LISTS else None


def _as_kind(column: Sequence[Any], kind: Callable[[list[Any]], Any]) -> list[Any]:
    return [kind(each) if type(each) is list else each for each in column]


def changed_form(form: RecordForm, inner: Mapping[str, RecordForm]) -> RecordForm:
    """Return what records become whose fields change: dicts stay dicts, else NamedTuples.

    Args:
        form: What they were.
        inner: What structs inside of the new fields were.
    """
    plain = DictForm if isinstance(form, DictForm) else NamedTupleForm
    others = {
        name: each
        for name, each in inner.items()
        if not isinstance(each, plain) or each.inner
    }
    return plain(others)


def form_of_class(kind: type, names: tuple[str, ...]) -> RecordForm:
    """Return what makes records of a class that rows have, with these fields.

    Raises:
        InvalidArgumentError: If it is no class of records.
    """
    if kind is dict:
        return DictForm()
    if kind is record_class(names):
        return NamedTupleForm()
    return record_form(kind)


def record_form(records: object, parameter: str = "records") -> RecordForm:
    """Return the form that a user's ``records=`` argument names.

    Args:
        records: ``"namedtuple"``, ``dict`` (or ``"dict"``), or a class.
        parameter: The argument's name, for the message.

    Raises:
        InvalidArgumentError: If it is none of these.
    """
    if records == "namedtuple":
        return NamedTupleForm()
    if records is dict or records == "dict":
        return DictForm()
    if isinstance(records, type) and is_record_type(records):
        return ClassForm(records)
    raise InvalidArgumentError(
        parameter,
        f"{records!r} is not a kind of record",
        'Use "namedtuple", dict, a dataclass, a msgspec.Struct or a NamedTuple class.',
    )


def form_fields(
    form: RecordForm, names: Iterable[str], types: Mapping[str, Any]
) -> RecordFields | None:
    """Return the fields of a form's records; None if instances of a class may have more.

    Args:
        form: The form.
        names: The columns.
        types: Their types, as far as they are known.
    """
    if isinstance(form, ClassForm):
        found = RecordFields.of_type(form.record_type)
        if found is None:
            return None
        return dataclasses.replace(found, types={**found.types, **types})
    # A tuple has methods, which can be read by name, too.
    are_keys = isinstance(form, DictForm)
    readable = () if are_keys else dir(tuple)
    return RecordFields(tuple(names), frozenset(readable), are_keys, types)


def is_record_type(candidate: Any) -> TypeGuard[type]:
    """Say whether a value is a class of records: a dataclass, Struct or NamedTuple."""
    return isinstance(candidate, type) and fields_of_class(candidate) is not None


def is_typed_dict(candidate: Any) -> bool:
    """Say whether a value is a TypedDict, be it that of another library."""
    return (
        isinstance(candidate, type)
        and issubclass(candidate, dict)
        and hasattr(candidate, "__required_keys__")
    )


def class_fields(record_type: type) -> dict[str, bool]:
    """Return the fields of a record class or TypedDict, with whether each is required."""
    if is_typed_dict(record_type):
        return _typed_keys(record_type)
    return {field.name: field.required for field in _class_fields(record_type)}


def _typed_keys(typed_dict: type) -> dict[str, bool]:
    """Return the keys of a TypedDict, with whether each is required."""
    required: frozenset[str] = getattr(typed_dict, "__required_keys__")  # noqa: B009 -- dict has none
    try:
        # Where annotations are strings, its own keys do not know of NotRequired.
        hints = typing.get_type_hints(typed_dict, include_extras=True)
    except (NameError, TypeError):
        hints = typed_dict.__annotations__
    marks = {name: typing.get_origin(hint) for name, hint in hints.items()}
    return {
        name: mark is typing.Required
        or (name in required and mark is not typing.NotRequired)
        for name, mark in marks.items()
    }


def check_unique(names: tuple[str, ...], where: str) -> None:
    """Check that no two columns have the same name.

    Raises:
        UnsupportedColumnError: If two have.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UnsupportedColumnError(
                f"column {_path(where, name)!r} exists twice. Rename one of them, for "
                "example with DataFrame.toDF."
            )
        seen.add(name)


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


class _ClassField(NamedTuple):
    name: str
    required: bool
    keyword_only: bool


@lru_cache(maxsize=1024)
def _class_fields(record_type: type) -> tuple[_ClassField, ...]:
    parameters = inspect.signature(record_type).parameters.values()
    return tuple(
        _ClassField(
            parameter.name,
            parameter.default is parameter.empty,
            parameter.kind is parameter.KEYWORD_ONLY,
        )
        for parameter in parameters
    )


def _record_type_in(hint: Any) -> type | None:
    """Return the first record class in an annotation such as ``list[X] | None``."""
    if is_record_type(hint):
        return hint
    for argument in typing.get_args(hint):
        found = _record_type_in(argument)
        if found is not None:
            return found
    return None


# From records of any kind to columns of plain Python values.


# What stands alone becomes one column of this name, as in Spark.
_VALUE: Final = "value"


_SCALARS: Final = (
    bool,
    int,
    float,
    str,
    bytes,
    datetime,
    date,
    time,
    timedelta,
    Decimal,
)


_NESTED: Final = (list, tuple, dict, set, frozenset, msgspec.Struct)


class RecordShape(NamedTuple):
    """The fields of records of one kind.

    Attributes:
        record_type: The records' class.
        names: The fields' names.
        columns: Turns records into columns, one a field; raises when a record does
            not have the field.
    """

    record_type: type
    names: tuple[str, ...]
    columns: Callable[[list[Any]], list[list[Any]]]

    def hints(self) -> dict[str, Any]:
        """Return the annotations of the fields, as far as there are any."""
        return class_hints(self.record_type)

    def picked(self, names: Iterable[str], records: list[Any]) -> dict[str, list[Any]]:
        """Return the columns of these fields, as they are in the records.

        Raises:
            RecordTypeError: If a record does not have one of them.
        """
        reader = itemgetter if issubclass(self.record_type, Mapping) else attrgetter
        if issubclass(self.record_type, _SCALARS):
            return dict.fromkeys(names, records)
        try:
            return {name: map_all(reader(name), records) for name in names}
        except (AttributeError, KeyError) as error:
            raise RecordTypeError(
                "record",
                f"a record has other fields than the first, {list(self.names)}: "
                f"{error!r}",
                "All records must have the same fields.",
            ) from error


@lru_cache(maxsize=256)
def class_hints(record_type: type | None) -> dict[str, Any]:
    """Return the annotations of a class's fields, as far as there are any."""
    if record_type is None:
        return {}
    try:
        return typing.get_type_hints(record_type)
    except (NameError, TypeError):
        return {}


def field_hints(record_type: type) -> dict[str, Any]:
    """Return the annotations of what a class of records is made of, in order."""
    hints = class_hints(record_type)
    if is_typed_dict(record_type):
        return hints
    made_of = inspect.signature(record_type).parameters
    return {name: hints[name] for name in made_of if name in hints}


def record_shape(record: Any) -> RecordShape:
    """Return the shape of records like this one.

    Args:
        record: A NamedTuple, a mapping, a dataclass, a `msgspec.Struct`, a Row of
            Spark, or a single value, which becomes a column named ``value``.

    Raises:
        RecordTypeError: If its fields have no names, or names that are not text.
    """
    names = _names(record)
    if names is not None:
        _check_text(record, names)
        reader = itemgetter if isinstance(record, Mapping) else attrgetter
        return RecordShape(type(record), names, _by_field(names, reader))
    if isinstance(record, _SCALARS):
        return RecordShape(type(record), (_VALUE,), lambda values: [values])
    raise RecordTypeError(
        "record",
        f"{record!r} of type {type(record).__name__} has no named fields",
        "Use a NamedTuple, dict, dataclass or msgspec.Struct.",
    )


def _by_field(
    names: tuple[str, ...], reader: Callable[[str], Callable[[Any], Any]]
) -> Callable[[list[Any]], list[list[Any]]]:
    readers = [reader(name) for name in names]

    def columns(records: list[Any]) -> list[list[Any]]:
        return [canonical_values(map_all(read, records)) for read in readers]

    return columns


def _names(record: Any) -> tuple[str, ...] | None:
    return tuple(record) if isinstance(record, Mapping) else fields_of(record)


def _check_text(record: Any, names: tuple[Any, ...]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise RecordTypeError(
                "record",
                f"{record!r} has a field {name!r}, whose name is not a string",
                "Name the fields of a dict by strings.",
            )


def canonical_values(values: list[Any]) -> list[Any]:
    """Return a column with its nested records as dicts, which Arrow takes for structs."""
    sample = next((value for value in values if value is not None), None)
    if isinstance(sample, _NESTED) or dataclasses.is_dataclass(sample):
        return [_plain(value) for value in values]
    return values


def _plain(value: Any) -> Any:
    """Return nested records as dicts, which Arrow understands as structs."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    names = _names(value)
    if names is not None:
        return {name: _plain(getattr(value, name)) for name in names}
    # An interval of months, days and nanoseconds is a tuple, and one value of Arrow's.
    if isinstance(value, list | tuple | set | frozenset) and (
        type(value) is not pa.MonthDayNano
    ):
        return [_plain(item) for item in value]
    return value


# Record batches as records: how they travel to another process.


def batch_class() -> RecordClass:
    """Return how a record batch that is itself a record is sent: as Arrow IPC.

    Example:
        >>> entry, batch = batch_class(), pa.record_batch({"city": ["Oslo"]})
        >>> entry.build(entry.split(batch)).equals(batch)
        True
    """
    writer, reader = BatchWriter(), BatchReader()

    def build(parts: Any) -> pa.RecordBatch:
        (written,) = parts
        if not isinstance(written, bytes):
            raise CorruptStreamError("a record batch is made of bytes")
        return reader.read(written)

    return RecordClass.taken_apart(
        pa.RecordBatch, ("ipc",), lambda batch: (writer.write(batch),), build
    )


# What results of aggregates are as records: of their own class, values, or tuples.


class ResultForm:
    """Records of the class that results have.

    Attributes:
        has_tuples: Whether the field ``key`` is a tuple of several fields.
    """

    def __init__(self, names: tuple[str, ...], has_tuples: bool) -> None:
        self.record_type: type = result_type(names)
        self.has_tuples: bool = has_tuples

    def builder(self, names: tuple[str, ...], where: str = "") -> StructBuilder:
        """Return the function that makes results."""
        kind, new = self.record_type, tuple.__new__

        def build(columns: Sequence[Sequence[Any]], count: int) -> list[Any]:
            return [new(kind, values) for values in zip(*columns, strict=True)]

        return build

    def nested(self, name: str) -> RecordForm:
        """Return the form of a key of several fields, or of NamedTuples."""
        return TupleForm() if self.has_tuples and name == "key" else NamedTupleForm()


class ValueForm:
    """Records that are single values."""

    def builder(self, names: tuple[str, ...], where: str = "") -> StructBuilder:
        """Return the function that takes the values of the one column."""

        def build(columns: Sequence[Sequence[Any]], count: int) -> list[Any]:
            return list(columns[0])

        return build

    def nested(self, name: str) -> RecordForm:
        """Return the form of NamedTuples."""
        return NamedTupleForm()


class TupleForm(ValueForm):
    """Keys of several fields, or results with their keys: tuples without names.

    Args:
        has_tuples: Whether the field ``key`` is a tuple, too.
    """

    def __init__(self, *, has_tuples: bool = False) -> None:
        self._has_tuples = has_tuples

    def nested(self, name: str) -> RecordForm:
        """Return the form of a key of several fields, or of NamedTuples."""
        return TupleForm() if self._has_tuples and name == "key" else NamedTupleForm()

    def builder(self, names: tuple[str, ...], where: str = "") -> StructBuilder:
        """Return the function that makes tuples."""

        def build(columns: Sequence[Sequence[Any]], count: int) -> list[Any]:
            return list(zip(*columns, strict=True))

        return build
