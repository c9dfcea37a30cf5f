"""The door to a mailbox: send work to it, and yield to it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, cast, overload

from aiomailbox.availability import Availability
from aiomailbox.errors import (
    MailboxClosedError,
    MailFailedError,
    RejectedMailError,
    YieldDepthError,
)
from aiomailbox.mailbox.budget import SliceBudget, SliceWatch
from aiomailbox.mailbox.control import ActionGate, LoopControl, attach_later_error
from aiomailbox.mailbox.mail import (
    MIN_PRIORITY,
    Mail,
    MailFuture,
    MailOptions,
    Submission,
    check_priority,
)
from aiomailbox.mailbox.metrics import MailboxMetrics
from aiomailbox.mailbox.task_mailbox import TaskMailbox
from aiomailbox.supervision import close_by_force
from aiomailbox.typevars import ResultT

# Running mail from inside mail: the explicit yield with the priority rule.
#
# Theory of operation: a mail runs to completion, its awaits included, before the next.
# A yield is the one place where other mail may run on top. A plain function runs
# inline. A coroutine runs in a child task that holds the mailbox's token, because
# timeouts, cancel scopes and context variables of the suspended mail belong to its task
# and must not hit an unrelated mail. The outer waits until the child is done, even when
# it is interrupted, and only then lets the interruption through.


_Exit = BaseException | None
_log = logging.getLogger(__name__)
YIELD_DEPTH_MAX: Final = 128


"""How deep mails may yield to mails by default."""


# Flink has no such warning: it overflows its stack.
_DEPTH_TO_WARN_AT: Final = 32


class MailYielder:
    """Takes and runs mail on behalf of a mail or an action that is suspended.

    Attributes:
        mailbox: The mailbox that is yielded to.
        gate: Whether the default action may run.
        control: The flags and failures of the loop that runs the mail.
        metrics: Its numbers.
        budget: Its slice.
        children: The asyncio tasks that run coroutine mail, outermost first.
    """

    def __init__(
        self,
        gate: ActionGate,
        control: LoopControl,
        metrics: MailboxMetrics,
        budget: SliceBudget,
        *,
        depth_max: int = YIELD_DEPTH_MAX,
    ) -> None:
        self.mailbox: TaskMailbox = gate.mailbox
        self.gate: ActionGate = gate
        self.control: LoopControl = control
        self.metrics: MailboxMetrics = metrics
        self.budget: SliceBudget = budget
        self.children: list[asyncio.Task[_Exit]] = []
        self._depth = 0
        self._depth_max = depth_max

    async def try_yield(self, priority: int, *, ignore_deferrable: bool) -> bool:
        """Run one eligible mail if there is one; say whether."""
        self.check_depth()
        mail = self._try_take(priority, ignore_deferrable)
        if mail is None:
            return False
        await self.run(mail)
        return True

    async def run_waiting(self, priority: int) -> None:
        """Run the eligible mail that waits now."""
        for _ in range(self.mailbox.size()):
            if not await self.try_yield(priority, ignore_deferrable=False):
                break
        self.control.raise_if_cancelled()

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

    def priority_in_pause(self, priority: int) -> int:
        """Return which mail may run while an operator pauses between two pieces.

        All of it where nothing but the operator is at work: the default action has
        called the head of the chain, or the loop has run the operator's own mail.
        Otherwise an operator before it is in the middle of something.
        """
        suspended = self.control.suspended_mails
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
        self.mailbox.ownership.check("yield_until")
        self.check_depth()
        self.control.raise_if_cancelled()
        while not future.done():
            mail = self._try_take(priority, ignore_deferrable)
            if mail is not None:
                await self.run(mail)
            else:
                await self.wait(
                    priority, ignore_deferrable=ignore_deferrable, until=future
                )
            self.control.raise_if_cancelled()

    def _try_take(self, priority: int, ignore_deferrable: bool) -> Mail | None:
        if ignore_deferrable:
            return self.mailbox.try_take_ignoring_deferrable(priority)
        return self.mailbox.try_take(priority)

    async def wait(
        self,
        priority: int,
        *,
        ignore_deferrable: bool = False,
        until: asyncio.Future[object] | None = None,
    ) -> None:
        """Wait until there may be eligible mail, or ``until`` is done."""
        self.budget.pause()
        await self.mailbox.wait_for_mail(
            priority, ignore_deferrable=ignore_deferrable, until=until
        )
        await self.budget.begin()

    def check_depth(self) -> None:
        """Raise if no mail may be run on top of those that are."""
        # Before a mail is taken: one that cannot be run must stay where it is.
        if self._depth >= self._depth_max:
            raise YieldDepthError(
                f"mails yield to mails {self._depth} deep, the limit is "
                f"{self._depth_max}: a mail that yields must not need another one "
                "that yields for the same reason"
            )

    async def run(self, mail: Mail) -> None:
        """Run a mail on top of what runs."""
        self._depth += 1
        if self._depth == _DEPTH_TO_WARN_AT:
            _log.warning("mails yield to mails %d deep, now %s", self._depth, mail)
        paused = self.gate.pause_timer()
        self.metrics.mails_processed += 1
        try:
            pending = mail.run()
            if pending is not None:
                await self._run_in_child(mail, pending)
        except asyncio.CancelledError as error:
            if self.control.is_cancelling():
                raise
            failure = MailFailedError(mail.description, error)
            self.control.record_failure(failure)
            raise failure from error
        except BaseException as error:
            # Recorded before it is raised: the code around the yield may swallow it.
            self.control.record_failure(error)
            raise
        finally:
            self._depth -= 1
            self.metrics.resumed += 1
            self.gate.continue_timer(paused)
        if self.budget.is_over():
            await self.budget.yield_to_loop()

    async def _run_in_child(self, mail: Mail, pending: Awaitable[object]) -> None:
        loop = asyncio.get_running_loop()
        child = loop.create_task(self._hold_token(pending), name=f"mail {mail}")
        interrupt: asyncio.CancelledError | None = None
        self.control.suspended_mails.append(mail)
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
                    if interrupt is not None or self.control.cancelled:
                        child.cancel()
                    interrupt = error
        finally:
            self.control.suspended_mails.pop()
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
            self.control.record_failure(failure)
            attach_later_error(interrupt, failure)

    async def _hold_token(self, pending: Awaitable[object]) -> _Exit:
        """Await the work; return what would end the loop if it was raised here."""
        # Taken by the child itself, so that it holds also if it is started eagerly.
        ownership = self.mailbox.ownership
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


class MailboxExecutor:
    """Runs functions as mail of one priority, and yields to mail of at least that.

    Sending is allowed from any task and thread; yielding only to the mail or default
    action that runs. Made by `MailboxProcessor.executor`.

    Args:
        yielder: Runs the mail.
        priority: Of the mail sent; the index of the operator in its chain.

    Concept:
        Flink, ``MailboxExecutor``.

    Example:
        >>> import asyncio
        >>> from aiomailbox.mailbox import MailboxProcessor
        >>> async def main() -> None:
        ...     processor = MailboxProcessor(lambda c: c.all_actions_completed())
        ...     processor.main_executor.execute(print, "hello from the mailbox")
        ...     await processor.run_mailbox_loop()
        >>> asyncio.run(main())
        hello from the mailbox
    """

    def __init__(self, yielder: MailYielder, priority: int) -> None:
        check_priority(priority)
        self._yielder = yielder
        self._priority = priority

    @property
    def priority(self) -> int:
        """The priority of the mail this executor sends and yields to."""
        return self._priority

    def execute(
        self,
        function: Callable[..., object],
        *args: object,
        description: str = "",
        description_args: tuple[object, ...] = (),
        options: MailOptions = MailOptions.DEFAULT,
    ) -> None:
        """Send work whose failure fails the task.

        Args:
            function: A function or a coroutine function.
            *args: Its arguments.
            description: A ``%`` format for people, rendered only when asked for.
            description_args: The arguments of ``description``.
            options: Placement and visibility.

        Raises:
            RejectedMailError: If the mailbox takes no more mail.
        """
        self._put(
            Mail(
                function,
                *args,
                priority=self._priority,
                options=options,
                description=description,
                description_args=description_args,
            ),
            "execute",
        )

    @overload
    def submit(
        self,
        function: Callable[..., Awaitable[ResultT]],
        *args: object,
        description: str = ...,
        options: MailOptions = ...,
    ) -> MailFuture[ResultT]: ...
    @overload
    def submit(
        self,
        function: Callable[..., ResultT],
        *args: object,
        description: str = ...,
        options: MailOptions = ...,
    ) -> MailFuture[ResultT]: ...
    def submit(
        self,
        function: Callable[..., object],
        *args: object,
        description: str = "",
        options: MailOptions = MailOptions.DEFAULT,
    ) -> MailFuture[ResultT]:
        """Send work whose result, or failure, is stored in the returned future.

        A failure does not fail the task: the caller has to check the future. One that
        is never checked is logged. Inside the mailbox's own task wait for it with
        `yield_until`; a plain ``await`` there would wait for ever.

        Returns:
            A future that can be awaited on any loop and waited for in any thread.

        Raises:
            RejectedMailError: If the mailbox takes no more mail.
        """
        control = self._yielder.control
        submission: Submission[ResultT] = Submission(
            function, args, control.is_cancelling
        )
        what = description or getattr(function, "__qualname__", "")
        mail = Mail(
            submission,
            priority=self._priority,
            options=options,
            description=what,
            on_cancel=partial(_refuse, submission.future, what, control),
        )
        self._put(mail, "submit")
        return submission.future

    async def yield_to_mail(self) -> None:
        """Run one mail of at least this priority on top of the caller; waits for it.

        For waiting until *mail* has freed something; `yield_until` waits for anything.

        Raises:
            MailboxClosedError: If no such mail can come any more.
            StopTask: If the task was cancelled.
            YieldDepthError: If mails yield to mails too deep.
            WrongTaskError: If the caller is not the mailbox's task.
        """
        yielder, priority = self._yielder, self._priority
        yielder.check_depth()
        # On entry and after each wake: a loop around a yield may have run the mail that
        # ends the loop, and nothing would wake it again.
        yielder.control.raise_if_cancelled()
        while (mail := yielder.mailbox.try_take(priority)) is None:
            yielder.mailbox.require_open("wait for more mail")
            await yielder.wait(priority)
            yielder.control.raise_if_cancelled()
        await yielder.run(mail)

    async def try_yield_to_mail(self, *, ignore_deferrable: bool = False) -> bool:
        """Run one mail of at least this priority if there is one.

        Args:
            ignore_deferrable: See deferrable mail by its declared priority.

        Returns:
            Whether one was run.

        Raises:
            MailboxClosedError: If the mailbox is closed.
            YieldDepthError: If mails yield to mails too deep.
            WrongTaskError: If the caller is not the mailbox's task.
        """
        return await self._yielder.try_yield(
            self._priority, ignore_deferrable=ignore_deferrable
        )

    async def yield_until(
        self,
        future: asyncio.Future[ResultT] | concurrent.futures.Future[ResultT],
        *,
        ignore_deferrable: bool = False,
    ) -> ResultT:
        """Run eligible mail as it comes until ``future`` is done; return its result.

        The one safe way to wait inside a mail: whether mail, another task or another
        thread completes the future, no waiter hangs.

        Args:
            future: Of the running loop, or of ``concurrent.futures`` (`submit`).
            ignore_deferrable: See deferrable mail by its declared priority.

        Raises:
            MailboxClosedError: If the mailbox is closed.
            StopTask: If the task was cancelled.
            YieldDepthError: If mails yield to mails too deep.
            WrongTaskError: If the caller is not the mailbox's task.
        """
        waited = (
            asyncio.wrap_future(future)
            if isinstance(future, concurrent.futures.Future)
            else future
        )
        await self._yielder.yield_until(
            cast("asyncio.Future[object]", waited),
            self._priority,
            ignore_deferrable=ignore_deferrable,
        )
        if isinstance(future, MailFuture) and future.is_refused:
            # Which says why.
            future.result()
        return waited.result()

    @property
    def cancellation(self) -> LoopControl:
        """Its ``cancelled`` says whether the mailbox's task is: long work should end."""
        return self._yielder.control

    def is_idle(self) -> bool:
        """Whether nothing happens until mail comes or the default action resumes."""
        mailbox = self._yielder.mailbox
        is_suspended = self._yielder.gate.suspension is not None
        return is_suspended and not mailbox.signal and mailbox.is_open

    def disregard(self) -> None:
        """Say that the mail that runs now changes nothing that a snapshot holds."""
        self._yielder.metrics.mails_disregarded += 1

    def count_change(self) -> None:
        """Say that what a snapshot holds changes without mail, on the mailbox's loop."""
        self._yielder.metrics.changes += 1

    def has_deferrable_mail(self) -> bool:
        """Whether deferrable mail of this priority, or a higher one, waits.

        Raises:
            WrongTaskError: If the caller is not the mailbox's owner.
        """
        return self._yielder.mailbox.has_deferrable_mail(self._priority)

    def should_interrupt(self, *, any_mail: bool = False) -> bool:
        """Whether long work should `pause`: its slice is over or urgent mail waits.

        Args:
            any_mail: Pause for mail of any kind, as Flink does.
        """
        yielder = self._yielder
        mailbox = yielder.mailbox
        return (
            yielder.budget.is_over()
            or mailbox.has_urgent_mail
            or (any_mail and mailbox.signal)
        )

    async def pause(self) -> None:
        """Let the event loop, and the mail that waits, have their turn.

        For work that loops over state, between two pieces of it: the operator must be
        in a state in which it may be snapshotted. Mail of operators before this one
        waits, and so does the task's own unless nothing else is in progress. Mail that is
        sent meanwhile waits for the next pause.

        Raises:
            StopTask: If the task was cancelled.
            YieldDepthError: If mails yield to mails too deep.
            WrongTaskError: If the caller is not the mailbox's task.
        """
        yielder = self._yielder
        yielder.mailbox.ownership.check("pause")
        yielder.control.raise_if_cancelled()
        if yielder.budget.is_over():
            await yielder.budget.yield_to_loop()
        await yielder.run_waiting(yielder.priority_in_pause(self._priority))

    @property
    def has_mail(self) -> bool:
        """Whether mail waits, of whichever priority."""
        return self._yielder.mailbox.signal

    async def run_waiting(self) -> None:
        """Run the mail that waits of this operator and of those behind it.

        Between two records of a run that are awaited: the next one may take long. Mail
        of operators before this one, and the task's own, waits for the end of the run:
        its other records are in no state.

        Raises:
            StopTask: If the task was cancelled.
            YieldDepthError: If mails yield to mails too deep.
            WrongTaskError: If the caller is not the mailbox's task.
        """
        await self._yielder.run_waiting(self._priority)

    def watch(self) -> SliceWatch:
        """Return what tells whether work has taken longer than a slice."""
        return SliceWatch(self._yielder.budget)

    async def wait_until(self, availability: Availability) -> None:
        """Run mail, as in `run_waiting`, until something is available; maybe at once.

        In the middle of a record, or of a run: no snapshot is taken meanwhile of data
        that are not yet in state.

        Raises:
            StopTask: If the task was cancelled.
            YieldDepthError: If mails yield to mails too deep.
            WrongTaskError: If the caller is not the mailbox's task.
        """
        await self._yielder.wait_until(availability, self._priority)

    async def pause_until(self, availability: Availability) -> None:
        """Run mail, as in `pause`, until something is available; maybe at once.

        Raises:
            StopTask: If the task was cancelled.
            YieldDepthError: If mails yield to mails too deep.
            WrongTaskError: If the caller is not the mailbox's task.
        """
        yielder = self._yielder
        priority = yielder.priority_in_pause(self._priority)
        await yielder.wait_until(availability, priority)

    def __repr__(self) -> str:
        return (
            f"<MailboxExecutor priority={self._priority} of {self._yielder.mailbox!r}>"
        )

    def _put(self, mail: Mail, operation: str) -> None:
        try:
            self._yielder.mailbox.put(mail)
        except MailboxClosedError as error:
            raise RejectedMailError(operation, error.state) from error


def _refuse(future: MailFuture[ResultT], what: str, control: LoopControl) -> None:
    error = MailboxClosedError(f"run {what or 'the mail'}", "closed")
    error.__cause__ = control.ended_by
    future.refuse(error)
