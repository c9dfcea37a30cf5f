"""What steers a mailbox loop: its flags, its control mail, its first failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aiomailbox.errors import MailboxClosedError, StopTask, add_note, safe_str
from aiomailbox.mailbox.mail import MAX_PRIORITY, Mail, MailOptions
from aiomailbox.mailbox.ownership import current_task_or_none
from aiomailbox.mailbox.task_mailbox import TaskMailbox

__all__ = ["LoopControl", "attach_later_error", "control_mail"]

_log = logging.getLogger(__name__)


def control_mail(function: Callable[..., object], *args: object, what: str) -> Mail:
    """Return mail that overtakes everything and is visible in every yield."""
    return Mail(
        function,
        *args,
        priority=MAX_PRIORITY,
        options=MailOptions.URGENT,
        description=what,
    )


def attach_later_error(first: BaseException, later: BaseException) -> BaseException:
    """Return ``first`` with a note about ``later``: the first error wins."""
    if later is not first:
        add_note(
            first, f"afterwards also failed: {type(later).__name__}: {safe_str(later)}"
        )
    return first


class LoopControl:
    """The flags of one mailbox loop, changed by mail so that the loop looks only there.

    Attributes:
        leave: The current run of the loop ends before its next step.
        running: False once all actions are completed: no run will start again.
        cancelled: Yields raise instead of waiting.
        failure: The first failure of a mail that ran inside a yield, in case the code
            around the yield swallowed it.
        suspended_mails: The coroutine mails that await something, outermost first.
        ended_by: What the loop raised that closed the mailbox, if it did.
    """

    __slots__ = (
        "_mailbox",
        "cancelled",
        "ended_by",
        "failure",
        "leave",
        "running",
        "suspended_mails",
    )

    def __init__(self, mailbox: TaskMailbox) -> None:
        self._mailbox = mailbox
        self.leave: bool = False
        self.running: bool = True
        self.cancelled: bool = False
        self.failure: BaseException | None = None
        self.suspended_mails: list[Mail] = []
        self.ended_by: BaseException | None = None

    @property
    def may_run(self) -> bool:
        """Whether a run of the loop may begin."""
        return self.running and not self.cancelled

    def suspend(self) -> None:
        """End the current run of the loop; dropped if the mailbox is not open."""
        self._put_if_open(control_mail(self._on_suspend, what="suspend the loop"))

    def all_actions_completed(self) -> None:
        """End the loop permanently; dropped if the mailbox is not open."""
        self._put_if_open(control_mail(self._on_completed, what="complete the loop"))

    def cancel(self) -> None:
        """End the loop permanently, and make yields raise; from any thread."""
        # A flag besides the mail: code that yields in a loop may run the mail itself
        # and then sleep again, and only this makes its next yield raise.
        self.cancelled = True
        if not self._put_if_open(
            control_mail(self._on_completed, what="cancel the loop")
        ):
            # No mail can carry it any more; plain flags, seen at the next step.
            self._on_completed()
        # Also those that no mail reaches any more, for the mailbox is quiesced.
        self._mailbox.wake()

    def report_throwable(self, error: BaseException) -> None:
        """Make the loop raise ``error``; logged and dropped if the mailbox is not open.

        Args:
            error: Raised as it is, not wrapped.
        """
        mail = control_mail(_raise, error, what=f"raise {type(error).__name__}")
        try:
            # Flink throws at the reporter, which can do nothing about it.
            self._mailbox.put(mail)
        except MailboxClosedError:
            _log.warning(
                "%r came after its mailbox had closed and is dropped",
                error,
                exc_info=error,
            )

    def record_failure(self, error: BaseException) -> None:
        """Keep the first failure of a nested mail and end the run of the loop."""
        if self.failure is None:
            self.failure = error
        elif self.failure is not error:
            attach_later_error(self.failure, error)
        self.leave = True

    def first_failure(self, error: BaseException) -> BaseException:
        """Return what has to surface, now that ``error`` ends the loop."""
        if self.failure is None:
            return error
        return attach_later_error(self.failure, error)

    def raise_if_cancelled(self) -> None:
        """Raise if the task was cancelled.

        Raises:
            StopTask: If it was.
        """
        if self.cancelled:
            raise StopTask("the task was cancelled; its mailbox runs nothing more")

    def is_cancelling(self) -> bool:
        """Whether a CancelledError here is meant for this task and not foreign."""
        if self.cancelled:
            return True
        task: asyncio.Task[object] | None = current_task_or_none()
        # Requests that were not taken back; 0 means that others cancelled what was
        # awaited.
        return task is not None and task.cancelling() > 0

    def _put_if_open(self, mail: Mail) -> bool:
        # Looked at under the lock: a cancel that races with a normal end must not put
        # mail into a closed mailbox (FLINK-14544).
        def put() -> bool:
            if not self._mailbox.is_open:
                return False
            self._mailbox.put(mail)
            return True

        try:
            return self._mailbox.run_exclusively(put)
        except MailboxClosedError:
            # The owner's event loop is closed: nothing runs there that could end.
            return False

    def _on_suspend(self) -> None:
        self.leave = True

    def _on_completed(self) -> None:
        self.running = False
        self.leave = True


def _raise(error: BaseException) -> None:
    raise error
