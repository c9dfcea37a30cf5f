"""The turns of a mailbox loop: mail first, else one step of the default action.

Theory of operation: per turn the loop tests one bool, runs what mail there was when it
looked, and then does one step of the default action, so that mail which sends itself
again cannot starve the input. While the default action is suspended the loop runs mail
one by one and sleeps in between. Nothing else is tested: every change of a flag comes
with a mail. After a slice of about a millisecond the loop lets the event loop run. An
action that has used up its turns long before its slice, without mail, has nothing to
do and does not say so: it rests for some milliseconds, or until mail comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from inspect import isawaitable
from typing import Final, TypeVar

from aiomailbox.errors import MailFailedError
from aiomailbox.mailbox.budget import SliceBudget
from aiomailbox.mailbox.control import LoopControl
from aiomailbox.mailbox.default_action import (
    ActionGate,
    MailboxController,
    MailboxDefaultAction,
)
from aiomailbox.mailbox.mail import MIN_PRIORITY, Mail
from aiomailbox.mailbox.metrics import MailboxMetrics

__all__ = ["MailboxLoop"]

ResultT = TypeVar("ResultT")

_REST_MIN_S: Final = 0.001
_REST_MAX_S: Final = 0.008


class MailboxLoop:
    """Runs the mail and the default action of one processor, in the running task."""

    __slots__ = (
        "_action",
        "_action_rests",
        "_budget",
        "_control",
        "_controller",
        "_gate",
        "_mailbox",
        "_metrics",
        "_name",
        "_rest_s",
    )

    def __init__(
        self,
        name: str,
        action: MailboxDefaultAction,
        gate: ActionGate,
        control: LoopControl,
        metrics: MailboxMetrics,
        budget: SliceBudget,
        *,
        action_rests: bool,
    ) -> None:
        self._action_rests = action_rests
        self._rest_s = _REST_MIN_S
        self._name = name
        self._action = action
        self._gate = gate
        self._control = control
        self._metrics = metrics
        self._budget = budget
        self._mailbox = gate.mailbox
        self._controller = MailboxController(gate, control)

    async def surfacing(self, work: Coroutine[object, object, ResultT]) -> ResultT:
        """Await ``work``, and raise the failure that came first, bare.

        Raises:
            MailFailedError: If something was awaited that others cancelled.
        """
        control = self._control
        try:
            result = await work
        except asyncio.CancelledError as error:
            # asyncio raises the same for a cancel of this task and for something
            # awaited that others cancelled. The second one is a failure, and must not
            # look like a clean end.
            if control.is_cancelling():
                raise
            raise control.first_failure(MailFailedError(self._name, error)) from error
        except Exception as error:
            first = control.first_failure(error)
            if first is error:
                raise
            # What was raised since is a consequence of it.
            raise first from None
        # The code around a yield swallowed it; it fails the task all the same.
        if control.failure is not None:
            raise control.failure
        return result

    async def run(self) -> None:
        """Run mail and the default action until asked to leave.

        Raises:
            MailFailedError: If the default action raised ``StopIteration``.
        """
        box, control, gate, budget = (
            self._mailbox,
            self._control,
            self._gate,
            self._budget,
        )
        action, controller = self._action, self._controller
        turns, mails = 0, self._metrics.mails_processed
        await budget.begin()
        try:
            while not control.leave:
                # Flags are not tested: a change of one comes with mail, which sets the
                # signal.
                if box.signal or gate.suspension is not None:
                    await self._process_mail()
                    if control.leave:
                        break
                turns += 1
                pending = action(controller)
                if pending is not None and isawaitable(pending):
                    await pending
                # Reading the clock may cost more than a short turn does.
                elif turns < budget.stride:
                    continue
                # Also after each await, which may have taken any time.
                if budget.is_over(turns):
                    seen, mails = mails, self._metrics.mails_processed
                    if self._action_rests and seen == mails:
                        await self._rest_or_yield()
                    else:
                        await budget.yield_to_loop()
                turns = 0
        # Python would make a RuntimeError of it, which says neither what nor where.
        except StopIteration as error:
            raise MailFailedError(f"default action of {self._name}", error) from error

    async def _rest_or_yield(self) -> None:
        if not self._budget.is_spent_on_nothing:
            self._rest_s = _REST_MIN_S
            await self._budget.yield_to_loop()
            return
        loop = asyncio.get_running_loop()
        over: asyncio.Future[object] = loop.create_future()
        timer = loop.call_later(self._rest_s, over.cancel)
        try:
            await self._mailbox.wait_for_mail(MIN_PRIORITY, until=over)
        finally:
            timer.cancel()
        self._rest_s = min(2 * self._rest_s, _REST_MAX_S)
        await self._budget.begin()

    async def _process_mail(self) -> None:
        box, control, gate = self._mailbox, self._control, self._gate
        if box.create_batch():
            # Once around the whole batch, for each pause reads the clock twice.
            paused = gate.pause_timer()
            while not control.leave:
                mail = box.try_take_from_batch()
                if mail is None:
                    break
                await self._run_mail_and_yield(mail)
            gate.continue_timer(paused)
        # One by one, not as a batch: any mail may resume the action.
        while gate.suspension is not None and not control.leave:
            mail = box.try_take(MIN_PRIORITY)
            if mail is None:
                await box.wait_for_mail(MIN_PRIORITY)
                # What was slept is no part of a slice.
                await self._budget.begin()
                continue
            paused = gate.pause_timer()
            await self._run_mail_and_yield(mail)
            gate.continue_timer(paused)

    async def _run_mail_and_yield(self, mail: Mail) -> None:
        await self.run_mail(mail)
        if self._budget.is_over():
            await self._budget.yield_to_loop()

    async def run_mail(self, mail: Mail) -> None:
        """Run one mail to its end."""
        self._metrics.mails_processed += 1
        pending = mail.run()
        if pending is not None:
            await self._finish(mail, pending)
        self._metrics.on_mail_run(last=self._control.leave)

    async def _finish(self, mail: Mail, pending: Awaitable[object]) -> None:
        # A stack: a mail that yields runs others inside of its own await.
        self._control.suspended_mails.append(mail)
        try:
            await pending
        except asyncio.CancelledError as error:
            if self._control.is_cancelling():
                raise
            raise MailFailedError(mail.description, error) from error
        finally:
            self._control.suspended_mails.pop()

    async def step(self) -> bool:
        """Run one mail, or else one default action; say whether there was one."""
        if await self._run_one_mail():
            return True
        return await self._run_action()

    async def single_turn(self) -> bool:
        """Run at most one mail and one default action; say whether to go on."""
        await self._run_one_mail()
        await self._run_action()
        return not self._control.leave

    async def _run_one_mail(self) -> bool:
        if not self._control.may_run or not self._mailbox.create_batch():
            return False
        mail = self._mailbox.try_take_from_batch()
        assert mail is not None, "create_batch said there was mail"
        paused = self._gate.pause_timer()
        await self.run_mail(mail)
        self._gate.continue_timer(paused)
        return True

    async def _run_action(self) -> bool:
        if self._control.leave or self._gate.suspension is not None:
            return False
        pending = self._action(self._controller)
        if pending is not None and isawaitable(pending):
            await pending
        return True
