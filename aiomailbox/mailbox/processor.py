"""The processor of a task: its mailbox, its default action and the loop over both."""

from __future__ import annotations

import asyncio

from aiomailbox.clock import Clock
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.mailbox.budget import LoopClock, SliceBudget
from aiomailbox.mailbox.control import LoopControl, attach_later_error
from aiomailbox.mailbox.default_action import (
    ActionGate,
    MailboxDefaultAction,
)
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.mailbox.loop import MailboxLoop
from aiomailbox.mailbox.mail import MIN_PRIORITY, Mail
from aiomailbox.mailbox.metrics import MailboxMetrics
from aiomailbox.mailbox.task_mailbox import TaskMailbox
from aiomailbox.mailbox.yielding import YIELD_DEPTH_MAX, MailYielder

__all__ = ["MailboxProcessor"]


class MailboxProcessor:
    """Runs a mailbox and a default action in one asyncio task.

    Made anywhere; belongs to the task that first runs it. No event loop is touched
    before that.

    Args:
        default_action: One short step of work; see `MailboxDefaultAction`.
        mailbox: The mailbox to run; None for a new one.
        name: For people.
        clock: For the slice, latencies and idle times; None for the event loop's.
        slice_ms: How long the loop may keep the event loop, in milliseconds.
        max_yield_depth: How deep mails may yield to mails.

    Raises:
        InvalidArgumentError: If ``slice_ms`` or ``max_yield_depth`` is not positive.

    Attributes:
        mailbox: The mailbox.
        metrics: What the loop measures.
        main_executor: Sends mail of `MIN_PRIORITY`, which only the main loop sees.

    Concept:
        Flink, ``MailboxProcessor``.

    Example:
        >>> import asyncio
        >>> from aiomailbox.mailbox import MailboxController
        >>> steps = []
        >>> def action(controller: MailboxController) -> None:
        ...     steps.append("step")
        ...     if len(steps) == 2:
        ...         controller.all_actions_completed()
        >>> asyncio.run(MailboxProcessor(action).run_mailbox_loop())
        >>> steps
        ['step', 'step']
    """

    __slots__ = (
        "_budget",
        "_control",
        "_gate",
        "_loop",
        "_yielder",
        "mailbox",
        "main_executor",
        "metrics",
        "name",
    )

    def __init__(
        self,
        default_action: MailboxDefaultAction,
        *,
        mailbox: TaskMailbox | None = None,
        name: str = "task",
        clock: Clock | None = None,
        slice_ms: float = 1.0,
        max_yield_depth: int = YIELD_DEPTH_MAX,
    ) -> None:
        _check_positive("slice_ms", slice_ms)
        _check_positive("max_yield_depth", max_yield_depth)
        found_clock = LoopClock(clock)
        self.name: str = name
        self.mailbox: TaskMailbox = (
            TaskMailbox(name=name) if mailbox is None else mailbox
        )
        self.metrics: MailboxMetrics = MailboxMetrics(self.mailbox, found_clock)
        self._budget = SliceBudget(found_clock, slice_ms)
        self._control = LoopControl(self.mailbox)
        self._gate = ActionGate(self.mailbox)
        self._loop = MailboxLoop(
            name, default_action, self._gate, self._control, self.metrics, self._budget
        )
        self._yielder = MailYielder(
            self._gate,
            self._control,
            self.metrics,
            self._budget,
            depth_max=max_yield_depth,
        )
        self.main_executor: MailboxExecutor = self.executor(MIN_PRIORITY)

    async def run_mailbox_loop(self) -> None:
        """Run until suspended or completed; again continues where it stopped.

        Raises:
            MailboxClosedError: If the mailbox is not open.
            WrongTaskError: If another task runs this processor.
            MailFailedError: If a mail or the action awaited what others cancelled.
        """
        self._begin("run the mailbox loop")
        await self._loop.surfacing(self._loop.run())

    async def run_mailbox_step(self) -> bool:
        """Run one mail, or else one default action; waits for nothing.

        For tests: it does not show what a batch does.

        Returns:
            Whether there was something to run.
        """
        self._begin("run a mailbox step")
        return await self._loop.surfacing(self._loop.step())

    async def run_single_mailbox_loop(self) -> bool:
        """Run at most one mail, then one default action if it is available.

        For tests: it does not show what a batch does.

        Returns:
            Whether the loop could go on.
        """
        self._begin("run a single mailbox loop")
        return await self._loop.surfacing(self._loop.single_turn())

    def suspend(self) -> None:
        """End the current run of the loop; from anywhere, any number of times."""
        self._control.suspend()

    def all_actions_completed(self) -> None:
        """End the loop permanently; from anywhere, any number of times."""
        self._control.all_actions_completed()

    def cancel(self) -> None:
        """End the loop permanently and make yields raise `StopTask`; from anywhere.

        It does not interrupt code that awaits something else: cancel the asyncio task
        for that, after this.
        """
        self._control.cancel()

    def report_throwable(self, error: BaseException) -> None:
        """Make the loop raise ``error``; from anywhere.

        Dropped with a log entry if the mailbox takes no more mail.
        """
        self._control.report_throwable(error)

    async def drain(self) -> None:
        """Run the mail that is inside now; what it sends meanwhile stays there.

        Raises whatever a mail raises; the mails behind it are cancelled then.
        """
        mails = self.mailbox.drain()
        for index, mail in enumerate(mails):
            try:
                await self._loop.surfacing(self._loop.run_mail(mail))
            except BaseException as error:
                failure = _cancel_all(mails[index + 1 :])
                if failure is not None:
                    attach_later_error(error, failure)
                raise

    def prepare_close(self) -> None:
        """Refuse new mail from now on."""
        self.mailbox.quiesce()

    def close(self) -> None:
        """Close the mailbox and cancel what was left in it; again is a no-op.

        Raises the first error of a cancellation, the later ones as notes.
        """
        self.metrics.stop()
        failure = _cancel_all(self.mailbox.close())
        if failure is not None:
            raise failure

    def executor(self, priority: int) -> MailboxExecutor:
        """Return an executor whose mail has ``priority``.

        Raises:
            InvalidArgumentError: If the priority is out of range.
        """
        return MailboxExecutor(self._yielder, priority)

    def set_up_latency_measurement(self, interval_ms: float = 1000.0) -> None:
        """Measure how long mail waits, from the first mail on.

        Raises:
            IllegalStateError: If it was set up before.
        """
        self.metrics.set_up_latency(interval_ms)

    @property
    def is_default_action_available(self) -> bool:
        """Whether the default action is not suspended."""
        return self._gate.suspension is None

    @property
    def is_running(self) -> bool:
        """Whether the loop has been neither completed nor cancelled."""
        return self._control.may_run

    @property
    def suspended_mails(self) -> tuple[Mail, ...]:
        """The mails that await something now, outermost first: what blocks the rest."""
        return tuple(self._control.suspended_mails)

    @property
    def children(self) -> list[asyncio.Task[BaseException | None]]:
        """The asyncio tasks that run mail of yields now, outermost first."""
        return list(self._yielder.children)

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._control.cancelled

    def __repr__(self) -> str:
        action = "available" if self.is_default_action_available else "suspended"
        state = "running" if self.is_running else "completed"
        return f"<MailboxProcessor {self.name!r} {state}, action {action}, {self.mailbox!r}>"

    def _begin(self, operation: str) -> None:
        self.mailbox.bind_owner()
        self.mailbox.require_open(operation)
        control = self._control
        # A failure that an earlier run did not surface: this one ends before its first
        # step and raises it.
        control.leave = not control.may_run or control.failure is not None
        self.metrics.start()
        self._budget.restart()


def _check_positive(parameter: str, value: float) -> None:
    if value <= 0:
        raise InvalidArgumentError(parameter, f"{value} is not positive", "Use > 0.")


def _cancel_all(mails: list[Mail]) -> BaseException | None:
    """Cancel every mail; return the first error, with the later ones as notes."""
    first: BaseException | None = None
    for mail in mails:
        try:
            mail.cancel()
        except BaseException as error:  # noqa: BLE001 -- every mail is attempted
            first = error if first is None else attach_later_error(first, error)
    return first
