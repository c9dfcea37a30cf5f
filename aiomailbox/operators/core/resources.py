"""The life of a user's function: opened once, with what it needs, and closed once."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from aiomailbox.errors import WrongTypeError
from aiomailbox.operators.core.operator import Pending, finished, pending_of
from aiomailbox.operators.core.user_code import FunctionHooks, describe


class FunctionLife:
    """Calls ``open`` and ``close`` of a function object, and holds what ``open`` gave.

    ``open(context)`` may be sync or async, and may return a context manager, sync or
    async: it is entered before the first record and left after the last, and what it
    gives is the `resource`, of this object and of the contexts that the function gets.
    So an HTTP client, say, is opened once a subtask.

    Args:
        function: An object that may have ``open(context)`` and ``close()``.

    Attributes:
        resource: What the context manager gave, or None.

    Example:
        >>> import asyncio, contextlib
        >>> class Function:
        ...     @contextlib.asynccontextmanager
        ...     async def open(self, context):
        ...         yield "client"
        ...         print("closed")
        >>> async def main():
        ...     life = FunctionLife(Function())
        ...     await life.open(None)
        ...     print(life.resource)
        ...     await life.close()
        >>> asyncio.run(main())
        client
        closed
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._exit: Callable[..., Any] | None = None
        self._holders: tuple[Any, ...] = ()
        self._is_open = False
        self._hooks = FunctionHooks(function)
        self.resource: Any = None

    def open(self, context: Any, *holders: Any) -> Pending:
        """Give the function its state, open it, and enter what it returns.

        Args:
            context: What ``open`` is called with.
            *holders: Their attribute ``resource`` is set, too.
        """
        self._holders = holders
        self._is_open = True
        self._hooks.initialize(context)
        acquire = getattr(self._function, "open", None)
        return None if acquire is None else self._enter(acquire(context))

    @property
    def fills_state(self) -> bool:
        """Whether the function has ``snapshot_state``."""
        return self._hooks.are_there

    def snapshot(self) -> None:
        """Let the function fill its state, if it has ``snapshot_state``."""
        self._hooks.snapshot()

    def share(self, *holders: Any) -> None:
        """Let more objects have the resource as their attribute."""
        self._holders += holders
        for holder in holders:
            holder.resource = self.resource

    def close(self) -> Pending:
        """Leave the context manager, then close the function; once, if it was opened."""
        if not self._is_open:
            return None
        self._is_open = False
        leave, self._exit = self._exit, None
        release = getattr(self._function, "close", None)
        if leave is None:
            return None if release is None else _ended(release())
        return self._leave(leave, release)

    def _enter(self, given: Any) -> Pending:
        if given is None:
            return None
        if hasattr(type(given), "__aenter__"):
            return self._enter_async(given)
        if hasattr(type(given), "__enter__"):
            self._hold(given.__enter__(), given.__exit__)
            return None
        if inspect.isawaitable(given):
            return self._enter_awaited(given)
        raise WrongTypeError(
            "open",
            f"{describe(self._function.open)} returned {given!r}",
            "Return None, or a context manager such as an HTTP client.",
        )

    async def _enter_awaited(self, given: Awaitable[Any]) -> None:
        await finished(self._enter(await given))

    async def _enter_async(self, given: Any) -> None:
        self._hold(await given.__aenter__(), given.__aexit__)

    def _hold(self, resource: Any, leave: Callable[..., Any]) -> None:
        self._exit = leave
        self.resource = resource
        for holder in self._holders:
            holder.resource = resource

    async def _leave(
        self, leave: Callable[..., Any], release: Callable[[], Any] | None
    ) -> None:
        try:
            left = leave(None, None, None)
            if inspect.isawaitable(left):
                await left
        finally:
            self.resource = None
            await finished(None if release is None else _ended(release()))


def _ended(result: object) -> Pending:
    """Return what is to be awaited of what ``close`` returned; its value is dropped."""
    pending = pending_of(result)
    return None if pending is None else _without_result(pending)


async def _without_result(pending: Awaitable[Any]) -> None:
    await pending
