"""What every serializer of one type can do."""

from __future__ import annotations

from typing import Protocol, TypeVar

from aiomailbox.records.byte_reader import ByteReader

__all__ = ["TypeSerializer"]

T = TypeVar("T")


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
        ...

    def read(self, source: ByteReader) -> T:
        """Read one value, and nothing beyond it.

        Raises:
            CorruptStreamError: If the bytes are not what `write` makes.
        """
        ...
