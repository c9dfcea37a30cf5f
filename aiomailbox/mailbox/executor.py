"""The door to a mailbox: send work to it, and yield to it."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar, cast, overload

from aiomailbox.availability import Availability
from aiomailbox.errors import MailboxClosedError, RejectedMailError
from aiomailbox.mailbox.budget import SliceWatch
from aiomailbox.mailbox.control import LoopControl
from aiomailbox.mailbox.mail import Mail, MailOptions, check_priority
from aiomailbox.mailbox.submission import MailFuture, Submission
from aiomailbox.mailbox.yielding import MailYielder

__all__ = ["MailboxExecutor"]

ResultT = TypeVar("ResultT")


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

    __slots__ = ("_priority", "_yielder")

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
        await self._yielder.yield_once(self._priority)

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
        return self._yielder.is_suspended and not mailbox.signal and mailbox.is_open

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
            yielder.is_slice_over()
            or mailbox.has_urgent_mail
            or (any_mail and mailbox.signal)
        )

    async def pause(self) -> None:
        """Let the event loop, and the mail that waits, have their turn.

        For work that loops over state, between two pieces of it: the operator must be
        in a state in which it may be snapshotted. Mail of operators before this one
        waits, and so does the task's own unless nothing else is in progress.

        Raises:
            StopTask: If the task was cancelled.
            YieldDepthError: If mails yield to mails too deep.
            WrongTaskError: If the caller is not the mailbox's task.
        """
        await self._yielder.pause(self._priority)

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
        return self._yielder.watch()

    async def wait_until(self, availability: Availability) -> None:
        """Run mail, as in `run_waiting`, until something is available; maybe at once.

        In the middle of a record, or of a run: what is in no state yet is not
        snapshotted meanwhile.

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
        await self._yielder.pause_until(availability, self._priority)

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
