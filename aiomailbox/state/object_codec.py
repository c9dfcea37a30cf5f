"""Python objects as bytes that say themselves what they are: msgpack with extensions.

Theory of operation: numbers, text, bytes, lists and dicts of such keys are plain
msgpack. Whatever msgpack would change (a tuple becomes a list, a dataclass a dict) is
an extension whose payload is msgpack again. Objects name their class, and are made
from their fields without running any of the class's code but its defaults, so reading
bytes can name no function to call.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import uuid
import zoneinfo
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from typing import Any, Final

import msgspec
from msgspec.msgpack import Decoder, Encoder, Ext

from aiomailbox.errors import StateError
from aiomailbox.state.schema import class_reference, is_record_class

__all__ = ["ObjectCodec"]

_TUPLE, _DICT, _SET, _FROZENSET, _INT, _OBJECT, _ENUM = range(1, 8)
_DATETIME, _DATE, _TIME, _TIMEDELTA, _DECIMAL, _UUID, _COMPLEX = range(16, 23)

_PLAIN: Final = frozenset({bool, bytes, float, int, str, type(None)})
_INT64: Final = range(-(2**63), 2**63)


class ObjectCodec:
    """Encodes and decodes Python objects.

    It knows bool, int, float, complex, str, bytes, None, list, tuple, dict, set,
    frozenset, datetime, date, time, timedelta, Decimal, UUID, enums, dataclasses,
    NamedTuples and `msgspec.Struct`; of all others it says how to make them known.

    Attributes:
        classes: The classes met so far, by ``module:name``.

    Example:
        >>> codec = ObjectCodec()
        >>> codec.decode(codec.encode({("a", 1): [2**80, None]}))
        {('a', 1): [1208925819614629174706176, None]}
    """

    __slots__ = ("_decode", "_encode", "classes")

    def __init__(self) -> None:
        self.classes: dict[str, type] = {}
        self._encode = Encoder().encode
        self._decode = Decoder(ext_hook=self._unpack).decode

    def encode(self, value: Any) -> bytes:
        """Return ``value`` as bytes.

        Raises:
            StateError: If it holds something of an unknown type.
        """
        kind = type(value)
        if kind in _PLAIN or (kind is list and _PLAIN.issuperset(map(type, value))):
            try:
                return self._encode(value)
            except OverflowError:
                # An int beyond 64 bits somewhere: the long way.
                pass
        return self._encode(self._pack(value))

    def decode(self, data: bytes) -> Any:
        """Return the value that was encoded.

        Raises:
            StateError: If a class is gone, or has no room for what was written.
        """
        return self._decode(data)

    def _pack(self, value: Any) -> Any:
        kind = type(value)
        if kind is int and value not in _INT64:
            length = value.bit_length() // 8 + 1
            return Ext(_INT, value.to_bytes(length, "big", signed=True))
        if kind in _PLAIN:
            return value
        if kind is list:
            return [self._pack(one) for one in value]
        if kind is dict:
            return self._pack_dict(value)
        special = _SPECIAL.get(kind)
        if special is not None:
            code, parts = special
            return Ext(code, self._encode([self._pack(part) for part in parts(value)]))
        return self._pack_object(kind, value)

    def _pack_dict(self, value: dict[Any, Any]) -> Any:
        if _PLAIN.issuperset(map(type, value)) and all(
            type(key) is not int or key in _INT64 for key in value
        ):
            return {key: self._pack(one) for key, one in value.items()}
        pairs = [self._pack(part) for pair in value.items() for part in pair]
        return Ext(_DICT, self._encode(pairs))

    def _pack_object(self, kind: type, value: Any) -> Any:
        reference = self._refer(kind)
        if isinstance(value, Enum):
            return Ext(_ENUM, self._encode([reference, self._pack(value.value)]))
        names = _field_names(kind)
        fields = {name: self._pack(getattr(value, name)) for name in names}
        return Ext(_OBJECT, self._encode([reference, fields]))

    def _refer(self, kind: type) -> str:
        reference = class_reference(kind)
        known = self.classes.get(reference)
        if known is kind:
            return reference
        if known is not None:
            raise StateError(f"two classes are called {reference}: rename one")
        if not is_record_class(kind):
            raise StateError(
                f"a {kind.__qualname__} cannot be kept as bytes. Make it a dataclass, "
                "a NamedTuple or a msgspec.Struct, or give the state's descriptor "
                "serializer=PickleSerializer()."
            )
        self.classes[reference] = kind
        return reference

    def _unpack(self, code: int, data: memoryview) -> Any:
        if code == _INT:
            return int.from_bytes(data, "big", signed=True)
        parts = self._decode(data)
        if code == _OBJECT:
            return _make(self.resolve(parts[0]), parts[1])
        if code == _ENUM:
            return self.resolve(parts[0])(parts[1])
        return _MAKERS[code](parts)

    def resolve(self, reference: str) -> Any:
        """Return the class of that name, imported if it was not met yet.

        Raises:
            StateError: If it is gone, or is no class that objects are kept of.
        """
        known = self.classes.get(reference)
        if known is not None:
            return known
        module, _, name = reference.partition(":")
        found: Any = None
        try:
            found = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise StateError(f"the class {reference} of kept state is gone") from error
        if not isinstance(found, type) or not is_record_class(found):
            raise StateError(f"{reference} is no dataclass, NamedTuple, struct or enum")
        self.classes[reference] = found
        return found


def _field_names(kind: Any) -> Any:
    """Return the names of the fields of a class of records."""
    if issubclass(kind, tuple):
        return kind._fields
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    return [one.name for one in dataclasses.fields(kind)]


def _make(kind: Any, fields: dict[str, Any]) -> Any:
    names = _field_names(kind)
    kept = {name: value for name, value in fields.items() if name in names}
    try:
        if not dataclasses.is_dataclass(kind):
            return kind(**kept)
        return _make_dataclass(kind, kept)
    except TypeError as error:
        raise StateError(
            f"a {class_reference(kind)} cannot be made of the fields "
            f"{sorted(fields)} that were kept. Give new fields a default."
        ) from error


def _make_dataclass(kind: Any, kept: dict[str, Any]) -> Any:
    made = object.__new__(kind)
    for one in dataclasses.fields(kind):
        if one.name in kept:
            value = kept[one.name]
        elif one.default is not dataclasses.MISSING:
            value = one.default
        elif one.default_factory is not dataclasses.MISSING:
            value = one.default_factory()
        else:
            raise TypeError(one.name)
        object.__setattr__(made, one.name, value)
    return made


def _zone(value: dt.datetime | dt.time) -> str | None:
    return getattr(value.tzinfo, "key", None)


def _datetime(parts: list[Any]) -> dt.datetime:
    value = dt.datetime.fromisoformat(parts[0]).replace(fold=parts[2])
    return (
        value if parts[1] is None else value.replace(tzinfo=zoneinfo.ZoneInfo(parts[1]))
    )


def _time(parts: list[Any]) -> dt.time:
    value = dt.time.fromisoformat(parts[0]).replace(fold=parts[2])
    return (
        value if parts[1] is None else value.replace(tzinfo=zoneinfo.ZoneInfo(parts[1]))
    )


def _dict(parts: list[Any]) -> dict[Any, Any]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


# Per type its code and what it is made of.
_SPECIAL: Final[dict[type, tuple[int, Callable[[Any], Any]]]] = {
    tuple: (_TUPLE, list),
    set: (_SET, list),
    frozenset: (_FROZENSET, list),
    dt.datetime: (_DATETIME, lambda v: (v.isoformat(), _zone(v), v.fold)),
    dt.date: (_DATE, lambda v: (v.isoformat(),)),
    dt.time: (_TIME, lambda v: (v.isoformat(), _zone(v), v.fold)),
    dt.timedelta: (_TIMEDELTA, lambda v: (v.days, v.seconds, v.microseconds)),
    Decimal: (_DECIMAL, lambda v: (str(v),)),
    uuid.UUID: (_UUID, lambda v: (v.bytes,)),
    complex: (_COMPLEX, lambda v: (v.real, v.imag)),
}

_MAKERS: Final[dict[int, Callable[[list[Any]], Any]]] = {
    _TUPLE: tuple,
    _DICT: _dict,
    _SET: set,
    _FROZENSET: frozenset,
    _DATETIME: _datetime,
    _DATE: lambda parts: dt.date.fromisoformat(parts[0]),
    _TIME: _time,
    _TIMEDELTA: lambda parts: dt.timedelta(*parts),
    _DECIMAL: lambda parts: Decimal(parts[0]),
    _UUID: lambda parts: uuid.UUID(bytes=parts[0]),
    _COMPLEX: lambda parts: complex(*parts),
}
