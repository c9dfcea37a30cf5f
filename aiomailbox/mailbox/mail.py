"""Mail: one piece of work for a mailbox, with the priority it was sent at."""

from __future__ import annotations

import asyncio
import concurrent.futures
import enum
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator
from typing import Final, Generic, cast

from aiomailbox.errors import (
    IllegalStateError,
    InvalidArgumentError,
    MailboxClosedError,
    MailFailedError,
    WrongTypeError,
)
from aiomailbox.typevars import ResultT

MIN_PRIORITY: Final = -1


"""The priority of mail that belongs to no operator; only the main loop sees it."""


# Flink's Integer.MAX_VALUE.
MAX_PRIORITY: Final = 2**31 - 1


"""The priority of control mail: visible in every yield."""


class MailOptions(enum.Enum):
    """How a mail is placed and which takes see it; not both urgent and deferrable.

    Attributes:
        DEFAULT: Placed at the end, seen by every take at or below its priority.
        URGENT: Placed ahead of all mail that is not urgent; visibility unchanged.
        DEFERRABLE: Placed at the end, seen by the main loop only.

    Concept:
        Flink, ``MailboxExecutor.MailOptions``.
    """

    DEFAULT = "default"
    URGENT = "urgent"
    DEFERRABLE = "deferrable"


class Mail:
    """A function with its arguments, to be run by the task that owns the mailbox.

    Args:
        run: A function, or a coroutine function: an awaitable result is awaited. Never
            a coroutine object, which could run only once.
        *args: Positional arguments of ``run``.
        priority: From `MIN_PRIORITY` to `MAX_PRIORITY`; a take at ``p`` sees the mail
            only if its priority is at least ``p``. Never reorders.
        options: Placement and visibility.
        description: A ``%`` format for people; rendered only when asked for. Empty
            means the function's own name.
        description_args: The arguments of ``description``.
        on_cancel: Called by `cancel` when the mail is dropped without having run.

    Raises:
        WrongTypeError: If ``run`` cannot be called.
        InvalidArgumentError: If ``priority`` is out of range.

    Concept:
        Flink, ``Mail``.

    Example:
        >>> mail = Mail(
        ...     print, "hello", description="greet %s", description_args=("Ada",)
        ... )
        >>> mail.run()
        hello
        >>> mail.description
        'greet Ada'
    """

    __slots__ = (
        "_args",
        "_description",
        "_description_args",
        "_function",
        "_on_cancel",
        "declared_priority",
        "options",
        "priority",
        "urgent",
    )

    def __init__(
        self,
        run: Callable[..., object],
        *args: object,
        priority: int = MIN_PRIORITY,
        options: MailOptions = MailOptions.DEFAULT,
        description: str = "",
        description_args: tuple[object, ...] = (),
        on_cancel: Callable[[], object] | None = None,
    ) -> None:
        if not callable(run):
            raise _not_callable(run)
        check_priority(priority)
        self._function = run
        self._args = args
        self._description = description
        self._description_args = description_args
        self._on_cancel = on_cancel
        self.options: MailOptions = options
        self.declared_priority: int = priority
        # Effective: nothing but the main loop's take at MIN_PRIORITY sees deferrable.
        deferrable = options is MailOptions.DEFERRABLE
        self.priority: int = MIN_PRIORITY if deferrable else priority
        self.urgent: bool = options is MailOptions.URGENT

    def run(self) -> Awaitable[object] | None:
        """Call the function; return what has to be awaited, or None if it is done.

        Raises:
            MailFailedError: If the function raised ``StopIteration``, which a coroutine
                must not let through.
        """
        try:
            result = self._function(*self._args)
        except StopIteration as error:
            raise MailFailedError(self.description, error) from error
        # Most mail returns None, and `isawaitable` asks an abstract base class about
        # the rest.
        if result is None or not inspect.isawaitable(result):
            return None
        return cast("Awaitable[object]", result)

    def cancel(self) -> None:
        """Notify the waiter for this mail that it will not run; else do nothing."""
        if self._on_cancel is not None:
            self._on_cancel()

    @property
    def description(self) -> str:
        """The text that describes the mail, rendered now."""
        if self._description:
            if self._description_args:
                return self._description % self._description_args
            return self._description
        return getattr(self._function, "__qualname__", None) or repr(self._function)

    def __str__(self) -> str:
        return self.description

    def __repr__(self) -> str:
        return (
            f"<Mail {self.description!r} priority={self.declared_priority} "
            f"{self.options.value}>"
        )


def check_priority(priority: int) -> None:
    """Raise unless ``priority`` is one that mail can have.

    Raises:
        InvalidArgumentError: If it is outside `MIN_PRIORITY` to `MAX_PRIORITY`.
    """
    if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidArgumentError(
            "priority",
            f"{priority} is out of range",
            f"Use {MIN_PRIORITY} (no operator), the operator's index in its chain, "
            f"or {MAX_PRIORITY} (control).",
        )


def _not_callable(run: object) -> WrongTypeError:
    if inspect.iscoroutine(run):
        # Or Python warns, besides the error, that it was never awaited.
        run.close()
        remedy = "Pass the coroutine function and its arguments, not the coroutine."
    else:
        remedy = "Pass a function or a coroutine function."
    return WrongTypeError("run", f"{type(run).__name__} cannot be called", remedy)


# The result of submitted work: safe to await on a loop and to wait for in a thread.


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
