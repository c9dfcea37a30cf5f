"""What a record made from columns is: a NamedTuple, a dict, or an object of a class.

A form turns columns of Python values into records, one call per run. The same form
makes the records of nested structs.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple, Protocol, TypeGuard

import msgspec

from aiomailbox.errors import InvalidArgumentError, UnsupportedColumnError
from aiomailbox.records.mapping import map_all
from aiomailbox.records.named_tuples import is_field_name, record_class

__all__ = [
    "ClassForm",
    "DictForm",
    "NamedTupleForm",
    "RecordForm",
    "StructBuilder",
    "changed_form",
    "class_fields",
    "form_of_class",
    "is_record_type",
    "is_typed_dict",
    "record_form",
]

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
        ...

    def nested(self, name: str) -> RecordForm:
        """Return the form of the structs inside the field ``name``."""
        ...


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
    or else a NamedTuple.

    Args:
        record_type: The class.
    """

    def __init__(self, record_type: type) -> None:
        self.record_type = record_type
        self._fields = _class_fields(record_type)

    def builder(self, names: tuple[str, ...], where: str = "") -> StructBuilder:
        """Return the function that makes objects of the class."""
        check_unique(names, where)
        self._check_fields(names, where)
        cls: Callable[..., Any] = self.record_type
        order = [field.name for field in self._fields if field.name in names]
        if len(order) == len(self._fields) and not any(
            field.keyword_only for field in self._fields
        ):
            positions = [names.index(name) for name in order]

            def by_position(columns: Sequence[Sequence[Any]], count: int) -> list[Any]:
                if not columns:
                    return [cls() for _ in range(count)]
                return map_all(cls, *[columns[position] for position in positions])

            return by_position

        def by_keyword(columns: Sequence[Sequence[Any]], count: int) -> list[Any]:
            if not columns:
                return [cls() for _ in range(count)]
            return [
                cls(**dict(zip(names, values, strict=True)))
                for values in zip(*columns, strict=True)
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


def is_record_type(candidate: Any) -> TypeGuard[type]:
    """Say whether a value is a class of records: a dataclass, Struct or NamedTuple."""
    if not isinstance(candidate, type):
        return False
    if dataclasses.is_dataclass(candidate):
        return True
    if issubclass(candidate, msgspec.Struct):
        return True
    return issubclass(candidate, tuple) and hasattr(candidate, "_fields")


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
