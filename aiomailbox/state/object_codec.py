"""Python objects as bytes that say themselves what they are: msgpack with extensions.

Theory of operation: numbers, text, bytes, lists and dicts of such keys are plain
msgpack. Whatever msgpack would change (a tuple becomes a list, a dataclass a dict) is
an extension whose payload is msgpack again. Objects name their class, and are made
from their fields without running any of the class's code but its defaults, so reading
bytes can name no function to call.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from enum import Enum
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec.msgpack import Decoder, Encoder, Ext

from aiomailbox.errors import StateError
from aiomailbox.records import PREPARED_TYPES, decode_extension, map_all, prepare
from aiomailbox.state.schema import class_reference, is_record_class

__all__ = ["ObjectCodec"]

# Beside those of `aiomailbox.records`, which know nothing of classes.
_TUPLE, _DICT, _SET, _FROZENSET, _OBJECT, _ENUM = range(32, 38)

_PLAIN: Final = frozenset({bool, bytes, float, int, str, type(None)})
# What a dict may have as keys to be one in msgpack; an int may be too large.
_KEYS: Final = _PLAIN - {int}


class ObjectCodec:
    """Encodes and decodes Python objects.

    It knows bool, int, float, complex, str, bytes, None, list, tuple, dict, set,
    frozenset, bytearray, datetime, date, time, timedelta, Decimal, UUID, enums,
    dataclasses, NamedTuples and `msgspec.Struct`; of all others it says what to do.

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

    def encode_all(self, values: list[Any]) -> list[bytes]:
        """Return each of the values as bytes.

        Raises:
            StateError: If one holds something of an unknown type.
        """
        kinds = set(map(type, values))
        if kinds == {list}:
            kinds = set(map(type, chain.from_iterable(values)))
        if _PLAIN.issuperset(kinds):
            try:
                return map_all(self._encode, values)
            except OverflowError:
                pass
        return map_all(self.encode, values)

    def decode(self, data: bytes) -> Any:
        """Return the value that was encoded.

        Raises:
            StateError: If a class is gone, or has no room for what was written.
        """
        return self._decode(data)

    def _pack(self, value: Any) -> Any:
        kind = type(value)
        if kind is list:
            return [self._pack(one) for one in value]
        if kind is dict:
            return self._pack_dict(value)
        code = _CONTAINERS.get(kind)
        if code is not None:
            return Ext(code, self._encode([self._pack(one) for one in value]))
        if kind in _PLAIN or kind in PREPARED_TYPES:
            return prepare(value)
        return self._pack_object(kind, value)

    def _pack_dict(self, value: dict[Any, Any]) -> Any:
        if _KEYS.issuperset(map(type, value)):
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
        if code < _TUPLE:
            return decode_extension(code, data)
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


def _dict(parts: list[Any]) -> dict[Any, Any]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


_CONTAINERS: Final[dict[type, int]] = {tuple: _TUPLE, set: _SET, frozenset: _FROZENSET}

_MAKERS: Final[dict[int, Callable[[list[Any]], Any]]] = {
    _TUPLE: tuple,
    _DICT: _dict,
    _SET: set,
    _FROZENSET: frozenset,
}
