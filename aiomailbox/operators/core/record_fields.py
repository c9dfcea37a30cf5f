"""Which fields the records of a stream have, where that is known before it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.operators.core.selectors import FieldSelector, FieldsSelector
from aiomailbox.records.named_tuples import is_field_name

# So many records of a collection are looked at; of a longer one nothing is known.
_RECORDS_MAX: Final = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class RecordFields:
    """The fields that records can have.

    Attributes:
        names: What to tell people.
        readable: What else can be read by name: properties and methods.
        are_keys: Whether the records are dicts, whose fields may have any names.

    Example:
        >>> fields = RecordFields.of_records([{"user": "a", "amount": 2}])
        >>> fields.names
        ('user', 'amount')
    """

    names: tuple[str, ...]
    readable: frozenset[str] = frozenset()
    are_keys: bool = False

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
        if dataclasses.is_dataclass(kind):
            names = tuple(field.name for field in dataclasses.fields(kind))
        elif issubclass(kind, msgspec.Struct):
            names = kind.__struct_fields__
        elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
            names = tuple(kind._fields)
        else:
            return None
        return cls(names, frozenset(dir(kind)))

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
        known = [cls._of_class(kind) for kind in kinds]
        # A mapping of the user's own class may invent values.
        if None in known or not all(type(one) is dict for one in mappings):
            return None
        if not all(isinstance(name, str) for one in mappings for name in one):
            return None
        names = dict.fromkeys(name for one in mappings for name in one)
        # What an instance has beside the fields of its class.
        own = {name for one in records for name in getattr(one, "__dict__", ())}
        own_fields = cls(tuple(names), frozenset(own), are_keys=bool(mappings))
        return cls.union([own_fields, *known])

    @classmethod
    def union(cls, several: list[RecordFields | None]) -> RecordFields | None:
        """Return the fields of all together, None if one of them is not known."""
        names: dict[str, None] = {}
        readable: frozenset[str] = frozenset()
        for fields in several:
            if fields is None:
                return None
            names |= dict.fromkeys(fields.names)
            readable |= fields.readable
        are_keys = all(fields is not None and fields.are_keys for fields in several)
        return cls(tuple(names), readable, are_keys) if several else None

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
            selector: What the user chose by; functions are not looked at.
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
