"""Results of calls as bytes that say of which classes they are."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from aiomailbox.errors import CorruptStreamError
from aiomailbox.state.schema import ClassSchema
from aiomailbox.state.serializers import ObjectSerializer
from aiomailbox.state.state_classes import StateClasses, declared_classes

__all__ = ["ResultCodec"]

_LENGTH: Final = struct.Struct("<I")
_Schemas = dict[str, ClassSchema]


class ResultCodec:
    """Encodes and decodes results; each names the fields of its classes.

    So one that was kept is read by a program whose classes have gained fields.

    Args:
        name: Whose results they are, for messages.
        classes: The classes that results may have, or type hints that name them.

    Example:
        >>> codec = ResultCodec("ask")
        >>> codec.decode(codec.encode(("forty-two", 42)))
        ('forty-two', 42)
    """

    __slots__ = ("_classes", "_declared", "_head", "_met", "_name", "_read", "_write")

    def __init__(self, name: str, classes: Iterable[Any] = ()) -> None:
        self._name = name
        self._declared = declared_classes(classes)
        self._classes = StateClasses(self._declared)
        self._write = ObjectSerializer(self._classes).encode
        self._met = 0
        self._head = _LENGTH.pack(0)
        # By the classes that results were written with: few, as programs change seldom.
        self._read: dict[bytes, ObjectSerializer] = {b"": ObjectSerializer()}

    def encode(self, result: Any) -> bytes:
        """Return a result as bytes.

        Raises:
            StateError: If it holds something of a class that was not declared, or that
                has no form as bytes.
        """
        data = self._write(result)
        if len(self._classes.met) != self._met:
            self._met = len(self._classes.met)
            schemas = msgspec.msgpack.encode(self._classes.schemas())
            self._head = _LENGTH.pack(len(schemas)) + schemas
        return self._head + data

    def decode(self, payload: bytes) -> Any:
        """Return the result that was encoded.

        Raises:
            StateError: If it has a class that was not declared, or no longer fits.
            CorruptStreamError: If the bytes are none that `encode` has made.
        """
        if len(payload) < _LENGTH.size:
            raise CorruptStreamError(f"{self._name}: a result has no head")
        (length,) = _LENGTH.unpack_from(payload)
        end = _LENGTH.size + length
        schemas = payload[_LENGTH.size : end]
        reader = self._read.get(schemas)
        if reader is None:
            reader = self._read[schemas] = self._reader(schemas)
        return reader.decode(payload[end:])

    def _reader(self, schemas: bytes) -> ObjectSerializer:
        try:
            written = msgspec.msgpack.decode(schemas, type=_Schemas)
        except msgspec.MsgspecError as error:
            raise CorruptStreamError(f"{self._name}: no classes: {error}") from error
        classes = StateClasses(self._declared)
        classes.expect(self._name, written)
        return ObjectSerializer(classes)
