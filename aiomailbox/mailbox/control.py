"""The control of a mailbox loop: its flags, its control mail, its first failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from aiomailbox.errors import (
    IllegalStateError,
    MailboxClosedError,
    StopTask,
    add_note,
    safe_str,
)
from aiomailbox.mailbox.mail import MAX_PRIORITY, Mail, MailOptions
from aiomailbox.mailbox.task_mailbox import TaskMailbox, current_task_or_none

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
        """Make the loop raise ``error``; logged and dropped if the mailbox is not open."""
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


# The default action of a mailbox loop, and how it is suspended and resumed.


class PeriodTimer(Protocol):
    """Measures how long something lasted, in as many pieces as it is interrupted.

    Concept:
        Flink, ``PeriodTimer``.
    """

    def mark_start(self) -> None:
        """Start measuring."""

    def mark_end(self) -> None:
        """Stop measuring."""


class Suspension:
    """The token of one suspension of the default action.

    Concept:
        Flink, ``MailboxDefaultAction.Suspension``.
    """

    __slots__ = ("_gate", "_timer", "_timing")

    def __init__(self, gate: ActionGate, timer: PeriodTimer | None) -> None:
        self._gate = gate
        self._timer = timer
        self._timing = False

    def resume(self) -> None:
        """Let the default action run again, from anywhere.

        Does nothing if it was called before, or if the default action was suspended
        anew meanwhile: completions come late and twice. On the mailbox's loop it works
        at once; from another thread by urgent mail, and a closed mailbox ignores it.
        """
        gate = self._gate
        if gate.suspension is not self:
            return
        mailbox = gate.mailbox
        # On this loop nothing runs in between, so no mail is needed: only a wake.
        if mailbox.ownership.is_on_loop():
            self._resume_here()
            mailbox.wake()
            return
        mail = control_mail(self._resume_here, what="resume the default action")
        try:
            mailbox.put(mail)
        except MailboxClosedError:
            return

    def start_timer(self) -> None:
        """Start measuring, if there is a timer and it does not measure."""
        if self._timer is not None and not self._timing:
            self._timing = True
            self._timer.mark_start()

    def end_timer(self) -> bool:
        """Stop measuring; say whether it was."""
        if self._timer is None or not self._timing:
            return False
        self._timing = False
        self._timer.mark_end()
        return True

    def _resume_here(self) -> None:
        # Again, for mail took a while: it may have been resumed and suspended anew.
        if self._gate.suspension is self:
            self.end_timer()
            self._gate.suspension = None


class ActionGate:
    """Whether the default action may run: open, or closed by one `Suspension`."""

    def __init__(self, mailbox: TaskMailbox) -> None:
        self.mailbox: TaskMailbox = mailbox
        self.suspension: Suspension | None = None

    def suspend(self, timer: PeriodTimer | None) -> Suspension:
        """Close the gate and start the timer.

        Raises:
            IllegalStateError: If it is closed already.
            WrongTaskError: If the caller does not own the mailbox.
        """
        self.mailbox.ownership.check("suspend_default_action")
        if self.suspension is not None:
            raise IllegalStateError(
                "the default action is suspended already: keep the first Suspension "
                "and resume that one"
            )
        self.suspension = suspension = Suspension(self, timer)
        suspension.start_timer()
        return suspension

    def pause_timer(self) -> Suspension | None:
        """Stop the timer while mail runs: that time is busy, neither idle nor blocked.

        Returns:
            What to give to `continue_timer` after the mail.
        """
        suspension = self.suspension
        if suspension is not None and suspension.end_timer():
            return suspension
        return None

    def continue_timer(self, paused: Suspension | None) -> None:
        """Start the timer again unless its suspension is over."""
        if paused is not None and self.suspension is paused:
            paused.start_timer()


class MailboxController:
    """The requests of a default action to the loop that runs it.

    Concept:
        Flink, ``MailboxDefaultAction.Controller``.
    """

    def __init__(self, gate: ActionGate, control: LoopControl) -> None:
        self._gate = gate
        self._control = control

    def suspend_default_action(self, timer: PeriodTimer | None = None) -> Suspension:
        """Run mail only, until the returned token is resumed.

        Args:
            timer: Measures how long; started now, stopped by ``resume``, and paused
                while mail runs.

        Returns:
            The token whose ``resume`` ends this suspension and no later one.

        Raises:
            IllegalStateError: If the default action is suspended already.
            WrongTaskError: If the caller does not own the mailbox.
        """
        return self._gate.suspend(timer)

    def all_actions_completed(self) -> None:
        """End the loop permanently, once the current step is over."""
        self._control.all_actions_completed()


class MailboxDefaultAction(Protocol):
    """One short step of the work that is done when there is no mail.

    It must not block: with nothing to do it suspends itself through the controller. One
    that does not, and does nothing, is called now and then only. Sync first: it returns
    something to await only when it has to wait; anything else that it returns is ignored.

    Concept:
        Flink, ``MailboxDefaultAction``.
    """

    def __call__(self, controller: MailboxController, /) -> object:
        """Do one step."""
