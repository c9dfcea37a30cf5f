"""Lists of rows as bytes: how many, their timestamps if there are any, their values."""

from __future__ import annotations

import sys
from array import array
from typing import Any, Final

from aiomailbox.errors import WrongTypeError
from aiomailbox.records.basic_serializers import INT_SERIALIZER
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.run import ListRun
from aiomailbox.records.type_serializer import TypeSerializer

__all__ = ["ListRunForm"]

_LONG_BYTES: Final = 8


class ListRunForm:
    """The form of `ListRun`: ``count:int32 | timestamps:bool | longs | values``.

    Args:
        serializer: For one value; if it has ``write_many`` and ``read_many``, they are
            used for all values of a run at once.
    """

    __slots__ = ("_read_many", "_serializer", "_write_many")

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
            _append_longs(timestamps, output)
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


def _append_longs(values: list[int], output: bytearray) -> None:
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
