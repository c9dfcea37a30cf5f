"""Many values at once, so that undeclared values are cheap to send.

Theory of operation: values are converted one by one only where they have to be. Plain
tuples, and objects of one declared class as tuples of their fields, go to msgspec as they
are if all that is in them is scalars: a run of a few hundred rows costs one call. Else
they are turned by 90 degrees, again and again while their columns are such rows, and each
column is written in the form that its own types allow.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache, reduce
from itertools import chain
from operator import countOf, iconcat
from types import GenericAlias
from typing import Any, Final

import msgspec

from aiomailbox.errors import CorruptStreamError, WrongTypeError
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.python_types import PythonTypes
from aiomailbox.records.record_classes import (
    NO_RECORD_CLASSES,
    RecordClass,
    RecordClasses,
)
from aiomailbox.records.run import ListRun, map_all
from aiomailbox.records.serializers import (
    INT_SERIALIZER,
    TypeSerializer,
    read_varint,
    write_varint,
)

# The forms of many values: one by one, columns of rows of one kind each in a form of its
# own, or rows of scalars all at once. Of 3 and 4, which version 3 wrote, columns of scalars
# are all at once: there may be some in data in flight that was saved.
ROWS: Final = 0


TUPLES: Final = 1


RECORDS: Final = 2


_TUPLES_OF_3: Final = 3


_RECORDS_OF_3: Final = 4


PLAIN_TUPLES: Final = 5


PLAIN_RECORDS: Final = 6


_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes})


_STRINGS: Final = frozenset({str})


_DICTS: Final = {dict}


def kinds_of(values: Sequence[Any]) -> set[type]:
    """Return the types of values.

    Example:
        >>> kinds_of([1, 2]) == {int}, kinds_of([1, "a"]) == {int, str}
        (True, True)
    """
    if not values:
        return set()
    kind = type(values[0])
    # Mostly there is one: to count it costs less than to put each into a set.
    if countOf(map(type, values), kind) == len(values):
        return {kind}
    return set(map(type, values))


def are_plain(values: Sequence[Any], kinds: set[type]) -> bool:
    """Say whether msgspec gives all the values, of these types, back as they are.

    Scalars do, and dicts of them with texts as keys; ints beyond 64 bits it refuses.
    """
    if kinds == _DICTS:
        items = chain.from_iterable(map(dict.values, values))
        return _STRINGS.issuperset(
            map(type, chain.from_iterable(values))
        ) and _SCALARS.issuperset(map(type, items))
    return _SCALARS.issuperset(kinds)


def rows_in(
    values: Sequence[Any], kinds: set[type], classes: RecordClasses
) -> tuple[str | None, Sequence[tuple[Any, ...]]] | None:
    """Return the name of the values' class, None for tuples, and their fields.

    None if the values, of these types, are no rows, or of several kinds.
    """
    if len(kinds) != 1:
        return None
    (kind,) = kinds
    if kind is tuple:
        return None, values
    entry = classes.of(kind)
    if entry is None or not entry.fields:
        return None
    return entry.name, map_all(entry.split, values)


def hold_scalars(rows: Sequence[tuple[Any, ...]]) -> bool:
    """Say whether all that is in rows is scalars; there is at least one row.

    Example:
        >>> hold_scalars([(1, "a"), (2, "b")]), hold_scalars([(1, "a"), (2, [])])
        (True, False)
    """
    # One call a row and none an item: less than `chain` needs.
    items: list[Any] = reduce(iconcat, rows, [])
    kinds = list(map(type, items))
    # Mostly all rows are like the first one: to compare costs less than to look each up.
    first = kinds[: len(rows[0])]
    return _SCALARS.issuperset(first if kinds == first * len(rows) else kinds)


def columns_of(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the columns of rows, none if they differ in length."""
    try:
        return list(zip(*rows, strict=True))
    except ValueError:
        return []


# Lists of rows as bytes: how many, their timestamps if there are any, their values.


_LONG_BYTES: Final = 8


class ListRunForm:
    """The form of `ListRun`: ``count:int32 | timestamps:bool | longs | values``.

    Args:
        serializer: For one value; if it has ``write_many`` and ``read_many``, they are
            used for all values of a run at once.
    """

    tag: Final = 64
    kind: Final = ListRun

    def __init__(self, serializer: TypeSerializer[Any]) -> None:
        self._serializer = serializer
        self._write_many = getattr(serializer, "write_many", self._write_each)
        self._read_many = getattr(serializer, "read_many", self._read_each)

    def write(self, run: ListRun, output: bytearray) -> None:
        """Append a run.

        Raises:
            WrongTypeError: If a value or a timestamp cannot be serialized.
        """
        count = len(run)
        timestamps = run.timestamps
        INT_SERIALIZER.write(count, output)
        output.append(timestamps is not None)
        if timestamps is not None:
            append_longs(timestamps, output)
        self._write_many(run.values, output)

    def read(self, source: ByteReader) -> ListRun:
        """Read a run."""
        count = source.read_count("records")
        timestamps: list[int] | None = None
        if source.read_bool():
            timestamps = _longs(source.take(count * _LONG_BYTES))
        return ListRun(self._read_many(source, count), timestamps)

    def _write_each(self, values: list[Any], output: bytearray) -> None:
        write = self._serializer.write
        for value in values:
            write(value, output)

    def _read_each(self, source: ByteReader, count: int) -> list[Any]:
        read = self._serializer.read
        return [read(source) for _ in range(count)]


def append_longs(values: list[int], output: bytearray) -> None:
    """Append integers of 64 bits; raises WrongTypeError."""
    try:
        longs = array("q", values)
    except (OverflowError, TypeError) as error:
        raise WrongTypeError(
            "timestamps", f"not all are integers of 64 bits: {error}"
        ) from error
    if sys.byteorder == "little":
        longs.byteswap()
    output += longs.tobytes()


def _longs(content: memoryview) -> list[int]:
    longs = array("q")
    longs.frombytes(content)
    if sys.byteorder == "little":
        longs.byteswap()
    return longs.tolist()


# Serializers for the values of records: which one, and in which version.
#
# Theory of operation: both ends of an edge have to agree, so a serializer has an id and
# a schema version besides its bytes. None of them runs code that a peer chooses.


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


_FORMS_OF_TUPLES: Final = frozenset({TUPLES, _TUPLES_OF_3, PLAIN_TUPLES})


_FORMS: Final = _FORMS_OF_TUPLES | {RECORDS, _RECORDS_OF_3, PLAIN_RECORDS}


_PLAIN_ROWS: Final = frozenset({PLAIN_TUPLES, PLAIN_RECORDS})


_PLAIN_COLUMNS: Final = frozenset({_TUPLES_OF_3, _RECORDS_OF_3})


_COLUMNS: Final = msgspec.msgpack.Decoder(list[list[Any]])


@lru_cache(maxsize=256)
def _rows(width: int | None) -> msgspec.msgpack.Decoder[Any]:
    """Return what decodes rows of so many fields, of any number for None."""
    row: Any = tuple if width is None else GenericAlias(tuple, (Any,) * width)
    return msgspec.msgpack.Decoder(GenericAlias(list, row))


class PythonSerializer:
    """MessagePack for values of any type among Python's own, and of declared classes.

    Unlike plain MessagePack it returns what it was given: tuples as tuples, sets,
    integers beyond 64 bits, datetime, date, time, timedelta, Decimal and UUID as such.
    Many rows of one kind are written at once, or by column, which costs far less.

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

    # Version 2 writes runs by column, version 3 plain columns and version 4 plain rows all
    # at once.
    schema_version: Final = 4

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
        found = rows_in(values, kinds, self._classes) if depth else None
        if found is not None:
            name, rows = found
            plain = self._encode_plain(rows) if hold_scalars(rows) else None
            if plain is not None:
                self._begin(PLAIN_TUPLES, PLAIN_RECORDS, name, output)
                _append(plain, output)
                return
            if columns := columns_of(rows):
                self._begin(TUPLES, RECORDS, name, output)
                write_varint(len(columns), output)
                for column in columns:
                    self._write_many(column, kinds_of(column), output, depth - 1)
                return
        output.append(ROWS)
        encoded = self._encode_plain(values) if are_plain(values, kinds) else None
        if encoded is None:
            prepare = self._types.prepare
            encoded = _encode(self._encoder, [prepare(value) for value in values])
        _append(encoded, output)

    def _begin(
        self, tuples: int, records: int, name: str | None, output: bytearray
    ) -> None:
        output.append(tuples if name is None else records)
        if name is not None:
            _append(self._encoder.encode(name), output)

    def _encode_plain(self, values: Sequence[Any]) -> bytes | None:
        """Return values, or rows of scalars; None if msgspec would not give them back."""
        try:
            return self._encoder.encode(values)
        except (OverflowError, UnicodeEncodeError):
            # An int beyond 64 bits, or a text that the other way reports.
            return None

    def _read_many(self, source: ByteReader, count: int, depth: int) -> list[Any]:
        form = source.read_byte()
        if form == ROWS:
            return _decode_many(self._decoder, source, count)
        if form not in _FORMS or not depth:
            raise CorruptStreamError(f"there is no form {form} of many values here")
        entry = None if form in _FORMS_OF_TUPLES else self._class(source)
        width = None if entry is None else len(entry.fields)
        if form in _PLAIN_ROWS:
            rows: list[Any] = _decode(_rows(width), source)
        else:
            rows = self._read_columns(form, source, count, depth, width)
        try:
            values = rows if entry is None else map_all(entry.build, rows)
        except _DECODING_ERRORS as error:
            raise CorruptStreamError(f"rows cannot be made: {error}") from error
        if len(values) != count:
            raise CorruptStreamError(
                f"{count} rows are announced, and {len(values)} found"
            )
        return values

    def _class(self, source: ByteReader) -> RecordClass:
        name = _decode(_NAMES, source)
        entry = self._classes.named(name)
        if entry is None:
            raise CorruptStreamError(f"no class {name!r} was declared for this job")
        return entry

    def _read_columns(
        self, form: int, source: ByteReader, count: int, depth: int, fields: int | None
    ) -> list[Any]:
        if form in _PLAIN_COLUMNS:
            columns: list[Any] = _decode(_COLUMNS, source)
        else:
            width = read_varint(source)
            if not 0 < width <= source.remaining:
                raise CorruptStreamError(f"rows cannot have {width} columns")
            columns = [self._read_many(source, count, depth - 1) for _ in range(width)]
        if fields not in {None, len(columns)}:
            raise CorruptStreamError(f"{len(columns)} columns are no {fields} fields")
        try:
            return list(zip(*columns, strict=True))
        except ValueError as error:
            raise CorruptStreamError(f"rows cannot be made: {error}") from error


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
