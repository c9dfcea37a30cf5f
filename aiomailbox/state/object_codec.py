"""Python objects as bytes: MessagePack, with the extensions of `aiomailbox.records`."""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

from msgspec.msgpack import Decoder, Encoder

from aiomailbox.errors import CorruptStreamError, StateError, WrongTypeError
from aiomailbox.records.mapping import map_all
from aiomailbox.records.python_types import PythonTypes
from aiomailbox.state.state_classes import StateClasses

__all__ = ["ObjectCodec"]

_PLAIN: Final = frozenset({bool, bytes, float, int, str, type(None)})


class ObjectCodec:
    """Encodes and decodes Python objects.

    It knows bool, int, float, complex, str, bytes, None, list, tuple, dict, set,
    frozenset, bytearray, datetime, date, time, timedelta, Decimal, UUID, enums,
    dataclasses, NamedTuples and `msgspec.Struct`; of all others it says what to do.

    Args:
        classes: Those that objects may have; new ones are noted there.

    Attributes:
        classes: The same.

    Example:
        >>> codec = ObjectCodec()
        >>> codec.decode(codec.encode({("a", 1): [2**80, None]}))
        {('a', 1): [1208925819614629174706176, None]}
    """

    __slots__ = ("_decode", "_encode", "_prepare", "classes")

    def __init__(self, classes: StateClasses | None = None) -> None:
        self.classes: StateClasses = classes or StateClasses()
        types = PythonTypes(self.classes)
        self._prepare = types.prepare
        self._encode = Encoder().encode
        self._decode = Decoder(ext_hook=types.decode_extension).decode

    def encode(self, value: Any) -> bytes:
        """Return ``value`` as bytes.

        Raises:
            StateError: If it holds something of an unknown type, or is too deep.
        """
        kind = type(value)
        if kind in _PLAIN or (kind is list and _PLAIN.issuperset(map(type, value))):
            try:
                return self._encode(value)
            except (OverflowError, UnicodeEncodeError):
                # An int beyond 64 bits, or a text that is none: the long way.
                pass
        try:
            return self._encode(self._prepare(value))
        except (WrongTypeError, UnicodeEncodeError) as error:
            raise StateError(
                f"a {kind.__qualname__} cannot be kept: {error}"
            ) from error

    def encode_all(self, values: list[Any]) -> list[bytes]:
        """Return each of the values as bytes.

        Raises:
            StateError: If one holds something of an unknown type, or is too deep.
        """
        kinds = set(map(type, values))
        if kinds == {list}:
            kinds = set(map(type, chain.from_iterable(values)))
        if _PLAIN.issuperset(kinds):
            try:
                return map_all(self._encode, values)
            except (OverflowError, UnicodeEncodeError):
                pass
        return map_all(self.encode, values)

    def decode(self, data: bytes | memoryview) -> Any:
        """Return the value that was encoded.

        Raises:
            CorruptStreamError: If the bytes are none that `encode` has made, or hold a
                class that was not declared.
        """
        try:
            return self._decode(data)
        except CorruptStreamError:
            raise
        except Exception as error:
            # Whatever the parts of values raise that cannot be made of such bytes.
            raise CorruptStreamError(
                f"kept state cannot be read: {type(error).__name__}: {error}"
            ) from error
