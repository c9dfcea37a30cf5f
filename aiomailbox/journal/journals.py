"""The outcomes of the calls of a job's subtasks: found again, appended, made durable."""

from __future__ import annotations

import contextlib
import secrets
import threading
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from aiomailbox.errors import FencedError
from aiomailbox.journal.entries import (
    NO_FINGERPRINT,
    EntryKind,
    FinishedBefore,
    JournalEntry,
    base_directories,
    check_finished,
    encode_entry,
    encode_mark,
    entries_in,
    entry_in,
    log_directories,
    log_directory,
    operator_directory,
)
from aiomailbox.journal.fence import Fence
from aiomailbox.journal.place import JournalPlace
from aiomailbox.scratch import ScratchDirectory
from aiomailbox.storage.append_log import AppendLog, LogSegment
from aiomailbox.storage.local import PRIVATE, make_directories
from aiomailbox.supervision import ThreadTurns

# Of the calls that this subtask has made itself, so many at least are known again.
_REMEMBERED: Final = 1 << 16
_OWN: Final = 1 << 40


class SubtaskJournal:
    """The journal of one subtask of an operator in one epoch.

    `find`, `append`, `note_found` and `mark` are called on the loop and never wait for
    the disk; the others do, in threads.

    Args:
        operator_id: The operator's id.
        epoch: The attempt's number.
        subtask: The subtask's index.
        shared: Has what earlier epochs have left; asked in threads.

    Attributes:
        segment: The segment that the next entry goes to.
        size: Entries appended so far.
        commit_pause_s: The time from one `sync` to the next that suits the place.

    Invariants:
        An entry survives the process once `append` has returned. It survives the
        machine, and no later epoch has begun before it, once `sync` has returned after
        that.
    """

    def __init__(
        self,
        operator_id: str,
        epoch: int,
        subtask: int,
        shared: Journals,
    ) -> None:
        self._operator_id = operator_id
        self._epoch = epoch
        self._subtask = subtask
        self._shared = shared
        self._before: FinishedBefore | None = None
        self._log: AppendLog | None = None
        self._fence: Fence | None = None
        self._path = Path()
        self._commit: Callable[[], None] = _not_open
        self._turns = ThreadTurns()
        self._recent: dict[bytes, int] = {}
        self._older: dict[bytes, int] = {}
        self._is_empty = True
        self._needed = 0
        # What makes the place of an entry in the present segment.
        self._base = _OWN
        self.segment: int = 0
        self.size: int = 0
        self.commit_pause_s: float = 0.0

    @property
    def classes(self) -> tuple[Any, ...]:
        """The classes of records that results may have, as the job declares them."""
        return self._shared.classes

    async def open(self) -> None:
        """Begin the subtask's log, and learn which calls were finished before.

        Raises:
            FencedError: If a later epoch has begun.
            DamagedFileError: If what earlier epochs have left is damaged.
            OSError: If the directory cannot be read or written.
        """
        await self._turns.run(self._open)

    def find(self, key: bytes) -> int | None:
        """Return the place of what a record's call came to, None if that is not known."""
        place = self._recent.get(key)
        if place is None and self._older:
            place = self._older.get(key)
        if place is None and self._before is not None:
            place = self._before.places.get(key)
        return place

    async def read(self, places: list[int]) -> list[JournalEntry | None]:
        """Return the entries at places that `find` gave; None for one that was pruned.

        Raises:
            DamagedFileError: If one is not what was written.
            OSError: If one cannot be read.
        """
        return await self._turns.run(self._read, places)

    def append(self, kind: int, key: bytes, fingerprint: bytes, payload: bytes) -> int:
        """Append what a call came to; return the segment that has it.

        Args:
            kind: Result or failure.
            key: The record's key.
            fingerprint: Of what the call was made with: 8 bytes.
            payload: Its outcome.

        Raises:
            FencedError: If a later epoch has begun; nothing was appended.
            OSError: If it cannot be written; nothing was appended.
        """
        log, fence = self._log, self._fence
        assert log is not None, "append before open"
        assert fence is not None, "append before open"
        fence.check()
        # Fenced first: an entry behind a later epoch would never be read.
        place = log.append_one(encode_entry(kind, key, fingerprint, payload))
        self._is_empty = False
        self.size += 1
        recent = self._recent
        recent[key] = self._base + place
        if len(recent) >= _REMEMBERED:
            # So at least as many stay known as were asked to.
            self._older, self._recent = recent, {}
        return self.segment

    def note_found(self, key: bytes, place: int) -> int:
        """Be notified that a row has come again, so that its entry can go some day.

        Returns:
            The segment that has to be kept as long as the row has not left the operator.

        Raises:
            OSError: If that cannot be written.
        """
        if place >= _OWN:
            return place // _OWN - 1
        log = self._log
        assert log is not None, "found before open"
        assert self._before is not None, "it was found there"
        log.append([encode_entry(EntryKind.FOUND, key, NO_FINGERPRINT, b"")])
        self._is_empty = False
        if self._before.places.pop(key, None) is not None:
            self._recent[key] = place
        return log.segment

    def mark(self, checkpoint_id: int, held: int | None) -> None:
        """Divide the log where a checkpoint is taken.

        Args:
            checkpoint_id: The checkpoint; one that is not greater than those before
                divides nothing.
            held: The first segment with the entry of a row that has not left the
                operator, None if there is no such row.
        """
        log = self._log
        if log is None or checkpoint_id <= log.segment:
            return
        # Before the oldest row that waits nothing is needed after a restore.
        needed = checkpoint_id if held is None else held
        nothing_older = held is None and self._needed == log.segment
        # Nothing to say: a segment for each checkpoint would fill the directory.
        if self._is_empty and (nothing_older or needed == self._needed):
            return
        self.segment = log.roll(checkpoint_id)
        # Places have to tell segments apart, and those of before from this one's own.
        self._base = (self.segment + 1) * _OWN
        log.append([encode_mark(needed)])
        self._needed = needed
        self._is_empty = True

    async def sync(self) -> None:
        """Wait until what was appended before is durable.

        Raises:
            FencedError: If a later epoch has begun: the appended entries may not count.
            OSError: If it cannot be written.
        """
        await self._turns.run(self._sync)

    async def close(self) -> None:
        """Make what was appended durable, and close. Idempotent."""
        await self._turns.run(self._close)

    def _open(self) -> None:
        place, operator, self._before = self._shared.acquire(self._operator_id)
        self._fence = place.fence(operator, self._epoch, self._subtask)
        self._path = log_directory(operator, self._epoch, self._subtask)
        self._log = AppendLog(self._path, file_mode=place.file_mode)
        self._commit = place.commits(self._path)
        self.commit_pause_s = place.commit_pause_s
        self._needed = self.segment = self._log.segment
        self._base = (self.segment + 1) * _OWN

    def _read(self, places: Iterable[int]) -> list[JournalEntry | None]:
        return [
            self._read_own(place) if place >= _OWN else self._read_before(place)
            for place in places
        ]

    def _read_before(self, place: int) -> JournalEntry | None:
        return None if self._before is None else self._before.read(place)

    def _read_own(self, place: int) -> JournalEntry | None:
        number, start = divmod(place, _OWN)
        try:
            return entry_in(LogSegment(self._path, number - 1), start)
        except FileNotFoundError:
            return None

    def _sync(self) -> None:
        # Both are None if this runs after `close`.
        if self._log is not None and self._fence is not None:
            self._log.sync()
            self._commit()
            # After the sync: if no later epoch has begun by now, what was synced is in
            # the base.
            self._fence.check_anew()

    def _close(self) -> None:
        log, self._log = self._log, None
        fence, self._fence = self._fence, None
        try:
            if log is not None:
                log.close()
            if log is not None and fence is not None:
                # A writer that was shut out leaves nothing.
                with contextlib.suppress(FencedError):
                    fence.check_anew()
                    self._commit()
        finally:
            if fence is not None:
                fence.close()
            before, self._before = self._before, None
            if before is not None:
                self._shared.release(self._operator_id)


def _not_open() -> None:
    pass


class Journals:
    """Gives the subtasks of operators their journals.

    Args:
        place: The job's, which `JobJournal` has made ready for this attempt, or what
            makes it below a directory of this machine that goes with it.
        epoch: The attempt's number.
        classes: The classes of records that results may have, as the job declares them.

    Attributes:
        classes: The same.

    Example:
        >>> import asyncio, tempfile
        >>> from aiomailbox.journal.entries import EntryKind
        >>> from aiomailbox.journal.job import JobJournal
        >>> place = JournalPlace(Path(tempfile.mkdtemp()))
        >>> def begin(epoch):
        ...     JobJournal(place).begin(epoch, {"ask": [0]})
        ...     return Journals(place, epoch).journal("ask", 0)
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
        place: JournalPlace | Callable[[Path], JournalPlace],
        epoch: int,
        classes: Iterable[Any] = (),
    ) -> None:
        self.classes: tuple[Any, ...] = tuple(classes)
        self._make_place = place if callable(place) else None
        self._place = None if callable(place) else place
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
                known = self._left_before(place, operator)
                self._before[operator_id] = known
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

    def _left_before(self, place: JournalPlace, operator: Path) -> FinishedBefore:
        """Return what other attempts have left of an operator."""
        place.fetch_base(operator)
        return FinishedBefore(operator)

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
        attempt = secrets.randbits(_ATTEMPT_BITS)
        super().__init__(_OpenPlace(directory), attempt, classes)

    def _left_before(self, place: JournalPlace, operator: Path) -> FinishedBefore:
        make_directories(operator, PRIVATE)
        return _FinishedByOthers(operator)


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
        return entry_in(segment, self._starts[place])

    def _add(self, segment: LogSegment, *, is_last: bool) -> None:
        if _is_new(segment):
            return
        check_finished(segment, is_last=is_last)
        number = len(self._segments)
        self._segments.append(segment)
        for start, entry in entries_in(segment):
            if entry.kind in {EntryKind.RESULT, EntryKind.FAILURE}:
                self.places[entry.key] = len(self._starts)
                self._starts.append(start)
                self._which.append(number)


class _OpenPlace(JournalPlace):
    """A directory that no attempt is shut out of."""

    def fence(self, operator: Path, epoch: int, subtask: int) -> Fence:
        """Return a fence that lets every attempt pass."""
        return Fence()


def _is_new(segment: LogSegment) -> bool:
    """Say whether another attempt is just making it."""
    with open(segment.path, "rb") as file:
        return not any(file.read(_HEAD_BYTES))
