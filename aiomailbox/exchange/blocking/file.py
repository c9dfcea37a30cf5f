"""Buffers in a file: ``length:uint32 | checksum:uint32 | data type:uint8 | bytes``.

Theory of operation: the file has no name from the beginning, so that no other process
can open it, and it is gone when it is closed or when the process dies, however it dies. It
is appended to by one thread at a time, and read at positions, by any number of them.
A reader knows how many bytes were written and how long the longest buffer is: a
length that was damaged is refused before anything is set aside for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import zlib
from typing import Any, BinaryIO, Final, NamedTuple

from aiomailbox.errors import CorruptStreamError, PartitionStorageError
from aiomailbox.memory.buffer import DataType

_HEADER: Final = struct.Struct(">IIB")
_CHECKED: Final = struct.Struct(">IB")


class StoredBuffer(NamedTuple):
    """A buffer as it was read back; the view keeps all that was read with it."""

    data_type: DataType
    content: memoryview


class BlockingFile:
    """The file of one subpartition.

    Methods may run in a thread; only `append` and `flush` must not overlap.

    Args:
        directory: On which disk; None for the system's place for temporary files.

    Attributes:
        size_bytes: Bytes written, with their headers.
        frame_bytes_max: Size of the largest buffer, with its header.

    Example:
        >>> file = BlockingFile()
        >>> file.append(DataType.DATA_BUFFER, memoryview(b"stream"))
        >>> file.flush()
        >>> buffers, next_offset = file.read(0, 1024)
        >>> bytes(buffers[0].content), next_offset == file.size_bytes
        (b'stream', True)
        >>> file.close()
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self._directory = directory
        # Opened by the first write: a subpartition that gets nothing needs no file.
        self._file: BinaryIO | None = None
        self.size_bytes: int = 0
        self.frame_bytes_max: int = 0

    def append(self, data_type: DataType, content: memoryview) -> None:
        """Write a buffer at the end.

        Raises:
            OSError: If the disk does not take it.
        """
        file = self._file
        if file is None:
            file = self._file = open_nameless(self._directory)
        size_bytes = len(content)
        header = _HEADER.pack(size_bytes, _checksum(data_type, content), data_type)
        file.write(header)
        file.write(content)
        self.size_bytes += _HEADER.size + size_bytes
        self.frame_bytes_max = max(self.frame_bytes_max, _HEADER.size + size_bytes)

    def flush(self) -> None:
        """Hand to the operating system what was written.

        Raises:
            OSError: If the disk does not take it.
        """
        if self._file is not None:
            self._file.flush()

    def read(self, offset: int, bytes_max: int) -> tuple[list[StoredBuffer], int]:
        """Read buffers from an offset on.

        Returns:
            Whole buffers, at least one, and where the next one begins.

        Raises:
            CorruptStreamError: If the file does not hold what was written.
            OSError: If the disk cannot be read.
        """
        # At least one whole buffer, whatever was asked for.
        wanted = min(max(bytes_max, self.frame_bytes_max), self.size_bytes - offset)
        chunk = memoryview(self._read_all(offset, wanted))
        buffers: list[StoredBuffer] = []
        at = 0
        while at + _HEADER.size <= len(chunk):
            length, checksum, number = _HEADER.unpack_from(chunk, at)
            # Before the length is used for anything: a damaged one may be four
            # gigabytes.
            if _HEADER.size + length > self.frame_bytes_max:
                raise self._corrupt(offset + at, f"a buffer of {length} bytes")
            end = at + _HEADER.size + length
            if end > len(chunk):
                break
            content = chunk[at + _HEADER.size : end]
            if number not in _KNOWN or _checksum(number, content) != checksum:
                raise self._corrupt(offset + at, "a checksum that does not match")
            buffers.append(StoredBuffer(DataType(number), content))
            at = end
        if not buffers:
            raise self._corrupt(offset, "a buffer that goes beyond the end")
        return buffers, offset + at

    def close(self) -> None:
        """Give the space back. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            # What a full disk did not take is tried once more here, for nothing.
            with contextlib.suppress(OSError):
                file.close()

    def _read_all(self, offset: int, size_bytes: int) -> bytes:
        assert self._file is not None
        pieces: list[bytes] = []
        missing = size_bytes
        while missing:
            piece = os.pread(
                self._file.fileno(), missing, offset + size_bytes - missing
            )
            if not piece:
                raise self._corrupt(offset, f"an end that is {missing} bytes early")
            pieces.append(piece)
            missing -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _corrupt(self, offset: int, what: str) -> CorruptStreamError:
        return CorruptStreamError(
            f"the file of a blocking partition has {what} at byte {offset} of "
            f"{self.size_bytes}: it was changed or truncated after it was written"
        )


def open_nameless(directory: str | os.PathLike[str] | None) -> BinaryIO:
    """Open a file for writing and reading that no directory shows."""
    # Late: its import takes long, and few jobs keep records in files.
    import tempfile

    return tempfile.TemporaryFile(
        dir=directory, prefix="aiomailbox-", suffix=".partition"
    )


def thread_error(future: asyncio.Future[Any]) -> BaseException | None:
    """Return why a call in a thread failed, or never came to be made; None if it did."""
    if future.cancelled():
        return PartitionStorageError(
            "the threads that use the disk were shut down before a blocking partition "
            "was done with it"
        )
    return future.exception()


def _checksum(data_type: int, content: memoryview) -> int:
    return zlib.crc32(content, zlib.crc32(_CHECKED.pack(len(content), data_type)))


_KNOWN: Final[frozenset[int]] = frozenset(DataType) - {DataType.NONE}
