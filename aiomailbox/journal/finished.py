"""What calls of earlier epochs came to: keys in memory, all else in a file.

Theory of operation: an index has for each key the place of its entry, about 150 bytes,
however large the results are.
"""

from __future__ import annotations

import os
from pathlib import Path

from aiomailbox.journal.entries import Entry, decode_entry
from aiomailbox.journal.layout import base_directories, check_finished
from aiomailbox.storage.append_log import LogSegment, entry_at

__all__ = ["FinishedBefore"]


class FinishedBefore:
    """The base of an operator, as all its subtasks in one process share it; blocks.

    It stays readable when its files are deleted, until it is closed.

    Args:
        operator: The operator's directory.

    Attributes:
        places: By key where its entry is.
        users: Subtasks that have it open.

    Raises:
        DamagedFileError: If the base is not what was written.
        OSError: If it cannot be read.
    """

    __slots__ = ("_file", "_path", "places", "users")

    def __init__(self, operator: Path) -> None:
        self.places: dict[bytes, int] = {}
        self.users: int = 0
        self._file = -1
        self._path = Path()
        for base in base_directories(operator)[-1:]:
            for segment in LogSegment.all_in(base):
                self._load(segment)

    def read(self, place: int) -> Entry:
        """Return the entry at a place.

        Raises:
            DamagedFileError: If it is not what was written.
            OSError: If it cannot be read.
        """
        data = entry_at(self._file, place, self._path)
        return decode_entry(str(self._path), data)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _load(self, segment: LogSegment) -> None:
        check_finished(segment, is_last=False)
        name = str(segment.path)
        for place, data in segment.entries():
            self.places[decode_entry(name, data).key] = place
        self._path = segment.path
        self._file = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
