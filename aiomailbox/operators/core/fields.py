"""Fields of records: which there are, and how one is read."""

from __future__ import annotations

import dataclasses
import operator
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from aiomailbox.errors import (
    InvalidArgumentError,
    RecordTypeError,
    UsageError,
    WrongTypeError,
)
from aiomailbox.operators.core.user_code import (
    caller_location,
    check_sync_function,
    describe,
    refuse_called,
    refuse_generator,
)
from aiomailbox.records.record_classes import fields_of, fields_of_class, is_field_name

# Reads a field of a record: by name, or by a function.


Selector = str | Callable[[Any], Any]


class Expression(Protocol):
    """An expression of `pyarrow.compute`, as far as a checker has to know it."""

    def cast(self, *args: Any, **options: Any) -> Any:
        """Return it with another type."""

    def is_null(self, *args: Any, **options: Any) -> Any:
        """Return whether it has no value."""


# What says which records count.
Condition = Selector | Expression


class FieldSelector:
    """Reads the field of a name from records that have attributes or are mappings.

    The first record decides between attribute and key; from then on reading is one
    call of ``operator.attrgetter`` or ``operator.itemgetter``. It pickles as its name.

    Args:
        field: The field's name.
        parameter: The parameter that the name was given for; errors name it.
        place: The user's ``file:line`` where that is written, for errors.

    Example:
        >>> select = FieldSelector("city", "key")
        >>> select({"city": "Oslo"})
        'Oslo'
    """

    __slots__ = ("_read", "field", "parameter", "place")
    # The key is the value itself, not a tuple of one.
    is_alone = True

    def __init__(self, field: str, parameter: str, place: str = "") -> None:
        self.field: str = field
        self.parameter: str = parameter
        self.place: str = place
        self._read: Callable[[Any], Any] = self._decide

    @property
    def fields(self) -> tuple[str, ...]:
        """The field, as one of several would be."""
        return (self.field,)

    def __call__(self, record: Any) -> Any:
        """Return the field of ``record``.

        Raises:
            RecordTypeError: If the record has no such field, or is of another form
                than the first one.
        """
        try:
            return self._read(record)
        except (AttributeError, KeyError, TypeError) as error:
            raise self._no_field(record) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return FieldSelector, (self.field, self.parameter, self.place)

    def __repr__(self) -> str:
        return f"FieldSelector({self.field!r})"

    def __str__(self) -> str:
        return f"{self.field!r} ({self.place})" if self.place else repr(self.field)

    def getter(self, record: Any) -> Callable[[Any], Any]:
        """Return the fastest reader for records like ``record``.

        For loops over a whole run. It raises what ``operator.attrgetter`` raises; call
        the selector itself with the offending record to get an error that explains.
        """
        if isinstance(record, Mapping):
            return operator.itemgetter(self.field)
        return operator.attrgetter(self.field)

    def _decide(self, record: Any) -> Any:
        getter = self.getter(record)
        value = getter(record)
        self._read = getter
        return value

    def _no_field(self, record: Any) -> RecordTypeError:
        names = ", ".join(_field_names(record)) or "none that have names"
        place = f", which {self.place} asks for" if self.place else ""
        kind = type(record).__qualname__
        return RecordTypeError(
            self.parameter,
            f"a record of type {kind} has no field {self.field!r}{place}",
            f"Its fields are: {names}. All records must have the same fields.",
        )


class FieldsSelector:
    """Reads several fields of a record, as a tuple.

    Args:
        selectors: Read the single fields.

    Attributes:
        fields: Their names.

    Example:
        >>> parts = FieldSelector("city", "key"), FieldSelector("day", "key")
        >>> FieldsSelector(parts)({"city": "Oslo", "day": 3})
        ('Oslo', 3)
    """

    __slots__ = ("fields", "selectors")
    is_alone = False

    def __init__(self, selectors: tuple[FieldSelector, ...]) -> None:
        self.selectors: tuple[FieldSelector, ...] = selectors
        self.fields: tuple[str, ...] = tuple(each.field for each in selectors)

    def __call__(self, record: Any) -> tuple[Any, ...]:
        """Return the fields of ``record``.

        Raises:
            RecordTypeError: As `FieldSelector`.
        """
        return tuple([read(record) for read in self.selectors])

    def __reduce__(self) -> tuple[Any, ...]:
        return FieldsSelector, (self.selectors,)

    def __repr__(self) -> str:
        return f"FieldsSelector({', '.join(map(repr, self.fields))})"

    def __str__(self) -> str:
        return ", ".join(map(str, self.selectors))

    def getter(self, record: Any) -> Callable[[Any], Any]:
        """Return the fastest reader for records like ``record``; as `FieldSelector`."""
        if isinstance(record, Mapping):
            return operator.itemgetter(*self.fields)
        return operator.attrgetter(*self.fields)


def field_or_function(selector: object, parameter: str) -> Callable[[Any], Any]:
    """Return a function of a record, from a field's name or a function.

    Args:
        selector: A field name, or a sync function of one record.
        parameter: The name of the parameter that ``selector`` was given for.

    Raises:
        InvalidArgumentError: If the name is empty.
        WrongTypeError: If it is neither, or an ``async def`` function.

    Example:
        >>> field_or_function("city", "key")({"city": "Oslo"})
        'Oslo'
        >>> field_or_function(len, "key")("Oslo")
        4
    """
    if isinstance(selector, str):
        if not selector:
            raise InvalidArgumentError(
                parameter, "the field name is empty", "Give the name of a field."
            )
        return FieldSelector(selector, parameter, caller_location())
    refuse_called(selector, parameter)
    if not callable(selector):
        raise WrongTypeError(
            parameter,
            f"{selector!r} is neither a field name nor a function",
            'Write "name" or lambda record: record[0].'
            if not isinstance(selector, list | tuple)
            else 'Write "name"; key_by("a", "b") takes several, one by one.',
        )
    checked = check_sync_function(selector, parameter, arity=1)
    refuse_generator(selector, parameter, "Return one value.")
    return checked


def is_expression(value: object) -> bool:
    """Say whether a value is an expression of pyarrow, without importing that."""
    compute = sys.modules.get("pyarrow.compute")
    return compute is not None and isinstance(value, compute.Expression)


class ExpressionSelector:
    """Reads from a record whether an expression is true for it.

    Args:
        expression: An expression of `pyarrow.compute`.
        reader: What can evaluate it for a record; an operator has one of its own.
    """

    __slots__ = ("expression", "reader")

    def __init__(self, expression: Any, reader: Any = None) -> None:
        self.expression: Any = expression
        self.reader: Any = reader

    def __call__(self, record: Any) -> Any:
        """Return whether it is true, None if it is neither true nor false.

        Raises:
            UsageError: If nothing can evaluate it here.
        """
        if self.reader is None:
            raise UsageError(
                f"where={self.expression} is an expression, which only aggregate(...) of "
                "a stream evaluates. Use a field's name or a function here."
            )
        return self.reader(record)

    def __reduce__(self) -> tuple[Any, ...]:
        return ExpressionSelector, (self.expression,)

    def __repr__(self) -> str:
        return str(self.expression)


def why_rows(key: Any) -> str:
    """Return the key function that asks for rows; "" if the key is fields."""
    return "" if getattr(key, "fields", ()) else f"key function {describe(key)}"


def condition(where: object) -> Callable[[Any], Any]:
    """Return a function of a record that says whether it counts.

    Args:
        where: A field's name, a function or an expression.

    Raises:
        InvalidArgumentError: As `field_or_function`.
        WrongTypeError: As `field_or_function`.
    """
    if is_expression(where):
        return ExpressionSelector(where)
    return field_or_function(where, "where")


class SelectorWhere:
    """Reads a value from the records that satisfy a condition, None from the others.

    Args:
        read: Reads the value.
        where: Says whether the record counts.

    Example:
        >>> read = SelectorWhere(field_or_function("n", "field"), lambda r: r["ok"])
        >>> read({"n": 1, "ok": True}), read({"n": 2, "ok": False})
        (1, None)
    """

    __slots__ = ("read", "where")

    def __init__(self, read: Callable[[Any], Any], where: Callable[[Any], Any]) -> None:
        self.read: Callable[[Any], Any] = read
        self.where: Callable[[Any], Any] = where

    def __call__(self, record: Any) -> Any:
        """Return the value, or None."""
        return self.read(record) if self.where(record) else None

    def __repr__(self) -> str:
        return selector_text(self)


def selector_where(
    selector: object, parameter: str, where: object | None
) -> Callable[[Any], Any]:
    """Return a function of a record that gives None where a condition does not hold.

    Args:
        selector: A field name, or a sync function of one record.
        parameter: The name of the parameter that ``selector`` was given for.
        where: Likewise, or an expression, or None for all records.

    Raises:
        InvalidArgumentError: As `field_or_function`.
        WrongTypeError: As `field_or_function`.
    """
    read = field_or_function(selector, parameter)
    if where is None:
        return read
    return SelectorWhere(read, condition(where))


def selector_text(selector: Any) -> str:
    """Return what reads a record in the words of its user, for `explain` and messages.

    Example:
        >>> selector_text(selector_where("price", "field", "is_paid"))
        "'price', where='is_paid'"
    """
    if type(selector) is FieldSelector:
        return repr(selector.field)
    if type(selector) is ExpressionSelector:
        return repr(selector)
    if type(selector) is SelectorWhere:
        read, where = selector_text(selector.read), selector_text(selector.where)
        return f"{read}, where={where}"
    name: str = getattr(selector, "__qualname__", repr(selector))
    return name.rpartition(".")[2]


def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except (NameError, TypeError):
        # A name that is known only to a checker.
        return {}


def _field_names(record: Any) -> list[str]:
    if isinstance(record, Mapping):
        return [str(name) for name in record]
    names = fields_of(record)
    return list(getattr(record, "__dict__", {}) if names is None else names)


# Which fields the records of a stream have, where that is known before it runs.


# So many records of a collection are looked at; of a longer one nothing is known.
_RECORDS_MAX: Final = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class RecordFields:
    """The fields that records can have.

    Attributes:
        names: Their names, for messages.
        readable: Other names that can be read: properties and methods.
        are_keys: Whether the records are dicts, whose fields may have any names.
        types: The known types of some fields: an annotation, or the type of a column of
            Arrow, which is the same one wherever the field goes unchanged.

    Example:
        >>> fields = RecordFields.of_records([{"user": "a", "amount": 2}])
        >>> fields.names
        ('user', 'amount')
    """

    names: tuple[str, ...]
    readable: frozenset[str] = frozenset()
    are_keys: bool = False
    types: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_type(cls, kind: type) -> RecordFields | None:
        """Return the fields of a record class, None if instances may have more.

        So may those of subclasses, and those that ``__post_init__`` adds to.
        """
        if kind.__subclasses__() or hasattr(kind, "__post_init__"):
            return None
        return cls._of_class(kind)

    @classmethod
    def _of_class(cls, kind: type) -> RecordFields | None:
        if hasattr(kind, "__getattr__"):
            return None
        names = fields_of_class(kind)
        if names is None:
            return None
        return cls(names, frozenset(dir(kind)), types=_hints(kind))

    @classmethod
    def of_records(cls, records: Any) -> RecordFields | None:
        """Return the fields of a list's or tuple's items, None if one may have any."""
        if (
            not isinstance(records, list | tuple)
            or not 0 < len(records) <= _RECORDS_MAX
        ):
            return None
        mappings = [one for one in records if isinstance(one, Mapping)]
        kinds = {type(one) for one in records if not isinstance(one, Mapping)}
        found = [cls._of_class(kind) for kind in kinds]
        known = [fields for fields in found if fields is not None]
        # A mapping of the user's own class may invent values.
        if len(known) < len(found) or not all(type(one) is dict for one in mappings):
            return None
        if not all(isinstance(name, str) for one in mappings for name in one):
            return None
        names = dict.fromkeys(name for one in mappings for name in one)
        # What an instance has beside the fields of its class.
        own = {name for one in records for name in getattr(one, "__dict__", ())}
        own_fields = cls(tuple(names), frozenset(own), are_keys=bool(mappings))
        return cls.union([own_fields, *known])

    def renewed(
        self, names: Iterable[str], parameter: str, types: Mapping[str, Any]
    ) -> RecordFields:
        """Return the fields of dicts and NamedTuples made of records.

        Args:
            names: Those of what is made.
            parameter: Under which name a new one was given.
            types: Their known types.

        Raises:
            InvalidArgumentError: If a new name cannot be that of a field.
        """
        names = tuple(names)
        for name in names:
            if name not in self.names:
                self.check_new(name, parameter)
        # A tuple has names of its own, too.
        readable = frozenset(dir(tuple)) | frozenset(dir(dict))
        return RecordFields(names, readable, self.are_keys, types)

    @classmethod
    def union(cls, known: list[RecordFields]) -> RecordFields | None:
        """Return the fields of all together, None for none."""
        if not known:
            return None
        names: dict[str, None] = {}
        readable: frozenset[str] = frozenset()
        for fields in known:
            names |= dict.fromkeys(fields.names)
            readable |= fields.readable
        are_keys = all(fields.are_keys for fields in known)
        # What all say; one that has no such field says nothing about its type.
        types = {
            name: kind
            for name, kind in known[0].types.items()
            if all(fields.types.get(name) == kind for fields in known)
        }
        return cls(tuple(names), readable, are_keys, types)

    def check_new(self, name: str, parameter: str) -> None:
        """Refuse a name for a field that no record can have.

        Raises:
            InvalidArgumentError: If it is not a public identifier, and the records are
                not known to be dicts.
        """
        if self.are_keys or is_field_name(name):
            return
        raise InvalidArgumentError(
            parameter,
            f"{name!r} cannot be a field of a NamedTuple, which the records become",
            "Use a Python name that does not begin with an underscore, or dicts as "
            "records.",
        )

    def check(self, selector: object, parameter: str) -> None:
        """Refuse a field that no record has.

        Args:
            selector: The user's field names; functions are not looked at.
            parameter: Under which name.

        Raises:
            InvalidArgumentError: Naming the field and those that there are.
        """
        if isinstance(selector, FieldsSelector):
            for each in selector.selectors:
                self.check(each, parameter)
        if not isinstance(selector, FieldSelector):
            return
        # Attributes of attributes can be read as well.
        first = selector.field.partition(".")[0]
        if not {selector.field, first}.isdisjoint((*self.names, *self.readable)):
            return
        raise InvalidArgumentError(
            parameter,
            f"the records of this stream have no field {selector.field!r}",
            f"Their fields are: {', '.join(self.names) or 'none'}.",
        )
