"""Mail: one piece of work for a mailbox, with the priority it was sent at."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Awaitable, Callable
from typing import Final, cast

from aiomailbox.errors import InvalidArgumentError, MailFailedError, WrongTypeError

__all__ = ["MAX_PRIORITY", "MIN_PRIORITY", "Mail", "MailOptions", "check_priority"]

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
        run: A function, or a coroutine function: what it returns is awaited if it can
            be. Never a coroutine object, which could run only once.
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
        """What the mail is, rendered now."""
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
