"""Serializers of one type each, byte for byte as Flink writes them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from aiomailbox.errors import CorruptStreamError, InvalidArgumentError, WrongTypeError
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.typevars import K, T, V

# Strings as Flink writes them: UTF-16 code units in seven-bit groups.
#
# Theory of operation: a string is its length plus one, then each of its UTF-16 code
# units, all as varints: seven bits a byte, the least significant first, 0x80 set on all
# but the last. Zero stands for no string. So ASCII text is its own encoding, which is
# what the fast paths live on.


_VARINT_BYTES_MAX: Final = 5


_VARINT_MAX: Final = 2**32 - 1


_UNIT_MAX: Final = 0xFFFF


_JAVA_UTF_BYTES_MAX: Final = 0xFFFF


def write_varint(value: int, output: bytearray) -> None:
    """Append a number of 0 to 2**32 - 1, seven bits a byte.

    Example:
        >>> output = bytearray()
        >>> write_varint(300, output)
        >>> output.hex()
        'ac02'
    """
    if not 0 <= value <= _VARINT_MAX:
        raise InvalidArgumentError("value", f"{value} is not within 0 .. {_VARINT_MAX}")
    while value >= 0x80:
        output.append(value & 0x7F | 0x80)
        value >>= 7
    output.append(value)


def read_varint(source: ByteReader) -> int:
    """Read what `write_varint` wrote.

    Raises:
        CorruptStreamError: If it does not end, or exceeds 32 bits.
    """
    value = 0
    for group in range(_VARINT_BYTES_MAX):
        byte = source.read_byte()
        value |= (byte & 0x7F) << (7 * group)
        if byte >= 0:
            if value > _VARINT_MAX:
                break
            return value
    raise CorruptStreamError("a number of variable length exceeds 32 bits")


def write_string(text: str | None, output: bytearray) -> None:
    """Append a string, or None, in Flink's encoding; lone surrogates are kept.

    Example:
        >>> output = bytearray()
        >>> write_string("hé", output)
        >>> output.hex()
        '0368e901'
    """
    if text is None:
        output.append(0)
        return
    if text.isascii():
        write_varint(len(text) + 1, output)
        output += text.encode("ascii")
        return
    units = _code_units(text)
    write_varint(len(units) + 1, output)
    append = output.append
    for unit in units:
        while unit >= 0x80:
            append(unit & 0x7F | 0x80)
            unit >>= 7
        append(unit)


def read_string(source: ByteReader) -> str | None:
    """Read what `write_string` wrote.

    Raises:
        CorruptStreamError: If the bytes end, or a code unit exceeds 16 bits.
    """
    length = read_varint(source) - 1
    if length < 0:
        return None
    # Every code unit has a byte at least: nothing is made for a length that lies.
    ascii_bytes = bytes(source.peek(length))
    if ascii_bytes.isascii():
        source.take(length)
        return ascii_bytes.decode("ascii")
    units = [_read_unit(source) for _ in range(length)]
    encoded = struct.pack(f">{length}H", *units)
    return encoded.decode("utf-16-be", "surrogatepass")


def write_java_utf(text: str, output: bytearray) -> None:
    """Append a short string in Java's modified UTF-8, after its length in 16 bits.

    Raises:
        InvalidArgumentError: If it exceeds 65,535 bytes.
    """
    encoded = bytearray()
    for unit in _code_units(text):
        if unit:
            encoded += chr(unit).encode("utf-8", "surrogatepass")
        else:
            encoded += b"\xc0\x80"
    if len(encoded) > _JAVA_UTF_BYTES_MAX:
        raise InvalidArgumentError(
            "text", f"{len(encoded)} bytes exceed the {_JAVA_UTF_BYTES_MAX} that fit"
        )
    output += len(encoded).to_bytes(2, "big") + encoded


def read_java_utf(source: ByteReader) -> str:
    """Read what `write_java_utf` wrote.

    Raises:
        CorruptStreamError: If it is not that encoding.
    """
    encoded = bytes(source.take(source.read_short() & _UNIT_MAX))
    try:
        text = encoded.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise CorruptStreamError(f"a name is not modified UTF-8: {error}") from error
    # Astral characters travel as two surrogates: put the pairs together.
    units = text.encode("utf-16-be", "surrogatepass")
    return units.decode("utf-16-be", "surrogatepass")


def _code_units(text: str) -> tuple[int, ...]:
    encoded = text.encode("utf-16-be", "surrogatepass")
    return struct.unpack(f">{len(encoded) // 2}H", encoded)


def _read_unit(source: ByteReader) -> int:
    unit = read_varint(source)
    if unit > _UNIT_MAX:
        raise CorruptStreamError(f"{unit} is not a UTF-16 code unit")
    return unit


# Flink's serializers of single values: numbers, booleans, strings, bytes.


S = TypeVar("S")


NumberT = TypeVar("NumberT", int, float)


class _NumberSerializer(Generic[NumberT]):
    """A big-endian number of fixed width: signed, or of IEEE 754 with all of its bits."""

    __slots__ = ("_form", "_kind", "length_bytes", "name")

    def __init__(self, name: str, code: str, kind: type[NumberT]) -> None:
        self.name: str = name
        self._form = struct.Struct(f">{code}")
        self._kind: type[NumberT] = kind
        self.length_bytes: int = self._form.size

    def __repr__(self) -> str:
        return f"<{self.name} serializer>"

    def write(self, value: NumberT, output: bytearray) -> None:
        """Append a number."""
        try:
            output += self._form.pack(value)
        except (struct.error, OverflowError) as error:
            if not isinstance(value, self._kind):
                problem = f"{value!r} is a {type(value).__name__}"
                raise WrongTypeError(self.name, problem) from error
            problem = f"{value!r} does not fit in {8 * self.length_bytes} bits"
            raise InvalidArgumentError(self.name, problem) from error

    def read(self, source: ByteReader) -> NumberT:
        """Read a number."""
        return source.unpack(self._form)[0]


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
    """A string in Flink's encoding; see `aiomailbox.records.serializers`."""

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
        value: The value that reading gives; writing ignores its argument.

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


INT_SERIALIZER: Final = _NumberSerializer("int", "i", int)


LONG_SERIALIZER: Final = _NumberSerializer("long", "q", int)


SHORT_SERIALIZER: Final = _NumberSerializer("short", "h", int)


BYTE_SERIALIZER: Final = _NumberSerializer("byte", "b", int)


DOUBLE_SERIALIZER: Final = _NumberSerializer("double", "d", float)


FLOAT_SERIALIZER: Final = _NumberSerializer("float", "f", float)


BOOLEAN_SERIALIZER: Final = _BooleanSerializer()


STRING_SERIALIZER: Final = _StringSerializer()


BYTES_SERIALIZER: Final = _BytesSerializer()


# What every serializer of one type can do.


class TypeSerializer(Protocol[T]):
    """Writes values so that reading needs no length from outside.

    Concept:
        Flink, ``TypeSerializer``.
    """

    def write(self, value: T, output: bytearray) -> None:
        """Append one value.

        Raises:
            InvalidArgumentError: If the value is outside of what the form can hold.
            WrongTypeError: If it is of another type.
        """

    def read(self, source: ByteReader) -> T:
        """Read one value, and nothing beyond it.

        Raises:
            CorruptStreamError: If the bytes are not what `write` makes.
        """


# Flink's serializers of values made of others: lists, maps, tuples, windows, timers.


_SIGN_BIT = 2**63


class ListSerializer(Generic[T]):
    """How many, then each.

    Concept:
        Flink, ``ListSerializer``.

    Example:
        >>> output = bytearray()
        >>> ListSerializer(LONG_SERIALIZER).write([1], output)
        >>> output.hex()
        '000000010000000000000001'
    """

    __slots__ = ("_element",)

    def __init__(self, element: TypeSerializer[T]) -> None:
        self._element = element

    def write(self, value: list[T], output: bytearray) -> None:
        """Append a list."""
        INT_SERIALIZER.write(len(value), output)
        write = self._element.write
        for element in value:
            write(element, output)

    def read(self, source: ByteReader) -> list[T]:
        """Read a list."""
        read = self._element.read
        return [read(source) for _ in range(source.read_count("elements"))]


class MapSerializer(Generic[K, V]):
    """How many, then each key, whether its value is None, and the value if it is not.

    Concept:
        Flink, ``MapSerializer``.
    """

    __slots__ = ("_key", "_nullable")

    def __init__(self, key: TypeSerializer[K], value: TypeSerializer[V]) -> None:
        self._key = key
        self._nullable = NullableSerializer(value)

    def write(self, value: dict[K, V | None], output: bytearray) -> None:
        """Append a map, in its order."""
        INT_SERIALIZER.write(len(value), output)
        for key, item in value.items():
            self._key.write(key, output)
            self._nullable.write(item, output)

    def read(self, source: ByteReader) -> dict[K, V | None]:
        """Read a map; of equal keys the last one counts."""
        entries: dict[K, V | None] = {}
        for _ in range(source.read_count("entries", 2)):
            key = self._key.read(source)
            entries[key] = self._nullable.read(source)
        return entries


class NullableSerializer(Generic[T]):
    """Whether the value is None, and the value if it is not.

    Args:
        serializer: For what is not None.
        padding_bytes: Zeros in place of a value that is None, so that all have one
            length.

    Concept:
        Flink, ``NullableSerializer``.
    """

    __slots__ = ("_padding", "_serializer")

    def __init__(self, serializer: TypeSerializer[T], padding_bytes: int = 0) -> None:
        self._serializer = serializer
        self._padding = bytes(padding_bytes)

    def write(self, value: T | None, output: bytearray) -> None:
        """Append a value or None."""
        if value is None:
            output.append(1)
            output += self._padding
        else:
            output.append(0)
            self._serializer.write(value, output)

    def read(self, source: ByteReader) -> T | None:
        """Read a value or None."""
        if source.read_bool():
            source.take(len(self._padding))
            return None
        return self._serializer.read(source)


class TupleSerializer:
    """One field after the other, without anything between.

    Concept:
        Flink, ``TupleSerializer``.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: Iterable[TypeSerializer[Any]]) -> None:
        self._fields = tuple(fields)

    def write(self, value: tuple[Any, ...], output: bytearray) -> None:
        """Append a tuple.

        Raises:
            WrongTypeError: If it has another number of fields.
        """
        if len(value) != len(self._fields):
            raise WrongTypeError(
                "tuple", f"{value!r} does not have {len(self._fields)} fields"
            )
        for serializer, item in zip(self._fields, value, strict=True):
            serializer.write(item, output)

    def read(self, source: ByteReader) -> tuple[Any, ...]:
        """Read a tuple."""
        return tuple([serializer.read(source) for serializer in self._fields])


class TimeWindowSerializer(Generic[T]):
    """Start and end, in milliseconds.

    Args:
        make: Makes a window of ``(start, end)``; a serialized window has ``start`` and
            ``end`` in that order when it is unpacked.

    Concept:
        Flink, ``TimeWindow.Serializer``.
    """

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[int, int], T]) -> None:
        self._make = make

    def write(self, value: Any, output: bytearray) -> None:
        """Append a window."""
        start, end = value
        LONG_SERIALIZER.write(start, output)
        LONG_SERIALIZER.write(end, output)

    def read(self, source: ByteReader) -> T:
        """Read a window."""
        start = source.read_long()
        return self._make(start, source.read_long())


class SerializedTimer(NamedTuple):
    """A timer as it is written: when, for which key, and in which namespace."""

    timestamp_ms: int
    key: Any
    namespace: Any


class TimerSerializer:
    """The timestamp with its sign flipped, the key, the namespace.

    With the sign flipped, timers sort by their bytes as they do by their time.

    Concept:
        Flink, ``TimerSerializer``.
    """

    __slots__ = ("_key", "_namespace")

    def __init__(
        self, key: TypeSerializer[Any], namespace: TypeSerializer[Any]
    ) -> None:
        self._key = key
        self._namespace = namespace

    def write(self, value: SerializedTimer, output: bytearray) -> None:
        """Append a timer."""
        timestamp_ms, key, namespace = value
        start = len(output)
        LONG_SERIALIZER.write(timestamp_ms, output)
        output[start] ^= 0x80
        self._key.write(key, output)
        self._namespace.write(namespace, output)

    def read(self, source: ByteReader) -> SerializedTimer:
        """Read a timer."""
        flipped = source.read_long()
        timestamp_ms = flipped - _SIGN_BIT if flipped >= 0 else flipped + _SIGN_BIT
        return SerializedTimer(
            timestamp_ms, self._key.read(source), self._namespace.read(source)
        )
