"""A log that is only appended to, in segments, and survives a crash at any byte.

An entry is durable once `AppendLog.sync` has returned after it. What a crash cut off at
the end of the last segment is dropped when the log is opened again: nobody was told
that it had been written.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

from aiomailbox.errors import DamagedFileError
from aiomailbox.storage.local import sync_directory

__all__ = ["ENTRY_BYTES_MAX", "AppendLog"]

ENTRY_BYTES_MAX: Final = 1 << 26
_MAGIC: Final = b"AIOMBXLOG\1"
_ENTRY: Final = struct.Struct("<II")
_SUFFIX: Final = ".log"


class AppendLog:
    """Entries of bytes in order, in numbered files of a directory; blocks.

    One process writes it; the directory is claimed by whoever owns it.

    Args:
        directory: Made if it is not there.

    Attributes:
        segment: The number of the segment that is being appended to.

    Raises:
        DamagedFileError: If an entry before the end is not what was written.
        OSError: If the directory cannot be read or written.

    Example:
        >>> import tempfile
        >>> log = AppendLog(tempfile.mkdtemp())
        >>> log.append([b"one", b"two"])
        >>> log.sync()
        >>> log.roll()
        1
        >>> log.append([b"three"])
        >>> [entry for _, entry in log.entries()]
        [b'one', b'two', b'three']
        >>> log.prune(before=1)
        >>> [entry for _, entry in log.entries()]
        [b'three']
        >>> log.close()
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        numbers = self._numbers()
        self.segment = numbers[-1] if numbers else 0
        for number in numbers:
            self._check(number, is_last=number == self.segment)
        self._file = self._open(self.segment)

    def append(self, entries: Iterable[bytes]) -> None:
        """Append entries; durable after the next `sync`.

        Each has at most 64 MiB. If it raises, none of them is there.
        """
        parts = []
        for entry in entries:
            assert len(entry) <= ENTRY_BYTES_MAX, "an entry has at most 64 MiB"
            parts += [_ENTRY.pack(len(entry), _checksum(entry)), entry]
        data = memoryview(b"".join(parts))
        start = os.lseek(self._file, 0, os.SEEK_END)
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except BaseException:
            # A full disk may take half of it: the next entry must not follow that.
            os.ftruncate(self._file, start)
            raise

    def sync(self) -> None:
        """Wait until all entries are on the disk."""
        os.fdatasync(self._file)

    def roll(self) -> int:
        """Begin a new segment and return its number; the one before is synced."""
        self.sync()
        os.close(self._file)
        self.segment += 1
        self._file = self._open(self.segment)
        return self.segment

    def prune(self, before: int) -> None:
        """Delete the segments whose number is less than ``before``; never the last."""
        for number in self._numbers():
            if number < min(before, self.segment):
                self._path(number).unlink()

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """Yield every entry with the number of its segment, oldest first."""
        for number in self._numbers():
            for entry, _ in self._read(number):
                yield number, entry

    def close(self) -> None:
        """Sync and close. Idempotent."""
        if self._file >= 0:
            try:
                self.sync()
            finally:
                os.close(self._file)
                self._file = -1

    def _numbers(self) -> list[int]:
        return sorted(
            int(path.stem)
            for path in self._directory.glob(f"*{_SUFFIX}")
            if path.stem.isdecimal()
        )

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:012}{_SUFFIX}"

    def _open(self, number: int) -> int:
        path = self._path(number)
        is_new = not path.exists() or path.stat().st_size < len(_MAGIC)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        if is_new:
            os.ftruncate(file, 0)
            os.write(file, _MAGIC)
            os.fdatasync(file)
            sync_directory(self._directory)
        return file

    def _check(self, number: int, *, is_last: bool) -> None:
        """Read a segment, and cut off what a crash left at the end of the last one."""
        path = self._path(number)
        size = path.stat().st_size
        if is_last and size < len(_MAGIC):
            return
        end = max((end for _, end in self._read(number)), default=len(_MAGIC))
        if end == size:
            return
        if not is_last:
            raise DamagedFileError(str(path), f"what follows byte {end} is no entry")
        with open(path, "r+b") as file:
            file.truncate(end)
            os.fsync(file.fileno())

    def _read(self, number: int) -> Iterator[tuple[bytes, int]]:
        """Yield entries with the offset behind each, as far as they are whole."""
        path = self._path(number)
        with open(path, "rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise DamagedFileError(str(path), "it does not begin like a log")
            end = len(_MAGIC)
            while len(header := file.read(_ENTRY.size)) == _ENTRY.size:
                size, checksum = _ENTRY.unpack(header)
                if size > ENTRY_BYTES_MAX:
                    return
                entry = file.read(size)
                if len(entry) < size or _checksum(entry) != checksum:
                    return
                end += _ENTRY.size + size
                yield entry, end


def _checksum(entry: bytes) -> int:
    # With the length: a file system may leave zeros at the end, and of nothing but
    # zeros the checksum must not be zero.
    return crc32(entry, len(entry) + 1)
