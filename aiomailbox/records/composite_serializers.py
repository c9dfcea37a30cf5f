"""Flink's serializers of values made of others: lists, maps, tuples, windows, timers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from aiomailbox.errors import WrongTypeError
from aiomailbox.records.basic_serializers import INT_SERIALIZER, LONG_SERIALIZER
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.type_serializer import TypeSerializer

__all__ = [
    "ListSerializer",
    "MapSerializer",
    "NullableSerializer",
    "SerializedTimer",
    "TimeWindowSerializer",
    "TimerSerializer",
    "TupleSerializer",
]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
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

    __slots__ = ("_fields", "_make")

    def __init__(
        self,
        fields: Iterable[TypeSerializer[Any]],
        make: Callable[[list[Any]], tuple[Any, ...]] = tuple,
    ) -> None:
        self._fields = tuple(fields)
        self._make = make

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
        return self._make([serializer.read(source) for serializer in self._fields])


class TimeWindowSerializer(Generic[T]):
    """Start and end, in milliseconds.

    Args:
        make: Makes a window of ``(start, end)``; what is written gives them as
            ``start`` and ``end`` in that order when it is unpacked.

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
