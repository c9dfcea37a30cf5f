"""Flink's serializers of single values: numbers, booleans, strings, bytes."""

from __future__ import annotations

import struct
from typing import Final, Generic, TypeVar

from aiomailbox.errors import CorruptStreamError, InvalidArgumentError, WrongTypeError
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.strings import read_string, write_string

__all__ = [
    "BOOLEAN_SERIALIZER",
    "BYTES_SERIALIZER",
    "BYTE_SERIALIZER",
    "DOUBLE_SERIALIZER",
    "FLOAT_SERIALIZER",
    "INT_SERIALIZER",
    "LONG_SERIALIZER",
    "SHORT_SERIALIZER",
    "STRING_SERIALIZER",
    "SingletonSerializer",
]

S = TypeVar("S")


class _IntegerSerializer:
    """A signed big-endian integer of fixed width."""

    __slots__ = ("_form", "length_bytes", "name")

    def __init__(self, name: str, code: str) -> None:
        self.name: str = name
        self._form = struct.Struct(f">{code}")
        self.length_bytes: int = self._form.size

    def __repr__(self) -> str:
        return f"<{self.name} serializer>"

    def write(self, value: int, output: bytearray) -> None:
        """Append an integer."""
        try:
            output += self._form.pack(value)
        except struct.error as error:
            raise _refusal(self.name, value, int, 8 * self.length_bytes) from error

    def read(self, source: ByteReader) -> int:
        """Read an integer."""
        value: int = source.unpack(self._form)[0]
        return value


class _RealSerializer:
    """An IEEE 754 number; every bit of a double travels as it is."""

    __slots__ = ("_form", "length_bytes", "name")

    def __init__(self, name: str, code: str) -> None:
        self.name: str = name
        self._form = struct.Struct(f">{code}")
        self.length_bytes: int = self._form.size

    def __repr__(self) -> str:
        return f"<{self.name} serializer>"

    def write(self, value: float, output: bytearray) -> None:
        """Append a number."""
        try:
            output += self._form.pack(value)
        except (struct.error, OverflowError) as error:
            raise _refusal(self.name, value, float, 8 * self.length_bytes) from error

    def read(self, source: ByteReader) -> float:
        """Read a number."""
        value: float = source.unpack(self._form)[0]
        return value


class _BooleanSerializer:
    """One byte, 0 or 1."""

    __slots__ = ()
    length_bytes: Final = 1

    def write(self, value: bool, output: bytearray) -> None:
        """Append a boolean."""
        if value is not True and value is not False:
            raise WrongTypeError("boolean", f"{value!r} is neither True nor False")
        output.append(value)

    def read(self, source: ByteReader) -> bool:
        """Read a boolean."""
        return source.read_bool()


class _StringSerializer:
    """A string in Flink's encoding; see `aiomailbox.records.strings`."""

    __slots__ = ()

    def write(self, value: str, output: bytearray) -> None:
        """Append a string."""
        if not isinstance(value, str):
            raise WrongTypeError("string", f"{value!r} is a {type(value).__name__}")
        write_string(value, output)

    def read(self, source: ByteReader) -> str:
        """Read a string."""
        text = read_string(source)
        if text is None:
            raise CorruptStreamError("there is no string where one has to be")
        return text


class _BytesSerializer:
    """A length of 32 bits, and the bytes."""

    __slots__ = ()

    def write(self, value: bytes, output: bytearray) -> None:
        """Append bytes."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise WrongTypeError("bytes", f"{value!r} is a {type(value).__name__}")
        INT_SERIALIZER.write(len(value), output)
        output += value

    def read(self, source: ByteReader) -> bytes:
        """Read bytes; a copy."""
        return bytes(source.take(source.read_count("bytes")))


class SingletonSerializer(Generic[S]):
    """The one value of a type that has no other: a single zero byte.

    Args:
        value: What is read; what is written is not looked at.

    Concept:
        Flink, ``VoidNamespaceSerializer``, ``GlobalWindow.Serializer``.

    Example:
        >>> SingletonSerializer("everything").read(ByteReader(bytes(1)))
        'everything'
    """

    __slots__ = ("_value",)
    length_bytes: Final = 1

    def __init__(self, value: S) -> None:
        self._value = value

    def write(self, value: S, output: bytearray) -> None:
        """Append the byte."""
        output.append(0)

    def read(self, source: ByteReader) -> S:
        """Pass over the byte.

        Raises:
            CorruptStreamError: If it is not zero.
        """
        found = source.read_byte()
        if found:
            raise CorruptStreamError(f"a value without content is 0, not {found}")
        return self._value


INT_SERIALIZER: Final = _IntegerSerializer("int", "i")
LONG_SERIALIZER: Final = _IntegerSerializer("long", "q")
SHORT_SERIALIZER: Final = _IntegerSerializer("short", "h")
BYTE_SERIALIZER: Final = _IntegerSerializer("byte", "b")
DOUBLE_SERIALIZER: Final = _RealSerializer("double", "d")
FLOAT_SERIALIZER: Final = _RealSerializer("float", "f")
BOOLEAN_SERIALIZER: Final = _BooleanSerializer()
STRING_SERIALIZER: Final = _StringSerializer()
BYTES_SERIALIZER: Final = _BytesSerializer()


def _refusal(
    name: str, value: object, wanted: type, bits: int
) -> InvalidArgumentError | WrongTypeError:
    if isinstance(value, wanted):
        return InvalidArgumentError(name, f"{value!r} does not fit in {bits} bits")
    return WrongTypeError(name, f"{value!r} is a {type(value).__name__}")
