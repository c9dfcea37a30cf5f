"""How the owner of a mailbox sleeps and how new mail wakes it.

Theory of operation: the owner decides under the mailbox's lock that there is nothing
for it, and leaves a `Waiter` there before it releases the lock; a put appends and
takes the waiter away under the same lock. So no mail can come unseen between
the check and the sleep.
"""

from __future__ import annotations

import asyncio
import threading

from aiomailbox.mailbox.mail import Mail

__all__ = ["Waiter"]


class Waiter:
    """One sleeping owner: what it waits for, and how to wake it from any thread."""

    __slots__ = ("_loop", "_thread", "future", "ignore_deferrable", "priority")

    def __init__(self, priority: int, *, ignore_deferrable: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.future: asyncio.Future[None] = self._loop.create_future()
        self.priority: int = priority
        self.ignore_deferrable: bool = ignore_deferrable

    def wants(self, mail: Mail) -> bool:
        """Whether this mail is a reason to wake."""
        priority = mail.declared_priority if self.ignore_deferrable else mail.priority
        return priority >= self.priority

    def wake(self, _done: object = None) -> bool:
        """Wake the owner; False if its loop is closed. A second wake does nothing.

        Args:
            _done: Ignored; lets this be a future's done callback.
        """
        if self._loop.is_closed():
            return False
        if threading.get_ident() == self._thread:
            self._complete()
            return True
        # Completed from here, the future would be seen only at the loop's next event.
        try:
            self._loop.call_soon_threadsafe(self._complete)
        except RuntimeError:
            # It has been closed since we looked.
            return False
        return True

    def _complete(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
