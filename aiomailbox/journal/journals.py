"""The journals of a job's operators, in one process and one attempt."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from aiomailbox.journal.finished import FinishedBefore
from aiomailbox.journal.layout import operator_directory
from aiomailbox.journal.place import JournalPlace, place_of
from aiomailbox.journal.subtask import SubtaskJournal
from aiomailbox.scratch import ScratchDirectory

__all__ = ["Journals"]


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
