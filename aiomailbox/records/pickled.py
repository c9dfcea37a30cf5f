"""Pickle, for those who ask for it by name: whoever can write the bytes runs code."""

from __future__ import annotations

import pickle  # noqa: TID251 -- the one module that may, and nothing imports it
from typing import Any, Final

from aiomailbox.errors import CorruptStreamError, WrongTypeError
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.strings import read_varint, write_varint

__all__ = ["PickleSerializer"]


class PickleSerializer:
    """Any value that pickle can carry.

    Reading runs what the bytes say. It is for edges between processes of one user that
    have proved it to each other, and never a default.

    Args:
        schema_version: Raise it when a type's meaning changes.

    Example:
        >>> serializer = PickleSerializer()
        >>> output = bytearray()
        >>> serializer.write(range(3), output)
        >>> serializer.read(ByteReader(output))
        range(0, 3)
    """

    __slots__ = ("schema_version",)

    serializer_id: Final = "pickle"

    def __init__(self, *, schema_version: int = 1) -> None:
        self.schema_version = schema_version

    def write(self, value: Any, output: bytearray) -> None:
        """Append a value."""
        try:
            encoded = pickle.dumps(value, protocol=5)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise WrongTypeError("value", f"it cannot be pickled: {error}") from error
        write_varint(len(encoded), output)
        output += encoded

    def read(self, source: ByteReader) -> Any:
        """Read a value."""
        encoded = source.take(read_varint(source))
        try:
            return pickle.loads(encoded)
        except Exception as error:
            raise CorruptStreamError(f"a value cannot be unpickled: {error}") from error

    def write_many(self, values: list[Any], output: bytearray) -> None:
        """Append many values."""
        self.write(values, output)

    def read_many(self, source: ByteReader, count: int) -> list[Any]:
        """Read so many values."""
        values = self.read(source)
        if not isinstance(values, list) or len(values) != count:
            raise CorruptStreamError(f"{count} values are announced, and others found")
        return values
