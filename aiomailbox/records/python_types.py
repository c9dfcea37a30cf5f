"""Python's own types that MessagePack does not know, as its extensions.

Theory of operation: scalars that MessagePack has go through as they are, and so do lists
and dicts of them. Everything else becomes an extension: a code from the table below
and content that says nothing about classes, so that reading it cannot run anything.
"""

from __future__ import annotations

import datetime as dt
import decimal
import importlib
import uuid
import zoneinfo
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, Protocol

import msgspec

from aiomailbox.errors import (
    CorruptStreamError,
    MissingExtraError,
    StateError,
    WrongTypeError,
)
from aiomailbox.records.record_classes import (
    NO_RECORD_CLASSES,
    SPARK_TYPES,
    RecordClass,
)

_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**64 - 1
# Reading digits takes a time that grows with their square.
_INT_BYTES_MAX: Final = 64 * 1024
# Reading takes about five calls a level, and a thousand is all that Python allows.
_DEPTH_MAX: Final = 100

_encoder: Final = msgspec.msgpack.Encoder()
_PLAIN: Final = frozenset({type(None), bool, float, str, bytes})


class ClassTable(Protocol):
    """Finds how objects of the user's classes are taken apart and put together."""

    def of(self, kind: type) -> RecordClass | None:
        """Return how a class is taken apart, or None if it may not be."""

    def named(self, name: object) -> RecordClass | None:
        """Return the class of a name that was read, or None if there is none."""


class PythonTypes:
    """Turns values into what MessagePack knows, and back.

    Args:
        classes: Classes of the user's that may occur.
    """

    def __init__(self, classes: ClassTable = NO_RECORD_CLASSES) -> None:
        self._classes = classes

    # Whoever only writes needs none.
    @cached_property
    def _decoder(self) -> msgspec.msgpack.Decoder[Any]:
        return msgspec.msgpack.Decoder(ext_hook=self.decode_extension)

    def prepare(self, value: Any, depth: int = _DEPTH_MAX) -> Any:
        """Return the value with what MessagePack does not know made into extensions.

        Args:
            value: Any value.
            depth: How many levels of it there may be: as many as can be read again.

        Raises:
            WrongTypeError: If a type is not known, a text is no text, or there are
                more levels.
        """
        kind = type(value)
        if kind in _PLAIN:
            return value
        convert = _PREPARE.get(kind)
        if convert is not None:
            return convert(value)
        if not depth:
            raise WrongTypeError(
                "value", f"it is nested too deeply: {_DEPTH_MAX} levels can be sent"
            )
        code = _ITEMS.get(kind)
        if code is not None:
            items = [self.prepare(item, depth - 1) for item in value]
            return msgspec.msgpack.Ext(code, _encode(items))
        if kind is list:
            return [self.prepare(item, depth - 1) for item in value]
        if kind is dict:
            return self._prepare_dict(value, depth - 1)
        try:
            entry = self._classes.of(kind)
        except StateError:
            # Last: records are many, and this costs each of them as much as a field.
            if not _is_of_spark(kind):
                raise
            entry = None
        if entry is None:
            if _is_of_spark(kind):
                return _prepare_spark(value)
            raise WrongTypeError(
                "value",
                f"a {kind.__module__}.{kind.__qualname__} cannot be sent, for its "
                "class is not declared",
                "Make it a dataclass, a NamedTuple or a msgspec.Struct, and name "
                "it as output_type= or in a type hint of the function that makes "
                "it: a receiver never looks up a class by the name that it is sent.",
            )
        fields = [self.prepare(item, depth - 1) for item in entry.split(value)]
        return msgspec.msgpack.Ext(_RECORD, _encode([entry.name, *fields]))

    def decode_extension(self, code: int, content: memoryview) -> Any:
        """Return the value that an extension holds; the counterpart of `prepare`.

        Raises:
            CorruptStreamError: If there is no such extension.
            ValueError: And others, if the content is not what was written.
        """
        read = _READ.get(code)
        if read is not None:
            return read(content)
        read_items = _READ_ITEMS.get(code)
        if read_items is None:
            raise CorruptStreamError(f"there is no extension {code}")
        return read_items(self, content)

    def _prepare_dict(self, value: dict[Any, Any], depth: int) -> Any:
        prepare = self.prepare
        if _PLAIN.issuperset(map(type, value)):
            return {key: prepare(item, depth) for key, item in value.items()}
        # An extension cannot be looked up as a key while it is one: pairs instead.
        pairs = [
            [prepare(key, depth), prepare(item, depth)] for key, item in value.items()
        ]
        return msgspec.msgpack.Ext(_DICT, _encode(pairs))

    def _read_items(self, content: memoryview) -> list[Any]:
        items = self._decoder.decode(content)
        if not isinstance(items, list):
            raise CorruptStreamError("a collection holds no items")
        return items

    def _read_dict(self, content: memoryview) -> dict[Any, Any]:
        items = self._read_items(content)
        return {key: item for key, item in items}  # noqa: C416 -- pairs only

    def _read_record(self, content: memoryview) -> Any:
        name, *fields = self._read_items(content)
        entry = self._classes.named(name)
        if entry is None:
            raise CorruptStreamError(f"no class {name!r} was declared for this job")
        if len(fields) != len(entry.fields):
            raise CorruptStreamError(f"{name} has {len(entry.fields)} fields")
        return entry.build(fields)


def _encode(parts: list[Any]) -> bytes:
    try:
        return _encoder.encode(parts)
    except UnicodeEncodeError as error:
        raise WrongTypeError("value", f"it cannot be serialized: {error}") from error


def _prepare_int(value: int) -> Any:
    if _INT_MIN <= value <= _INT_MAX:
        return value
    size_bytes = value.bit_length() // 8 + 1
    if size_bytes > _INT_BYTES_MAX:
        raise WrongTypeError(
            "value",
            f"an int of {size_bytes} bytes exceeds the {_INT_BYTES_MAX} allowed",
        )
    return msgspec.msgpack.Ext(_INT, value.to_bytes(size_bytes, "big", signed=True))


def _text_as(code: int, text: Callable[[Any], str]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        return msgspec.msgpack.Ext(code, text(value).encode())

    return convert


def _prepare_timedelta(value: dt.timedelta) -> Any:
    parts = [value.days, value.seconds, value.microseconds]
    return msgspec.msgpack.Ext(_TIMEDELTA, _encode(parts))


def _prepare_uuid(value: uuid.UUID) -> Any:
    return msgspec.msgpack.Ext(_UUID, value.bytes)


def _is_of_spark(kind: type) -> bool:
    return kind.__module__ == SPARK_TYPES and kind.__qualname__ in _SPARK_PARTS


def _prepare_spark(value: Any) -> Any:
    """The name of the class, and the parts that an object of it is made of."""
    name = type(value).__name__
    parts = [getattr(value, part) for part in _SPARK_PARTS[name]]
    return msgspec.msgpack.Ext(_SPARK, _encode([name, *parts]))


def _read_spark(content: memoryview) -> Any:
    name, *parts = _read_plain_items(content)
    if name not in _SPARK_PARTS:
        raise CorruptStreamError(f"there is no value of Spark called {name!r}")
    try:
        # Only who has got such a value needs it.
        types = importlib.import_module(SPARK_TYPES)
    except ImportError as error:
        raise MissingExtraError(f"a {name}", "spark") from error
    return getattr(types, name)(*parts)


def _prepare_moment(code: int) -> Callable[[Any], Any]:
    """The fold, the text, and the name of a time zone if it has one."""

    def convert(value: Any) -> Any:
        zone = value.tzinfo
        name = ""
        if isinstance(zone, zoneinfo.ZoneInfo) and zone.key:
            name = zone.key
            value = value.replace(tzinfo=None)
        elif not (zone is None or isinstance(zone, dt.timezone)):
            raise WrongTypeError(
                "value",
                f"the time zone of {value!r} cannot be serialized",
                "Use a datetime.timezone or a zoneinfo.ZoneInfo.",
            )
        return msgspec.msgpack.Ext(
            code, f"{value.fold}{value.isoformat()}[{name}".encode()
        )

    return convert


def _read_moment(kind: Any) -> Callable[[memoryview], Any]:
    def read(content: memoryview) -> Any:
        text, name = _text(content).split("[")
        value = kind.fromisoformat(text[1:]).replace(fold=int(text[0]))
        return value.replace(tzinfo=zoneinfo.ZoneInfo(name)) if name else value

    return read


def _read_int(content: memoryview) -> int:
    if len(content) > _INT_BYTES_MAX:
        raise CorruptStreamError(f"an int of {len(content)} bytes is too large")
    return int.from_bytes(content, "big", signed=True)


def _read_plain_items(content: memoryview) -> list[Any]:
    items = msgspec.msgpack.decode(content)
    if not isinstance(items, list):
        raise CorruptStreamError("a value holds no parts")
    return items


def _text(content: memoryview) -> str:
    return bytes(content).decode("ascii")


_TUPLE, _SET, _FROZENSET, _DICT, _INT = 1, 2, 3, 4, 5
_DATETIME, _DATE, _TIME, _TIMEDELTA, _DECIMAL, _UUID = 6, 7, 8, 9, 10, 11
_BYTEARRAY, _COMPLEX, _RECORD, _SPARK = 12, 13, 14, 15

# What the values that Spark has classes of its own for are made of.
_SPARK_PARTS: Final = {
    "VariantVal": ("value", "metadata"),
    "Geometry": ("wkb", "srid"),
    "Geography": ("wkb", "srid"),
}

_PREPARE: Final[dict[type, Callable[[Any], Any]]] = {
    int: _prepare_int,
    dt.datetime: _prepare_moment(_DATETIME),
    dt.date: _text_as(_DATE, dt.date.isoformat),
    dt.time: _prepare_moment(_TIME),
    dt.timedelta: _prepare_timedelta,
    decimal.Decimal: _text_as(_DECIMAL, str),
    uuid.UUID: _prepare_uuid,
    bytearray: lambda value: msgspec.msgpack.Ext(_BYTEARRAY, bytes(value)),
    complex: lambda value: msgspec.msgpack.Ext(
        _COMPLEX, _encode([value.real, value.imag])
    ),
}
_READ: Final[dict[int, Callable[[memoryview], Any]]] = {
    _INT: _read_int,
    _DATETIME: _read_moment(dt.datetime),
    _DATE: lambda content: dt.date.fromisoformat(_text(content)),
    _TIME: _read_moment(dt.time),
    _TIMEDELTA: lambda content: dt.timedelta(*_read_plain_items(content)),
    _DECIMAL: lambda content: decimal.Decimal(_text(content)),
    _UUID: lambda content: uuid.UUID(bytes=bytes(content)),
    _BYTEARRAY: bytearray,
    _COMPLEX: lambda content: complex(*_read_plain_items(content)),
    _SPARK: _read_spark,
}
# Of collections and records: what is in them is prepared, and read, in turn.
_ITEMS: Final[dict[type, int]] = {tuple: _TUPLE, set: _SET, frozenset: _FROZENSET}
_READ_ITEMS: Final[dict[int, Callable[[PythonTypes, memoryview], Any]]] = {
    _TUPLE: lambda types, content: tuple(types._read_items(content)),
    _SET: lambda types, content: set(types._read_items(content)),
    _FROZENSET: lambda types, content: frozenset(types._read_items(content)),
    _DICT: PythonTypes._read_dict,
    _RECORD: PythonTypes._read_record,
}
