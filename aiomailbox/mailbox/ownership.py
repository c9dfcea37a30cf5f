"""Whose mailbox it is: the runner's, or that of a child it lent its token to.

Theory of operation: three kinds of caller exist: the runner's own mail stack, other
tasks and callbacks on the same loop, other threads. A thread id cannot tell the first
two apart, so ownership is an asyncio task. While a nested mail runs in a child task the
child is the holder; the runner waits for it and cannot act anyway.
"""

from __future__ import annotations

import asyncio
import threading

from aiomailbox.errors import WrongTaskError

__all__ = ["Ownership", "current_task_or_none"]


def current_task_or_none() -> asyncio.Task[object] | None:
    """Return the running task; None in callbacks and outside of any loop."""
    # `asyncio.current_task()` alone raises where no loop runs, and threads ask this.
    loop = asyncio._get_running_loop()
    return None if loop is None else asyncio.current_task(loop)


class Ownership:
    """Which task may take, yield, suspend, quiesce and close.

    Unbound it belongs to its holder. The ownership of a task that has ended is
    void, so that its supervisor can clean up.
    """

    __slots__ = ("holder", "loop")

    def __init__(self) -> None:
        self.holder: asyncio.Task[object] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def bind(self, task: asyncio.Task[object]) -> None:
        """Give the ownership to ``task``.

        Raises:
            WrongTaskError: If another task that is still alive has it.
        """
        holder = self.holder
        if holder is not None and holder is not task and not holder.done():
            raise WrongTaskError("bind_owner", holder.get_name(), task.get_name())
        self.holder = task
        self.loop = task.get_loop()

    def is_held_here(self) -> bool:
        """Whether the caller is the holder (False while unbound)."""
        holder = self.holder
        return holder is not None and current_task_or_none() is holder

    def is_on_loop(self) -> bool:
        """Whether the caller runs on the holder's loop, as whichever task."""
        loop = asyncio._get_running_loop()
        return loop is not None and loop is self.loop

    def check(self, operation: str) -> None:
        """Raise unless the caller may do what belongs to the holder.

        Raises:
            WrongTaskError: If another, living task is the holder.
        """
        holder = self.holder
        if holder is None:
            return
        caller = current_task_or_none()
        if caller is holder or holder.done():
            return
        name = caller.get_name() if caller else threading.current_thread().name
        raise WrongTaskError(operation, holder.get_name(), name)

    def void(self) -> None:
        """Take the ownership from a task that does not end."""
        self.holder = None

    def lend_to_current(self) -> asyncio.Task[object] | None:
        """Make the running task the holder; return the one to hand back to."""
        previous = self.holder
        self.holder = current_task_or_none()
        return previous

    def hand_back(self, previous: asyncio.Task[object] | None) -> None:
        """Undo `lend_to_current`."""
        self.holder = previous
