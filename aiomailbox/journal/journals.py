"""The journals of a job's operators, in one process and one attempt."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aiomailbox.journal.finished import FinishedBefore
from aiomailbox.journal.layout import operator_directory
from aiomailbox.journal.subtask import SubtaskJournal

__all__ = ["Journals"]


class Journals:
    """Gives the subtasks of operators their journals.

    Args:
        directory: The job's, which `JobJournal` has made ready for this attempt.
        epoch: The attempt's number.
        classes: The classes of records that results may have, as the job declares them.

    Attributes:
        classes: The same.

    Example:
        >>> import asyncio, tempfile
        >>> from aiomailbox.journal import EntryKind, JobJournal
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
        self, directory: str | Path, epoch: int, classes: Iterable[Any] = ()
    ) -> None:
        self.classes: tuple[Any, ...] = tuple(classes)
        self._directory = Path(directory)
        self._epoch = epoch
        self._before: dict[Path, FinishedBefore] = {}
        self._lock = threading.Lock()

    def journal(self, operator_id: str, subtask: int) -> SubtaskJournal:
        """Return the journal of a subtask, to be opened."""
        operator = operator_directory(self._directory, operator_id)
        return SubtaskJournal(operator, self._epoch, subtask, self)

    def acquire(self, operator: Path) -> FinishedBefore:
        """Return what earlier epochs have left of an operator; in a thread.

        Raises:
            DamagedFileError: If it is not what was written.
            OSError: If it cannot be read.
        """
        # The subtasks of an operator open at one time.
        with self._lock:
            known = self._before.get(operator)
            if known is None:
                known = self._before[operator] = FinishedBefore(operator)
            known.users += 1
            return known

    def release(self, operator: Path) -> None:
        """Be notified that a subtask does not use it any more."""
        with self._lock:
            known = self._before[operator]
            known.users -= 1
            if not known.users:
                del self._before[operator]
                known.close()
