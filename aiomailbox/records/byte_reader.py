"""Reading bytes in order, and never beyond their end."""

from __future__ import annotations

import struct
from typing import Any, Final

from aiomailbox.errors import CorruptStreamError

_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")


class ByteReader:
    """A cursor over big-endian bytes; whatever is not there is a corrupt stream.

    Args:
        data: Item size one, shape ``(n,)``; borrowed, not copied.

    Attributes:
        position: The next byte to read, 0 to ``n``.

    Concept:
        Flink, ``DataInputView``.

    Example:
        >>> reader = ByteReader(bytes.fromhex("00000102ff"))
        >>> reader.read_int(), reader.remaining
        (258, 1)
    """

    __slots__ = ("_end", "_view", "position")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        self._view = view if view.format == "B" else view.cast("B")
        self._end = len(self._view)
        self.position: int = 0

    @property
    def remaining(self) -> int:
        """How many bytes were not read yet."""
        return self._end - self.position

    def take(self, size_bytes: int) -> memoryview:
        """Return the next bytes without copying, and pass over them.

        Raises:
            CorruptStreamError: If there are fewer, or the size is negative.
        """
        start = self.position
        self._require(size_bytes)
        self.position = start + size_bytes
        return self._view[start : start + size_bytes]

    def peek(self, size_bytes: int) -> memoryview:
        """Return the next bytes without passing over them.

        Raises:
            CorruptStreamError: If there are fewer, or the size is negative.
        """
        self._require(size_bytes)
        return self._view[self.position : self.position + size_bytes]

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        """Read what a `struct.Struct` describes.

        Raises:
            CorruptStreamError: If it leaves the bytes.
        """
        start = self.position
        self._require(form.size)
        self.position = start + form.size
        return form.unpack_from(self._view, start)

    def read_byte(self) -> int:
        """Read a signed 8-bit integer."""
        # Lengths are read by it, several a run: without `unpack` it takes a third.
        position = self.position
        if position >= self._end:
            self._require(1)
        self.position = position + 1
        value = self._view[position]
        return value - 256 if value > 127 else value

    def read_short(self) -> int:
        """Read a signed 16-bit integer."""
        return self.unpack(_SHORT)[0]

    def read_int(self) -> int:
        """Read a signed 32-bit integer."""
        return self.unpack(_INT)[0]

    def read_long(self) -> int:
        """Read a signed 64-bit integer."""
        return self.unpack(_LONG)[0]

    def read_bool(self) -> bool:
        """Read a byte that is 0 or 1.

        Raises:
            CorruptStreamError: If it is neither, or there is none.
        """
        value = self.read_byte()
        if value not in {0, 1}:
            raise CorruptStreamError(f"a boolean is 0 or 1, not {value}")
        return value == 1

    def read_count(self, what: str, width_bytes: int = 1) -> int:
        """Read how many items follow, and refuse more than the bytes can hold.

        Args:
            what: The name of the counted thing, for the error.
            width_bytes: How many bytes an item has at least.

        Raises:
            CorruptStreamError: If the count is negative or too large.
        """
        count = self.read_int()
        if count < 0 or count * width_bytes > self.remaining:
            raise CorruptStreamError(
                f"{count} {what} cannot be in the {self.remaining} bytes that follow"
            )
        return count

    def expect_end(self, what: str) -> None:
        """Check that everything was read.

        Raises:
            CorruptStreamError: If bytes are left over.
        """
        if self.position != self._end:
            raise CorruptStreamError(
                f"{self.remaining} bytes are left after {what}: its serializer reads "
                "less than was written"
            )

    def _require(self, size_bytes: int) -> None:
        if not 0 <= size_bytes <= self._end - self.position:
            raise CorruptStreamError(
                f"{size_bytes} bytes are wanted and {self.remaining} are left: the "
                "data is truncated, or its serializer reads more than was written"
            )
