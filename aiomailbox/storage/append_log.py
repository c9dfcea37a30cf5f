"""A log that is only appended to, in segments, and survives a crash at any byte.

An entry survives the process once `AppendLog.append` has returned, and the machine once
`AppendLog.sync` has returned after it. If a crash has torn the end of the last segment,
opening the log again cuts it off, with a warning: its write was never acknowledged.
Damage is told apart from that, and is an error.

Theory of operation: a segment is mapped into memory, with room that the disk has promised.
So appending is a copy, which no other thread's sync holds up as it does a write. Behind
the last entry are zeros until the segment is complete. Entries are copied one after the
other, so a killed process leaves at most one that is not whole, and nothing behind it. A
machine that loses its power may also leave out whole pages, which are zeros then. So an
entry that is not whole, without such a page and with a whole one behind it, is damage.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

from aiomailbox.errors import DamagedFileError
from aiomailbox.logs import library_log
from aiomailbox.storage.local import (
    PRIVATE,
    make_directories,
    open_file,
    sync_directory,
)

ENTRY_BYTES_MAX: Final = 1 << 26
_MAGIC: Final = b"AIOMBXLOG\1"
_ENTRY: Final = struct.Struct("<II")
_LENGTH: Final = struct.Struct("<I")
_SUFFIX: Final = ".log"
# So much room is asked for at a time; half of it at the beginning would do for most.
_ROOM_BYTES: Final = 1 << 18
# What a file system writes as a whole, or not at all.
_PAGE_BYTES: Final = 1 << 12
_SEARCH_CHUNK_BYTES: Final = 1 << 20
# Entries are searched for by their length, short ones first: in a large content much can
# be taken for a length. For each so much is compared with checksums, in about a second.
_SEARCHED_LENGTHS: Final = (
    (1, 1 << 12),
    (1 << 12, 1 << 18),
    (1 << 18, ENTRY_BYTES_MAX + 1),
)
_COMPARED_BYTES_MAX: Final = 1 << 30


class AppendLog:
    """Entries of bytes in order, in numbered files of a directory; blocks.

    One process writes it; the directory is claimed by its owner. `append` and
    `roll` belong to one thread and touch no disk; `sync` may be called in another one
    meanwhile.

    Args:
        directory: Made if it is not there.

    Attributes:
        segment: The number of the segment that is being appended to.

    Raises:
        DamagedFileError: If an entry is not what was written, and that was no crash.
        OSError: If the directory cannot be read or written.

    Example:
        >>> import tempfile
        >>> log = AppendLog(tempfile.mkdtemp())
        >>> log.append([b"one", b"two"])
        10
        >>> log.sync()
        >>> log.roll()
        1
        >>> log.append([b"three"])
        10
        >>> [entry for _, entry in log.entries()]
        [b'one', b'two', b'three']
        >>> log.close()
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        file_mode: int = PRIVATE,
    ) -> None:
        self._directory = Path(directory)
        self._file_mode = file_mode
        make_directories(self._directory, file_mode)
        segments = LogSegment.all_in(self._directory)
        for segment in segments:
            end = segment.check(is_last=segment is segments[-1])
            if end is not None:
                _cut_off(segment.path, end)
        self.segment: int = segments[-1].number if segments else 0
        # Segments that are complete; `sync` closes them, so that none is closed under it.
        self._rolled: deque[int] = deque()
        self._has_new_name = False
        self._syncing = threading.Lock()
        self._file = -1
        self._end = self._room = 0
        # One byte, so that there is always something to close.
        self._mapped = mmap.mmap(-1, 1)
        self._open(self.segment)
        self.sync()

    def append(self, entries: Iterable[bytes]) -> int:
        """Append entries; durable after the next `sync`.

        Each has at most 64 MiB. If it raises, none of them is there.

        Returns:
            Where the first of them is in its segment; see `LogSegment.entry_at`.
        """
        frames = [_framed(entry) for entry in entries]
        start = at = self._end
        end = start + sum(map(len, frames))
        if end > self._room:
            self._grow(end)
        # Not all in one copy, which may write its end first: a kill tears one at most.
        for frame in frames:
            self._mapped[at : at + len(frame)] = frame
            at += len(frame)
        self._end = end
        return start

    def append_one(self, entry: bytes) -> int:
        """Append one entry, as `append` does; faster."""
        size = len(entry)
        assert size <= ENTRY_BYTES_MAX, "an entry has at most 64 MiB"
        # Written out, and not `append`: this is done for each call.
        start = self._end
        end = start + _ENTRY.size + size
        if end > self._room:
            self._grow(end)
        head = _ENTRY.pack(size, crc32(entry, size + 1))
        self._mapped[start:end] = head + entry
        self._end = end
        return start

    def sync(self) -> None:
        """Wait until all entries that were appended before are on the disk."""
        with self._syncing:
            current = self._file
            if self._has_new_name:
                self._has_new_name = False
                # A new file whose name is lost with the power loses its entries, too.
                sync_directory(self._directory)
            while self._rolled:
                file = self._rolled.popleft()
                if file == current:
                    # It was rolled a moment ago.
                    current = -1
                try:
                    os.fdatasync(file)
                finally:
                    os.close(file)
            if current >= 0:
                os.fdatasync(current)

    def roll(self, number: int | None = None) -> int:
        """Begin a new segment and return its number."""
        number = self.segment + 1 if number is None else number
        assert number > self.segment, "segments are numbered upwards"
        before, end = self._file, self._end
        mapped = self._mapped
        # The new one first: if the disk is full the old one can still be appended to.
        self._open(number)
        self.segment = number
        self._complete(before, mapped, end)
        return number

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """Yield every entry with the number of its segment, oldest first."""
        for segment in LogSegment.all_in(self._directory):
            for _, entry in segment.entries():
                yield segment.number, entry

    def close(self) -> None:
        """Sync and close. Idempotent."""
        if self._file >= 0:
            before, self._file = self._file, -1
            self._complete(before, self._mapped, self._end)
        self.sync()

    def _grow(self, end: int) -> None:
        """Have room up to ``end``, or raise: what is full then is as it was."""
        room = end + _ROOM_BYTES
        # Promised by the disk: writing into a mapped hole of a full disk would be
        # SIGBUS.
        os.posix_fallocate(self._file, 0, room)
        mapped = mmap.mmap(self._file, room)
        # After the new one was made: what fails before leaves the old one as it is.
        self._mapped.close()
        self._mapped, self._room = mapped, room

    def _open(self, number: int) -> None:
        """Begin to append to a segment, behind what it has; raise before that."""
        path = LogSegment(self._directory, number).path
        file = open_file(path, os.O_RDWR | os.O_CREAT, self._file_mode)
        try:
            end = os.fstat(file).st_size
            is_new = end < len(_MAGIC)
            end = max(end, len(_MAGIC))
            room = end + _ROOM_BYTES
            os.posix_fallocate(file, 0, room)
            mapped = mmap.mmap(file, room)
        except BaseException:
            os.close(file)
            raise
        mapped[: len(_MAGIC)] = _MAGIC
        self._has_new_name |= is_new
        self._file, self._end = file, end
        self._mapped, self._room = mapped, room

    def _complete(self, file: int, mapped: mmap.mmap, end: int) -> None:
        """Truncate the file behind the last entry; `sync` closes it."""
        mapped.close()
        os.ftruncate(file, end)
        self._rolled.append(file)


class LogSegment:
    """One file of an `AppendLog`, for reading; a writer may be appending to it.

    Args:
        directory: The log's.
        number: The segment's.

    Attributes:
        number: The segment's number.
        path: The file.
    """

    def __init__(self, directory: Path, number: int) -> None:
        self.number: int = number
        self.path: Path = directory / f"{number:012}{_SUFFIX}"

    @classmethod
    def all_in(cls, directory: Path) -> list[LogSegment]:
        """Return the segments of a log, in order; none if there is no such log."""
        numbers = (
            int(path.stem)
            for path in directory.glob(f"*{_SUFFIX}")
            if path.stem.isdecimal()
        )
        return [cls(directory, number) for number in sorted(numbers)]

    def entries(self, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield each entry with its place, as far as they are whole.

        Raises:
            DamagedFileError: If it does not begin like a segment.
            OSError: If it cannot be read.
        """
        with open(self.path, "rb") as file:
            magic = file.read(len(_MAGIC))
            if magic.count(0) == len(magic):
                # A crash came when it had its room, and nothing in it.
                return
            if magic != _MAGIC[: len(magic)]:
                raise DamagedFileError(str(self.path), "it does not begin like a log")
            start = max(start, len(_MAGIC))
            file.seek(start)
            while len(header := file.read(_ENTRY.size)) == _ENTRY.size:
                size, checksum = _ENTRY.unpack(header)
                # Garbage of a crash, and no length that could be read into memory.
                if size > ENTRY_BYTES_MAX:
                    return
                entry = file.read(size)
                if len(entry) < size or _checksum(entry) != checksum:
                    return
                yield start, entry
                start += _ENTRY.size + size

    def whole_entries(self, start: int = 0) -> bytes:
        """Return the bytes of the segment as far as entries are whole, none without any.

        Raises:
            DamagedFileError: If it does not begin like a segment.
            OSError: If it cannot be read.
        """
        end = start
        for place, entry in self.entries(start):
            end = place + _ENTRY.size + len(entry)
        with open(self.path, "rb") as file:
            file.seek(start)
            return file.read(end - start)

    def check(self, *, is_last: bool) -> int | None:
        """Return where it has to be cut off, None if it is whole.

        A crash may leave the end of the last segment torn, and behind the end of
        another one the room that it had. A torn end is logged with its length.

        Raises:
            DamagedFileError: If it is damaged and that was no crash.
            OSError: If it cannot be read.
        """
        end = len(_MAGIC)
        while True:
            for start, entry in self.entries(end):
                end = start + _ENTRY.size + len(entry)
            written = self._written_from(end)
            if not written:
                return end if self.path.stat().st_size > end else None
            if not is_last:
                raise DamagedFileError(str(self.path), f"no entry begins at byte {end}")
            behind = self._whole_entry_behind(end)
            if behind is None or self._has_empty_page(end, behind):
                break
            # Its writer may have gone on meanwhile: then it is whole by now.
            if next(self.entries(end), None) is None:
                raise DamagedFileError(
                    str(self.path),
                    f"no entry begins at byte {end}, but one does at byte {behind}"
                    ": no crash does that",
                )
        library_log().warning(
            "a crash has torn the last entry of a log, which is left out",
            path=str(self.path),
            byte=end,
            length=written,
        )
        return end

    def _written_from(self, place: int) -> int:
        """Return how many bytes there are behind a place, without the zeros of room."""
        written = 0
        with open(self.path, "rb") as file:
            file.seek(place)
            read = 0
            while chunk := file.read(_ROOM_BYTES):
                if chunk.count(0) != len(chunk):
                    written = read + len(chunk.rstrip(b"\0"))
                read += len(chunk)
        return written

    def _whole_entry_behind(self, place: int) -> int | None:
        """Return where a whole entry is from a broken one on, None if none is found."""
        with open(self.path, "rb") as file:
            number = file.fileno()
            size = os.fstat(number).st_size
            header = os.pread(number, _ENTRY.size, place)
            if len(header) == _ENTRY.size:
                # Mostly it is the content that is damaged, and the length is not.
                length: int = _ENTRY.unpack(header)[0]
                after = place + _ENTRY.size + length
                if _whole_at(number, after) is not None:
                    return after
            for lengths in _SEARCHED_LENGTHS:
                found = _search_entry(number, range(place, size), range(*lengths))
                if found is not None:
                    return found
        return None

    def _has_empty_page(self, place: int, behind: int) -> bool:
        """Say whether a page between was never written, as when the power was lost."""
        with open(self.path, "rb") as file:
            while place < behind:
                page_end = place - place % _PAGE_BYTES + _PAGE_BYTES
                page = os.pread(file.fileno(), page_end - place, place)
                if page.count(0) == len(page):
                    return True
                place = page_end
        return False

    def entry_at(self, place: int) -> bytes:
        """Return the entry at a place that `entries` or `AppendLog.append` named.

        Raises:
            DamagedFileError: If there is no whole entry.
            OSError: If it cannot be read.
        """
        with open(self.path, "rb") as file:
            return entry_at(file.fileno(), place, self.path)


def entry_at(file: int, place: int, path: Path) -> bytes:
    """Return the entry at a place of an open segment; see `LogSegment.entry_at`."""
    entry = _whole_at(file, place)
    if entry is None:
        raise DamagedFileError(str(path), f"there is no entry at byte {place}")
    return entry


def _whole_at(file: int, place: int) -> bytes | None:
    header = os.pread(file, _ENTRY.size, place)
    if len(header) == _ENTRY.size:
        size, checksum = _ENTRY.unpack(header)
        if size <= ENTRY_BYTES_MAX:
            entry = os.pread(file, size, place + _ENTRY.size)
            if len(entry) == size and _checksum(entry) == checksum:
                return entry
    return None


def _search_entry(file: int, places: range, lengths: range) -> int | None:
    """Return where the first whole entry begins that has one of some lengths."""
    shortest, longest, left = lengths.start, lengths[-1], _COMPARED_BYTES_MAX
    for start in places[::_SEARCH_CHUNK_BYTES]:
        # With all of a length that begins at the end of the chunk.
        chunk = os.pread(file, _SEARCH_CHUNK_BYTES + _LENGTH.size - 1, start)
        if chunk.count(0) == len(chunk):
            continue
        for shift in range(_LENGTH.size):
            count = max(0, len(chunk) - shift) // _LENGTH.size
            view = memoryview(chunk)[shift : shift + count * _LENGTH.size]
            at = start + shift - _LENGTH.size
            for (length,) in _LENGTH.iter_unpack(view):
                at += _LENGTH.size
                if not shortest <= length <= longest:
                    continue
                if at + _ENTRY.size + length <= places.stop:
                    left -= length
                    if left < 0:
                        return None
                    if _whole_at(file, at) is not None:
                        return at
    return None


def _cut_off(path: Path, end: int) -> None:
    with open(path, "r+b") as file:
        file.truncate(end)
        os.fsync(file.fileno())


def _framed(entry: bytes) -> bytes:
    size = len(entry)
    assert size <= ENTRY_BYTES_MAX, "an entry has at most 64 MiB"
    return _ENTRY.pack(size, crc32(entry, size + 1)) + entry


def _checksum(entry: bytes) -> int:
    # With the length: a file system may leave zeros at the end, and of nothing but
    # zeros the checksum must not be zero.
    return crc32(entry, len(entry) + 1)
