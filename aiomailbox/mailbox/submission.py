"""The result of submitted work: safe to await on a loop and to wait for in a thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator
from typing import Generic, TypeVar, cast

from aiomailbox.errors import IllegalStateError, MailboxClosedError, MailFailedError

__all__ = ["MailFuture", "Submission"]

ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)


class MailFuture(concurrent.futures.Future[ResultT]):
    """The result of work that was submitted to a mailbox.

    One type for every caller: ``await`` it on any event loop, or call ``result()`` in
    a thread that runs none. ``cancel()`` withdraws the work if it has not begun. If the
    mailbox closes before that, the future is cancelled too, and whoever waits for it gets
    `MailboxClosedError`. ``asyncio.wrap_future`` makes a plain ``asyncio.Future`` of it where one is needed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._looked_at = False
        self._refused: MailboxClosedError | None = None

    def __await__(self) -> Generator[object, None, ResultT]:
        return self._outcome().__await__()

    async def _outcome(self) -> ResultT:
        try:
            return await asyncio.wrap_future(self)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # Who is cancelled itself is told so.
            if self._refused is None or (task is not None and task.cancelling()):
                raise
            raise self._refused from self._refused.__cause__

    @property
    def is_refused(self) -> bool:
        """Whether the mailbox closed before the work began."""
        return self._refused is not None

    def refuse(self, error: MailboxClosedError) -> None:
        """Be notified that the work will not be done: its mailbox has closed."""
        self._refused = error
        self.cancel()

    def result(self, timeout: float | None = None) -> ResultT:
        """Return the result, waiting for it up to ``timeout`` seconds.

        Raises:
            MailboxClosedError: If the mailbox closed before the work began.
            IllegalStateError: If it is not there yet and this thread runs an event
                loop, which would be blocked.
        """
        self._refuse_to_block()
        self._looked_at = True
        try:
            return super().result(timeout)
        except concurrent.futures.CancelledError:
            if self._refused is None:
                raise
            raise self._refused from self._refused.__cause__

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception, waiting for it up to ``timeout`` seconds.

        Raises:
            IllegalStateError: If it is not there yet and this thread runs an event
                loop, which would be blocked.
        """
        self._refuse_to_block()
        self._looked_at = True
        try:
            return super().exception(timeout)
        except concurrent.futures.CancelledError:
            if self._refused is None:
                raise
            return self._refused

    def _refuse_to_block(self) -> None:
        if not self.done() and asyncio._get_running_loop() is not None:
            raise IllegalStateError(
                "the result is not there yet and waiting would block the event loop: "
                "await the future instead"
            )

    def __del__(self) -> None:
        # As futures of asyncio do: otherwise a failure that is not awaited is lost.
        if self._looked_at or not self.done() or self.cancelled():
            return
        error = super().exception()
        if error is not None:
            _log.error("the failure of a submitted mail was never retrieved: %r", error)


class Submission(Generic[ResultT]):
    """Submitted work as the function of a mail: failures are stored, never raised.

    Args:
        function: What to call.
        args: Its arguments.
        is_cancelling: Whether a CancelledError is meant for the task that runs it.
    """

    __slots__ = ("_args", "_function", "_is_cancelling", "future")

    def __init__(
        self,
        function: Callable[..., object],
        args: tuple[object, ...],
        is_cancelling: Callable[[], bool],
    ) -> None:
        self._function = function
        self._args = args
        self._is_cancelling = is_cancelling
        self.future: MailFuture[ResultT] = MailFuture()

    def __call__(self) -> Awaitable[None] | None:
        """Call the function; return what has to be awaited, or None if it is done."""
        if not self.future.set_running_or_notify_cancel():
            return None
        try:
            result = self._function(*self._args)
        except BaseException as error:  # noqa: BLE001 -- stored; _fail lets exits through
            self._fail(error)
            return None
        if inspect.isawaitable(result):
            return self._finish(result)
        self.future.set_result(cast("ResultT", result))
        return None

    async def _finish(self, pending: Awaitable[object]) -> None:
        try:
            result = await pending
        except BaseException as error:  # noqa: BLE001 -- stored; _fail lets exits through
            self._fail(error)
        else:
            self.future.set_result(cast("ResultT", result))

    def _fail(self, error: BaseException) -> None:
        what = getattr(self._function, "__qualname__", repr(self._function))
        if isinstance(error, asyncio.CancelledError | StopIteration):
            # Neither can cross an await as it is.
            failure: BaseException = MailFailedError(what, error)
            failure.__cause__ = error
        else:
            failure = error
        self.future.set_exception(failure)
        # Stored is not enough for an exit, or for a cancel of the task that runs the
        # mail.
        if not isinstance(error, Exception) and not self._is_foreign(error):
            raise error

    def _is_foreign(self, error: BaseException) -> bool:
        return isinstance(error, asyncio.CancelledError) and not self._is_cancelling()
