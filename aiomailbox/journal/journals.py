"""The journals of a job's operators, in one process and one attempt."""

from __future__ import annotations

import secrets
import threading
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from aiomailbox.journal.entries import (
    EntryKind,
    FinishedBefore,
    JournalEntry,
    base_directories,
    check_finished,
    decode_entry,
    log_directories,
    operator_directory,
)
from aiomailbox.journal.fence import Fence
from aiomailbox.journal.place import JournalPlace, LocalPlace, place_of
from aiomailbox.journal.subtask import SubtaskJournal
from aiomailbox.scratch import ScratchDirectory
from aiomailbox.storage.append_log import LogSegment
from aiomailbox.storage.local import PRIVATE, make_directories


class Journals:
    """Gives the subtasks of operators their journals.

    Args:
        place: The job's, which `JobJournal` has made ready for this attempt: a path, a
            place, or what makes one below a directory of this machine that goes with
            it.
        epoch: The attempt's number.
        classes: The classes of records that results may have, as the job declares them.

    Attributes:
        classes: The same.

    Example:
        >>> import asyncio, tempfile
        >>> from aiomailbox.journal.entries import EntryKind
        >>> from aiomailbox.journal.job import JobJournal
        >>> directory = tempfile.mkdtemp()
        >>> def begin(epoch):
        ...     JobJournal(directory).begin(epoch, {"ask": [0]})
        ...     return Journals(directory, epoch).journal("ask", 0)
        >>> async def finish(journal):
        ...     await journal.open()
        ...     journal.append(EntryKind.RESULT, b"id", b"01234567", b"forty-two")
        ...     await journal.close()
        >>> async def find(journal):
        ...     await journal.open()
        ...     [entry] = await journal.read([journal.find(b"id")])
        ...     await journal.close()
        ...     return entry.payload
        >>> asyncio.run(finish(begin(0)))
        >>> asyncio.run(find(begin(1)))
        b'forty-two'
    """

    def __init__(
        self,
        place: str | Path | JournalPlace | Callable[[Path], JournalPlace],
        epoch: int,
        classes: Iterable[Any] = (),
    ) -> None:
        self.classes: tuple[Any, ...] = tuple(classes)
        self._make_place = place if callable(place) else None
        self._place = None if callable(place) else place_of(place)
        self._epoch = epoch
        self._before: dict[str, FinishedBefore] = {}
        self._scratch: ScratchDirectory | None = None
        self._lock = threading.Lock()

    def journal(self, operator_id: str, subtask: int) -> SubtaskJournal:
        """Return the journal of a subtask, to be opened."""
        return SubtaskJournal(operator_id, self._epoch, subtask, self)

    def acquire(self, operator_id: str) -> tuple[JournalPlace, Path, FinishedBefore]:
        """Return what earlier epochs have left of an operator, and where; in a thread.

        Raises:
            DamagedFileError: If it is not what was written.
            OSError: If it cannot be read.
        """
        # The subtasks of an operator open at one time.
        with self._lock:
            place = self._opened_place()
            operator = operator_directory(place.path, operator_id)
            known = self._before.get(operator_id)
            if known is None:
                place.fetch_base(operator)
                known = self._before[operator_id] = FinishedBefore(operator)
            known.users += 1
            return place, operator, known

    def release(self, operator_id: str) -> None:
        """Be notified that a subtask does not use it any more."""
        with self._lock:
            known = self._before[operator_id]
            known.users -= 1
            if not known.users:
                del self._before[operator_id]
                known.close()
            if not self._before and self._scratch is not None:
                self._scratch.remove()
                self._scratch = None

    def _opened_place(self) -> JournalPlace:
        if self._make_place is not None and self._scratch is None:
            self._scratch = ScratchDirectory()
            self._place = self._make_place(self._scratch.path)
        assert self._place is not None, "it was given, or made"
        return self._place


# Journals of tasks that no master directs: each attempt writes a file of its own.
#
# Theory of operation: where tasks are restarted from outside, and may run twice at a
# time, no attempt can be shut out. So each appends to a log that is its alone, and
# reads when it begins what all others have finished. An attempt that runs beside
# another may make a call that the other makes too; what is finished is not made again.


# No two attempts ever have one number.
_ATTEMPT_BITS: Final = 62


_HEAD_BYTES: Final = 16


class SharedJournals(Journals):
    """Gives the subtasks of operators journals that no master has made ready.

    Args:
        directory: In storage that all tasks see; made if it is not there.
        classes: The classes of records that results may have, as the job declares them.

    Example:
        >>> import asyncio, tempfile
        >>> from aiomailbox.journal.entries import EntryKind
        >>> directory = Path(tempfile.mkdtemp())
        >>> first = SharedJournals(directory).journal("ask", 0)
        >>> second = SharedJournals(directory).journal("ask", 1)
        >>> async def run():
        ...     await first.open()
        ...     first.append(EntryKind.RESULT, b"id", b"01234567", b"forty-two")
        ...     await first.close()
        ...     await second.open()
        ...     [entry] = await second.read([second.find(b"id")])
        ...     await second.close()
        ...     return entry.payload
        >>> asyncio.run(run())
        b'forty-two'
    """

    def __init__(self, directory: Path, classes: Iterable[object] = ()) -> None:
        super().__init__(directory, secrets.randbits(_ATTEMPT_BITS), classes)
        self._directory = directory

    def acquire(self, operator_id: str) -> tuple[JournalPlace, Path, FinishedBefore]:
        """Return what other attempts have finished of an operator, and where; in a thread.

        Raises:
            DamagedFileError: If it is not what was written.
            OSError: If it cannot be read.
        """
        with self._lock:
            operator = operator_directory(self._directory, operator_id)
            known = self._before.get(operator_id)
            if known is None:
                make_directories(operator, PRIVATE)
                known = self._before[operator_id] = _FinishedByOthers(operator)
            known.users += 1
            return _OpenPlace(self._directory), operator, known


class _FinishedByOthers(FinishedBefore):
    """The entries of all logs of an operator, by key; about 150 bytes a call."""

    def __init__(self, operator: Path) -> None:
        super().__init__(operator)
        assert not base_directories(operator), "a shared journal has no base"
        self._segments: list[LogSegment] = []
        # Of each entry its place, and in which segment.
        self._starts = array("Q")
        self._which = array("L")
        for log in log_directories(operator):
            segments = log.segments
            for segment in segments:
                self._add(segment, is_last=segment is segments[-1])

    def read(self, place: int) -> JournalEntry:
        """Return an entry.

        Raises:
            DamagedFileError: If it is not what was written.
            OSError: If it cannot be read.
        """
        segment = self._segments[self._which[place]]
        data = segment.entry_at(self._starts[place])
        return decode_entry(str(segment.path), data)

    def _add(self, segment: LogSegment, *, is_last: bool) -> None:
        if _is_new(segment):
            return
        check_finished(segment, is_last=is_last)
        number = len(self._segments)
        self._segments.append(segment)
        name = str(segment.path)
        for start, data in segment.entries():
            entry = decode_entry(name, data)
            if entry.kind in {EntryKind.RESULT, EntryKind.FAILURE}:
                self.places[entry.key] = len(self._starts)
                self._starts.append(start)
                self._which.append(number)


class _OpenPlace(LocalPlace):
    """A directory that no attempt is shut out of."""

    def fence(self, operator: Path, epoch: int, subtask: int) -> Fence:
        """Return a fence that lets every attempt pass."""
        return _NoFence()


class _NoFence:
    def check(self) -> None:
        """Do nothing: no attempt is shut out."""

    def check_anew(self) -> None:
        """Do nothing, as `check`."""

    def close(self) -> None:
        """Nothing is open."""


def _is_new(segment: LogSegment) -> bool:
    """Say whether another attempt is just making it."""
    with open(segment.path, "rb") as file:
        return not any(file.read(_HEAD_BYTES))
