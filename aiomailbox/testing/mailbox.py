"""A mailbox that runs its mail when a test requests it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from aiomailbox.availability import Availability
from aiomailbox.mailbox.mail import MailFuture, MailOptions


class HarnessWatch:
    """Looks like a `SliceWatch`: no slice is ever over."""

    def __init__(self, mailbox: HarnessMailbox) -> None:
        self._mailbox = mailbox

    def start(self) -> None:
        """Do nothing."""

    @property
    def has_waited(self) -> bool:
        """Whether mail is waiting."""
        return self._mailbox.has_mail

    def is_over(self) -> bool:
        """Return False."""
        return False


class HarnessMailbox:
    """Keeps mail until `run_all`; looks like a `MailboxExecutor`.

    For one task and thread. Mail runs in the order sent, options are ignored.

    Example:
        >>> mailbox = HarnessMailbox()
        >>> mailbox.execute(print, "now")
        >>> mailbox.try_run()
        now
        True
    """

    priority = 0

    def __init__(self) -> None:
        self._mail: deque[Callable[[], Any]] = deque()
        self._arrived = Availability()

    def __len__(self) -> int:
        return len(self._mail)

    def execute(
        self,
        function: Callable[..., object],
        *args: object,
        description: str = "",
        description_args: tuple[object, ...] = (),
        options: MailOptions = MailOptions.DEFAULT,
    ) -> None:
        """Keep work to be run later."""
        self._mail.append(lambda: function(*args))
        self._arrived.set_available()

    def submit(
        self,
        function: Callable[..., object],
        *args: object,
        description: str = "",
        options: MailOptions = MailOptions.DEFAULT,
    ) -> MailFuture[Any]:
        """Keep work to be run later; its result goes to the returned future."""
        future: MailFuture[Any] = MailFuture()

        async def run() -> None:
            try:
                result = function(*args)
                if inspect.isawaitable(result):
                    result = await result
            except Exception as error:  # noqa: BLE001 -- it belongs to the future
                future.set_exception(error)
            else:
                future.set_result(result)

        self.execute(run)
        return future

    def try_run(self) -> bool:
        """Run one mail; say whether there was one. Its awaitable is not allowed."""
        if not self._mail:
            return False
        outcome = self._mail.popleft()()
        if inspect.iscoroutine(outcome):
            outcome.close()
        assert not inspect.isawaitable(outcome), "this mail waits: use run_all()"
        return True

    async def run_all(self) -> None:
        """Run mail until there is none."""
        while self._mail:
            await self._run_one()

    async def yield_to_mail(self) -> None:
        """Wait for one mail and run it."""
        while not self._mail:
            self._arrived.reset()
            await self._arrived.wait()
        await self._run_one()

    async def try_yield_to_mail(self, *, ignore_deferrable: bool = False) -> bool:
        """Run one mail if there is one, and say so."""
        if not self._mail:
            return False
        await self._run_one()
        return True

    async def yield_until(
        self,
        future: asyncio.Future[Any] | concurrent.futures.Future[Any],
        *,
        ignore_deferrable: bool = False,
    ) -> Any:
        """Run mail as it arrives until ``future`` is done, and return its result."""
        if isinstance(future, concurrent.futures.Future):
            future = asyncio.wrap_future(future)
        future.add_done_callback(lambda _: self._arrived.set_available())
        while not future.done():
            if self._mail:
                await self._run_one()
            else:
                self._arrived.reset()
                await self._arrived.wait()
        return future.result()

    async def yield_until_any(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Run one mail, or wait until there is one or a task is done."""
        for task in tasks:
            task.add_done_callback(lambda _: self._arrived.set_available())
        if self._mail:
            await self._run_one()
        elif not any(task.done() for task in tasks):
            self._arrived.reset()
            await self._arrived.wait()

    def is_idle(self) -> bool:
        """Whether there is no mail."""
        return not self._mail

    def should_interrupt(self, *, any_mail: bool = False) -> bool:
        """Whether long work should pause: never, in a harness."""
        return False

    async def pause(self) -> None:
        """Run the mail that is there."""
        for _ in range(len(self._mail)):
            await self.try_yield_to_mail()

    @property
    def has_mail(self) -> bool:
        """Whether mail is waiting."""
        return bool(self._mail)

    async def run_waiting(self) -> None:
        """Run the mail that is there."""
        await self.pause()

    def watch(self) -> HarnessWatch:
        """Return what says that it is time to look for mail when there is some."""
        return HarnessWatch(self)

    async def wait_until(self, availability: Availability) -> None:
        """Run mail as it arrives until something is available."""
        await self.pause_until(availability)

    async def pause_until(self, availability: Availability) -> None:
        """Run mail as it arrives until something is available."""
        while not availability.available:
            await self.yield_until(availability.waiter())

    async def _run_one(self) -> None:
        outcome = self._mail.popleft()()
        if isinstance(outcome, Awaitable):
            await outcome
