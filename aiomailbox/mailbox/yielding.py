"""Running mail from inside mail: the explicit yield with the priority rule.

Theory of operation: a mail runs to completion, its awaits included, before the next.
A yield is the one place where other mail may run on top. A plain function runs inline.
A coroutine runs in a child task that holds the mailbox's token, because timeouts,
cancel scopes and context variables of the suspended mail belong to its task and must
not hit an unrelated mail. The outer waits until the child is done, even when it is
interrupted, and only then lets the interruption through.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final, cast

from aiomailbox.availability import Availability
from aiomailbox.errors import MailFailedError, YieldDepthError
from aiomailbox.mailbox.budget import SliceBudget, SliceWatch
from aiomailbox.mailbox.control import LoopControl, attach_later_error
from aiomailbox.mailbox.default_action import ActionGate
from aiomailbox.mailbox.mail import MIN_PRIORITY, Mail
from aiomailbox.mailbox.metrics import MailboxMetrics
from aiomailbox.mailbox.task_mailbox import TaskMailbox
from aiomailbox.supervision import close_by_force

__all__ = ["YIELD_DEPTH_MAX", "MailYielder"]

_Exit = BaseException | None

_log = logging.getLogger(__name__)

YIELD_DEPTH_MAX: Final = 128
"""How deep mails may yield to mails by default."""

# Flink has no such warning: it overflows its stack.
_DEPTH_TO_WARN_AT: Final = 32


class MailYielder:
    """Takes and runs mail on behalf of a mail or an action that is suspended.

    Attributes:
        children: The asyncio tasks that run coroutine mail, outermost first.
    """

    __slots__ = (
        "_budget",
        "_control",
        "_depth",
        "_depth_max",
        "_gate",
        "_mailbox",
        "_metrics",
        "children",
    )

    def __init__(
        self,
        gate: ActionGate,
        control: LoopControl,
        metrics: MailboxMetrics,
        budget: SliceBudget,
        *,
        depth_max: int = YIELD_DEPTH_MAX,
    ) -> None:
        self._mailbox = gate.mailbox
        self._gate = gate
        self._control = control
        self._metrics = metrics
        self._budget = budget
        self.children: list[asyncio.Task[_Exit]] = []
        self._depth = 0
        self._depth_max = depth_max

    @property
    def mailbox(self) -> TaskMailbox:
        """The mailbox that is yielded to."""
        return self._mailbox

    @property
    def control(self) -> LoopControl:
        """What steers the loop around."""
        return self._control

    @property
    def is_suspended(self) -> bool:
        """Whether the default action is suspended."""
        return self._gate.suspension is not None

    def is_slice_over(self) -> bool:
        """Spend a turn of the slice and say whether it is used up."""
        return self._budget.is_over()

    def watch(self) -> SliceWatch:
        """Return what tells whether work has taken longer than a slice."""
        return SliceWatch(self._budget)

    async def yield_once(self, priority: int) -> None:
        """Run one eligible mail; waits for it."""
        control, mailbox = self._control, self._mailbox
        self._check_depth()
        # On entry and after each wake: a loop around a yield may have run the mail that
        # ends the loop, and nothing would wake it again.
        control.raise_if_cancelled()
        while (mail := mailbox.try_take(priority)) is None:
            mailbox.require_open("wait for more mail")
            await self._wait(priority)
            control.raise_if_cancelled()
        await self._run(mail)

    async def try_yield(self, priority: int, *, ignore_deferrable: bool) -> bool:
        """Run one eligible mail if there is one; say whether."""
        self._check_depth()
        mail = self._try_take(priority, ignore_deferrable)
        if mail is None:
            return False
        await self._run(mail)
        return True

    async def pause(self, priority: int) -> None:
        """Let the event loop and eligible mail have their turn, between two pieces.

        Mail that is sent meanwhile waits for the next pause.
        """
        self._mailbox.ownership.check("pause")
        self._control.raise_if_cancelled()
        if self._budget.is_over():
            await self._budget.yield_to_loop()
        await self.run_waiting(self._priority_in_pause(priority))

    async def run_waiting(self, priority: int) -> None:
        """Run the eligible mail that waits now."""
        for _ in range(self._mailbox.size()):
            if not await self.try_yield(priority, ignore_deferrable=False):
                break
        self._control.raise_if_cancelled()

    async def pause_until(self, availability: Availability, priority: int) -> None:
        """Run the mail of a pause as it comes until something is available."""
        await self.wait_until(availability, self._priority_in_pause(priority))

    async def wait_until(self, availability: Availability, priority: int) -> None:
        """Run eligible mail as it comes until something is available."""
        while not availability.available:
            waiter = availability.waiter()
            try:
                await self.yield_until(
                    cast("asyncio.Future[object]", waiter),
                    priority,
                    ignore_deferrable=False,
                )
            finally:
                # Takes the callback back that it left at the availability.
                waiter.cancel()

    def _priority_in_pause(self, priority: int) -> int:
        """Return which mail may run while an operator pauses between two pieces.

        All of it where nothing but the operator is at work: the default action has
        called the head of the chain, or the loop has run the operator's own mail.
        Otherwise an operator before it is in the middle of something.
        """
        suspended = self._control.suspended_mails
        if self._depth or len(suspended) > 1:
            return priority
        # Without mail the default action is at work; it gives records to the head,
        # which has priority 0.
        alone = suspended[0].priority == priority if suspended else not priority
        return MIN_PRIORITY if alone else priority

    async def yield_until(
        self, future: asyncio.Future[object], priority: int, *, ignore_deferrable: bool
    ) -> None:
        """Run eligible mail as it comes, until ``future`` is done."""
        self._mailbox.ownership.check("yield_until")
        self._check_depth()
        self._control.raise_if_cancelled()
        while not future.done():
            mail = self._try_take(priority, ignore_deferrable)
            if mail is not None:
                await self._run(mail)
            else:
                await self._wait(
                    priority, ignore_deferrable=ignore_deferrable, until=future
                )
            self._control.raise_if_cancelled()

    def _try_take(self, priority: int, ignore_deferrable: bool) -> Mail | None:
        if ignore_deferrable:
            return self._mailbox.try_take_ignoring_deferrable(priority)
        return self._mailbox.try_take(priority)

    async def _wait(
        self,
        priority: int,
        *,
        ignore_deferrable: bool = False,
        until: asyncio.Future[object] | None = None,
    ) -> None:
        await self._mailbox.wait_for_mail(
            priority, ignore_deferrable=ignore_deferrable, until=until
        )
        await self._budget.begin()

    def _check_depth(self) -> None:
        # Before a mail is taken: one that cannot be run must stay where it is.
        if self._depth >= self._depth_max:
            raise YieldDepthError(
                f"mails yield to mails {self._depth} deep, the limit is "
                f"{self._depth_max}: a mail that yields must not need another one "
                "that yields for the same reason"
            )

    async def _run(self, mail: Mail) -> None:
        self._depth += 1
        if self._depth == _DEPTH_TO_WARN_AT:
            _log.warning("mails yield to mails %d deep, now %s", self._depth, mail)
        paused = self._gate.pause_timer()
        self._metrics.mails_processed += 1
        try:
            pending = mail.run()
            if pending is not None:
                await self._run_in_child(mail, pending)
        except asyncio.CancelledError as error:
            if self._control.is_cancelling():
                raise
            failure = MailFailedError(mail.description, error)
            self._control.record_failure(failure)
            raise failure from error
        except BaseException as error:
            # Recorded before it is raised: the code around the yield may swallow it.
            self._control.record_failure(error)
            raise
        finally:
            self._depth -= 1
            self._gate.continue_timer(paused)
        if self._budget.is_over():
            await self._budget.yield_to_loop()

    async def _run_in_child(self, mail: Mail, pending: Awaitable[object]) -> None:
        loop = asyncio.get_running_loop()
        child = loop.create_task(self._hold_token(pending), name=f"mail {mail}")
        interrupt: asyncio.CancelledError | None = None
        self._control.suspended_mails.append(mail)
        self.children.append(child)
        try:
            while not child.done():
                try:
                    # Not `await child`: cancelling this task would cancel the child, in
                    # the middle of another mail.
                    await asyncio.wait((child,))
                except asyncio.CancelledError as error:
                    # A first one may be the timeout of the mail that waits here; a
                    # second one, or one after cancel(), is meant for everything.
                    if interrupt is not None or self._control.cancelled:
                        child.cancel()
                    interrupt = error
        finally:
            self._control.suspended_mails.pop()
            self.children.remove(child)
            if not child.done():
                # This one is closed by force: nothing is left to wait for it.
                close_by_force(child)
        if interrupt is None:
            failure = child.result()
            if failure is not None:
                raise failure
            return
        self._keep_failure_of(child, interrupt)
        raise interrupt

    def _keep_failure_of(
        self, child: asyncio.Task[_Exit], interrupt: asyncio.CancelledError
    ) -> None:
        if child.cancelled():
            return
        failure = child.exception() or child.result()
        if failure is not None:
            self._control.record_failure(failure)
            attach_later_error(interrupt, failure)

    async def _hold_token(self, pending: Awaitable[object]) -> _Exit:
        """Await the work; return what would end the loop if it was raised here."""
        # Taken by the child itself, so that it holds also if it is started eagerly.
        ownership = self._mailbox.ownership
        previous = ownership.lend_to_current()
        try:
            await pending
        except (KeyboardInterrupt, SystemExit) as error:
            # Raised in a task, asyncio lets these two out of the event loop itself,
            # past all cleaning up; as a result they arrive where the mail was run.
            return error
        finally:
            ownership.hand_back(previous)
        return None
