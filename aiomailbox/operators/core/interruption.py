"""Leaving the rest of a run where its records, which are awaited, take too long."""

from __future__ import annotations

from aiomailbox.mailbox.budget import SliceWatch
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.records.run import Run

__all__ = ["RunInterruption"]


class RunInterruption:
    """Looks, between two records of a run that are awaited, for what waits.

    Theory of operation: how long the next record takes is not known. An operator that
    awaits its records asks after each one whether the event loop had a turn meanwhile,
    which costs no clock. If it had, mail runs; and where the slice is over the operator
    leaves the rest of the run here and returns. Its caller keeps the rest in front of
    the operator, as a part of the task's state, so that all mail of the task can run,
    a checkpoint's included.

    Args:
        mailbox: The operator's.

    Attributes:
        watch: Says whether it is time for `look_around`.
        may_leave: Whether the caller keeps a rest.
        rest: What the operator left of the run; the caller takes it away.
    """

    __slots__ = ("_mailbox", "may_leave", "rest", "watch")

    def __init__(self, mailbox: MailboxExecutor) -> None:
        self._mailbox = mailbox
        self.watch: SliceWatch = mailbox.watch()
        self.may_leave: bool = False
        self.rest: Run | None = None

    def start(self) -> SliceWatch:
        """Begin to watch, before the first record that is awaited."""
        self.watch.start()
        return self.watch

    async def look_around(self, run: Run, following: int) -> bool:
        """Let the operator's mail run, or leave the rest of the run.

        Args:
            run: The run that is being processed.
            following: The index of the next record.

        Returns:
            Whether the rest was left: the operator is to return.
        """
        if self.watch.is_over() and self.leave(run, following):
            return True
        if self._mailbox.has_mail:
            await self._mailbox.run_waiting()
        return False

    def leave(self, run: Run, following: int) -> bool:
        """Leave the rest of a run, if there is one and the caller keeps it.

        Args:
            run: The run.
            following: The index of the next record.
        """
        if not self.may_leave or following >= len(run):
            return False
        self.rest = run.slice(following, len(run))
        return True
