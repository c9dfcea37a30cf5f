"""The coroutines that operators start beside the mailbox, owned by their task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class HelperTasks:
    """Starts coroutines, hears of their failures, and leaves none behind.

    Args:
        on_failure: Told when one fails.
    """

    __slots__ = ("_closing", "_on_failure", "_tasks")

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def spawn(
        self, work: Coroutine[Any, Any, None], *, name: str
    ) -> asyncio.Task[None]:
        """Start a coroutine; it is cancelled when the task ends."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Cancel what still runs, and tell of no failure any more."""
        self._closing = True
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Cancel what still runs and wait for it."""
        self.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not self._closing:
            self._on_failure(error)
