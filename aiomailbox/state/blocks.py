"""Blocks of bytes in a row, and behind them what they are: written as a stream.

Layout: ``magic | version | blocks … | metadata | length of metadata | checksum of
head and metadata | magic``. The metadata holds where each block is and its checksum, so
that blocks are written as they are made and read in any order, one at a time. Every
length is compared with what is there before anything is made of it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from aiomailbox.errors import CorruptStreamError

__all__ = ["BLOCK_BYTES", "BLOCK_ROWS", "Block", "BlockReader", "BlockWriter"]

# What is put into one block at most: making one takes some milliseconds.
BLOCK_BYTES: Final = 64 * 1024
BLOCK_ROWS: Final = 1024

_HEAD: Final = struct.Struct(">4sH")
_TAIL: Final = struct.Struct(">II4s")


class Block(NamedTuple):
    """Where a block is: its first byte, its length, its CRC-32."""

    start: int
    length: int
    checksum: int


class BlockWriter:
    """Keeps the place of each block that is written.

    Args:
        magic: Four bytes that say what this is.
        version: Of the format.

    Attributes:
        blocks: Those so far.

    Example:
        >>> writer = BlockWriter(b"TEST", 1)
        >>> data = writer.head() + writer.add(b"abc") + writer.tail(b"{}")
        >>> reader = BlockReader(data, b"TEST", 1, "a test")
        >>> bytes(reader.metadata), bytes(reader.block(writer.blocks[0]))
        (b'{}', b'abc')
    """

    __slots__ = ("_head", "_position", "blocks")

    def __init__(self, magic: bytes, version: int) -> None:
        self._head = _HEAD.pack(magic, version)
        self._position = len(self._head)
        self.blocks: list[Block] = []

    def head(self) -> bytes:
        """Return what comes first."""
        return self._head

    def add(self, data: bytes) -> bytes:
        """Keep the description of the next block, and return it."""
        self.blocks.append(Block(self._position, len(data), zlib.crc32(data)))
        self._position += len(data)
        return data

    def tail(self, metadata: bytes) -> bytes:
        """Return what comes last."""
        checksum = zlib.crc32(metadata, zlib.crc32(self._head))
        return metadata + _TAIL.pack(len(metadata), checksum, self._head[:4])


class BlockReader:
    """Finds the metadata, and reads blocks when they are asked for.

    Args:
        data: Everything; a mapped file will do.
        magic: What it should begin with.
        version: Of the format.
        what: What it should be, for messages.

    Attributes:
        metadata: What was written behind the blocks.

    Raises:
        CorruptStreamError: If it is something else, of another version, or damaged.
    """

    __slots__ = ("_data", "_end", "_what", "metadata")

    def __init__(
        self, data: bytes | memoryview, magic: bytes, version: int, what: str
    ) -> None:
        self._data = memoryview(data)
        self._what = what
        shortest = _HEAD.size + _TAIL.size
        if len(self._data) < shortest or bytes(self._data[:4]) != magic:
            raise CorruptStreamError(f"these bytes are not a {what}")
        head = self._data[: _HEAD.size]
        _, found = _HEAD.unpack(head)
        if found != version:
            raise CorruptStreamError(
                f"the {what} is of version {found}; known is {version}"
            )
        length, checksum, last = _TAIL.unpack(self._data[-_TAIL.size :])
        if last != magic or length > len(self._data) - shortest:
            raise CorruptStreamError(f"the {what} is truncated")
        self._end = len(self._data) - _TAIL.size - length
        self.metadata: memoryview[int] = self._data[self._end : -_TAIL.size]
        if zlib.crc32(self.metadata, zlib.crc32(head)) != checksum:
            raise CorruptStreamError(
                f"the {what} is damaged: its checksum does not match"
            )

    def block(self, place: Sequence[int]) -> memoryview:
        """Return the bytes of a block.

        Raises:
            CorruptStreamError: If they are damaged.
        """
        start, length, checksum = place
        if start < _HEAD.size or length < 0 or start + length > self._end:
            raise CorruptStreamError(f"a block of the {self._what} lies outside of it")
        data = self._data[start : start + length]
        if zlib.crc32(data) != checksum:
            raise CorruptStreamError(
                f"a block of the {self._what} is damaged: its checksum does not match"
            )
        return data
