"""The default action of a mailbox loop, and how it is suspended and resumed."""

from __future__ import annotations

from typing import Protocol

from aiomailbox.errors import IllegalStateError, MailboxClosedError
from aiomailbox.mailbox.control import LoopControl, control_mail
from aiomailbox.mailbox.task_mailbox import TaskMailbox

__all__ = [
    "ActionGate",
    "MailboxController",
    "MailboxDefaultAction",
    "PeriodTimer",
    "Suspension",
]


class PeriodTimer(Protocol):
    """Measures how long something lasted, in as many pieces as it is interrupted.

    Concept:
        Flink, ``PeriodTimer``.
    """

    def mark_start(self) -> None:
        """Start measuring."""
        ...

    def mark_end(self) -> None:
        """Stop measuring."""
        ...


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

    __slots__ = ("mailbox", "suspension")

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
    """What a default action may ask of the loop that runs it.

    Concept:
        Flink, ``MailboxDefaultAction.Controller``.
    """

    __slots__ = ("_control", "_gate")

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
        ...
