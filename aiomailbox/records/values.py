"""Serializers for the values of records: which one, and in which version.

Theory of operation: both ends of an edge have to agree, so a serializer has an id and a
schema version besides its bytes. None of them runs code that a peer chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from aiomailbox.errors import CorruptStreamError, WrongTypeError
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.python_types import PythonTypes
from aiomailbox.records.record_classes import NO_RECORD_CLASSES, RecordClasses
from aiomailbox.records.run_columns import (
    PLAIN_RECORDS,
    PLAIN_TUPLES,
    RECORDS,
    ROWS,
    TUPLES,
    are_plain,
    columns_of,
    kinds_of,
    rows_of,
)
from aiomailbox.records.strings import read_varint, write_varint
from aiomailbox.records.type_serializer import TypeSerializer

__all__ = [
    "PythonSerializer",
    "ValueSerializer",
]

# What msgspec, and the hooks that it calls, make of bytes that are not theirs.
_DECODING_ERRORS: Final = (
    msgspec.MsgspecError,
    ArithmeticError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)


# How deep rows of rows are written by column; beyond that, one by one.
_DEPTH_MAX: Final = 4
_NAMES: Final = msgspec.msgpack.Decoder(str)
_FORMS_OF_TUPLES: Final = frozenset({TUPLES, PLAIN_TUPLES})
_PLAIN_FORMS: Final = frozenset({PLAIN_TUPLES, PLAIN_RECORDS})
_FORMS_OF_COLUMNS: Final = frozenset({TUPLES, RECORDS}) | _PLAIN_FORMS
_PLAIN_COLUMNS: Final = msgspec.msgpack.Decoder(list[list[Any]])


class ValueSerializer(TypeSerializer[Any], Protocol):
    """A `TypeSerializer` that can be named, and that does many values at once.

    Attributes:
        serializer_id: What kind it is, and of which type; both ends compare it.
        schema_version: Raised by the user when the type's meaning changes.
    """

    @property
    def serializer_id(self) -> str:
        """What kind it is, and of which type."""
        ...

    @property
    def schema_version(self) -> int:
        """Which version of the type it writes."""
        ...

    def write_many(self, values: list[Any], output: bytearray) -> None:
        """Append many values."""
        ...

    def read_many(self, source: ByteReader, count: int) -> list[Any]:
        """Read so many values.

        Raises:
            CorruptStreamError: If the bytes are not what `write_many` makes.
        """
        ...


class PythonSerializer:
    """MessagePack for values of any type among Python's own, and of declared classes.

    Unlike plain MessagePack it returns what it was given: tuples as tuples, sets,
    integers beyond 64 bits, datetime, date, time, timedelta, Decimal and UUID as such.
    Many values of one shape are written by column, which costs far less.

    Args:
        classes: The user's classes that may occur, the same at both ends: a class is
            never looked up by a name that comes in unless it was entered here.

    Example:
        >>> serializer = PythonSerializer()
        >>> output = bytearray()
        >>> serializer.write({"pair": (1, {2, 3})}, output)
        >>> serializer.read(ByteReader(output))
        {'pair': (1, {2, 3})}
    """

    __slots__ = ("_classes", "_decoder", "_encoder", "_types", "serializer_id")

    # Version 2 writes runs by column, version 3 plain columns all at once.
    schema_version: Final = 3

    def __init__(self, classes: RecordClasses = NO_RECORD_CLASSES) -> None:
        self._classes = classes
        self._types = PythonTypes(classes)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
            ext_hook=self._types.decode_extension
        )
        self.serializer_id: str = (
            f"python+{len(classes)}:{classes.fingerprint()}" if classes else "python"
        )

    def write(self, value: Any, output: bytearray) -> None:
        """Append a value."""
        _append(_encode(self._encoder, self._types.prepare(value)), output)

    def read(self, source: ByteReader) -> Any:
        """Read a value."""
        return _decode(self._decoder, source)

    def write_many(self, values: list[Any], output: bytearray) -> None:
        """Append many values."""
        self._write_many(values, kinds_of(values), output, _DEPTH_MAX)

    def read_many(self, source: ByteReader, count: int) -> list[Any]:
        """Read so many values."""
        return self._read_many(source, count, _DEPTH_MAX)

    def _write_many(
        self, values: Sequence[Any], kinds: set[type], output: bytearray, depth: int
    ) -> None:
        shape = columns_of(values, kinds, self._classes) if depth else None
        if shape is None:
            output.append(ROWS)
            _append(self._encode_rows(values, kinds), output)
            return
        name, columns = shape
        by_column = list(map(kinds_of, columns))
        plain = self._encode_plain(columns, by_column)
        if plain is None:
            output.append(TUPLES if name is None else RECORDS)
        else:
            output.append(PLAIN_TUPLES if name is None else PLAIN_RECORDS)
        if name is not None:
            _append(self._encoder.encode(name), output)
        if plain is not None:
            _append(plain, output)
            return
        write_varint(len(columns), output)
        for column, column_kinds in zip(columns, by_column, strict=True):
            self._write_many(column, column_kinds, output, depth - 1)

    def _read_many(self, source: ByteReader, count: int, depth: int) -> list[Any]:
        form = source.read_byte()
        if form == ROWS:
            return _decode_many(self._decoder, source, count)
        if form not in _FORMS_OF_COLUMNS or not depth:
            raise CorruptStreamError(f"there is no form {form} of many values here")
        name = None if form in _FORMS_OF_TUPLES else _decode(_NAMES, source)
        if form in _PLAIN_FORMS:
            columns = _decode(_PLAIN_COLUMNS, source)
        else:
            width = read_varint(source)
            if not 0 < width <= source.remaining:
                raise CorruptStreamError(f"rows cannot have {width} columns")
            columns = [self._read_many(source, count, depth - 1) for _ in range(width)]
        try:
            rows = rows_of(name, columns, self._classes)
        except _DECODING_ERRORS as error:
            raise CorruptStreamError(f"rows cannot be made: {error}") from error
        if len(rows) != count:
            raise CorruptStreamError(
                f"{count} rows are announced, and {len(rows)} found"
            )
        return rows

    def _encode_plain(
        self, columns: list[Sequence[Any]], by_column: list[set[type]]
    ) -> bytes | None:
        """Return all columns at once, None if msgspec would not give them back so."""
        if not all(map(are_plain, columns, by_column)):
            return None
        try:
            return self._encoder.encode(columns)
        except (OverflowError, UnicodeEncodeError):
            # An int beyond 64 bits, or a text that the other way reports.
            return None

    def _encode_rows(self, values: Sequence[Any], kinds: set[type]) -> bytes:
        if are_plain(values, kinds):
            try:
                return self._encoder.encode(values)
            except (OverflowError, UnicodeEncodeError):
                # An int beyond 64 bits, or a text that the other way reports.
                pass
        prepare = self._types.prepare
        return _encode(self._encoder, [prepare(value) for value in values])


def _encode(encoder: msgspec.msgpack.Encoder, value: Any) -> bytes:
    try:
        return encoder.encode(value)
    except (TypeError, OverflowError, RecursionError, UnicodeEncodeError) as error:
        raise WrongTypeError("value", f"it cannot be serialized: {error}") from error


def _append(encoded: bytes, output: bytearray) -> None:
    write_varint(len(encoded), output)
    output += encoded


def _decode(decoder: msgspec.msgpack.Decoder[Any], source: ByteReader) -> Any:
    # A copy: a memoryview or a msgspec.Raw keeps what it was read from, and the buffer
    # is used again.
    encoded = bytes(source.take(read_varint(source)))
    try:
        return decoder.decode(encoded)
    except _DECODING_ERRORS as error:
        raise CorruptStreamError(f"a value cannot be read: {error}") from error


def _decode_many(
    decoder: msgspec.msgpack.Decoder[Any], source: ByteReader, count: int
) -> list[Any]:
    values = _decode(decoder, source)
    if not isinstance(values, list) or len(values) != count:
        raise CorruptStreamError(f"{count} values are announced, and others found")
    return values
