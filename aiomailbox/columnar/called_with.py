"""Which fields an asynchronous function is called with."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aiomailbox.columnar.forms import (
    ClassForm,
    DictForm,
    RecordForm,
    class_fields,
    is_record_type,
    is_typed_dict,
)
from aiomailbox.columnar.projection import Plan, Projection, Select
from aiomailbox.errors import InvalidArgumentError, RecordTypeError, WrongTypeError
from aiomailbox.operators.core.callables import describe
from aiomailbox.operators.core.selectors import FieldSelector, FieldsSelector

__all__ = ["Declared", "called_with", "read_no_others"]


class Declared(NamedTuple):
    """What the type hints of a function say.

    Attributes:
        record_type: The class of records that it takes, or a TypedDict; None if there
            is none.
        returned: What it returns; Any if that is not said.

    Example:
        >>> async def measure(day: str) -> float: ...
        >>> Declared.by(measure, batched=False)
        Declared(record_type=None, returned=<class 'float'>)
    """

    record_type: type | None
    returned: Any

    @classmethod
    def by(cls, function: Any, *, batched: bool) -> Declared:
        """Return what a function declares.

        Args:
            function: A function, or an object that can be called.
            batched: Whether it takes and returns lists.
        """
        target = inspect.unwrap(function)
        if not (inspect.isfunction(target) or inspect.ismethod(target)):
            target = getattr(target, "__call__", target)  # noqa: B004 -- its annotations
        try:
            hints = typing.get_type_hints(target)
            parameters = list(inspect.signature(target).parameters)
        except (NameError, TypeError, ValueError):
            return cls(None, Any)
        returned = hints.pop("return", Any)
        if parameters and inspect.isclass(function):
            parameters = parameters[1:]
        hint = hints.get(parameters[0]) if parameters else None
        if batched:
            hint, returned = _element(hint), _element(returned) or Any
        names_fields = is_record_type(hint) or is_typed_dict(hint)
        return cls(hint if names_fields else None, returned)

    @property
    def form(self) -> RecordForm | None:
        """What makes the records that it takes; None if it takes any."""
        if self.record_type is None:
            return None
        if is_typed_dict(self.record_type):
            return DictForm()
        return ClassForm(self.record_type)

    def projection(self, names: tuple[str, ...]) -> Projection:
        """Return which fields it gets of records.

        Args:
            names: Those that it is called with.
        """
        if self.record_type is None:
            return Select(names=names, parameter="columns")
        fields = class_fields(self.record_type)
        kind = self.record_type.__qualname__
        return _ClassFields(fields={name: fields[name] for name in names}, kind=kind)


def _element(hint: Any) -> Any:
    """Return what a list has, by its type hint; None if that does not say it."""
    inner = typing.get_args(hint)
    return inner[0] if len(inner) == 1 else None


@dataclass(frozen=True)
class _ClassFields(Projection):
    """The fields of a class; those with defaults may be missing."""

    fields: dict[str, bool] = field(default_factory=dict)
    kind: str = ""

    def plan(self, names: Sequence[str]) -> Plan:
        needed = [one for one in self.fields if self.fields[one] or one in names]
        for name in needed:
            if name not in names:
                raise RecordTypeError(
                    "function",
                    f"it takes records of {self.kind}, and there is no field {name!r} "
                    "for them",
                    f"The fields are: {', '.join(names)}.",
                )
        return Select(names=tuple(needed)).plan(names)


def called_with(
    function: Any, declared: Declared, columns: Sequence[str] | None
) -> tuple[str, ...] | None:
    """Return the fields that a function is called with, None for all.

    Args:
        function: The function, for messages.
        declared: What it declares.
        columns: What the user named; None for what the function declares.

    Raises:
        InvalidArgumentError: If they are not those of the class that it declares.
        WrongTypeError: If they are no names.
    """
    record_type = declared.record_type
    if columns is None:
        return None if record_type is None else tuple(class_fields(record_type))
    if isinstance(columns, str) or not all(isinstance(one, str) for one in columns):
        raise WrongTypeError(
            "columns", f"{columns!r} is not a list of names", 'Write columns=["city"].'
        )
    if record_type is not None:
        _check_class(function, record_type, columns)
    if not columns or len(set(columns)) < len(columns):
        raise InvalidArgumentError(
            "columns", f"{list(columns)} is empty or has duplicates", "Name each once."
        )
    return tuple(columns)


def _check_class(function: Any, record_type: type, columns: Sequence[str]) -> None:
    """Refuse columns of which no records of a class can be made.

    Raises:
        InvalidArgumentError: If there are others, or one is missing.
    """
    fields = class_fields(record_type)
    unknown = [name for name in columns if name not in fields]
    missing = [name for name in fields if fields[name] and name not in columns]
    if unknown or missing:
        raise InvalidArgumentError(
            "columns",
            f"{describe(function)} takes records of {record_type.__qualname__}, which "
            + (f"have no field {unknown[0]!r}" if unknown else f"need {missing[0]!r}"),
            "Leave columns= out, or name the fields of the class.",
        )


def read_no_others(readers: Iterable[Any], names: Sequence[str]) -> bool:
    """Say whether these read no other fields than those with these names.

    Args:
        readers: Names, selectors, numbers, or None; functions may read any field.
        names: The fields.
    """
    return all(set(_fields_of(reader)) <= set(names) for reader in readers)


def _fields_of(reader: Any) -> tuple[str, ...]:
    """Return the fields that something reads; of a function a name that no field has."""
    if reader is None or isinstance(reader, int | float):
        return ()
    if isinstance(reader, str):
        return (reader,)
    if isinstance(reader, FieldSelector | FieldsSelector):
        return tuple(reader.fields)
    return ("",)
