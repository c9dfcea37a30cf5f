"""The coroutines that operators start beside the mailbox, owned by their task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from aiomailbox.supervision import INTERRUPTS, close_by_force, end_tasks


class HelperTasks:
    """Starts coroutines, reports their failures, and leaves none behind.

    Args:
        on_failure: Told when one fails.
        timeout_s: How long those that are asked to end may take.
    """

    __slots__ = ("_closing", "_every_s", "_on_failure", "_tasks")

    def __init__(
        self, on_failure: Callable[[BaseException], None], timeout_s: float = 30.0
    ) -> None:
        self._on_failure = on_failure
        self._every_s = timeout_s / INTERRUPTS
        # As a set that keeps their order.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._closing = False

    def spawn(
        self, work: Coroutine[Any, Any, None], *, name: str
    ) -> asyncio.Task[None]:
        """Start a coroutine; it is cancelled when the task ends."""
        task = asyncio.get_running_loop().create_task(self._keep(work), name=name)
        self._tasks[task] = None
        task.add_done_callback(partial(self._ended, work))
        return task

    @property
    def running(self) -> list[asyncio.Task[None]]:
        """Those that have not ended."""
        return [task for task in self._tasks if not task.done()]

    async def close(self) -> None:
        """Cancel what still runs, again and again, and wait for it.

        When time is up this is abandoned, and the task calls `end_by_force`.
        """
        self._closing = True
        await end_tasks(self._tasks, every_s=self._every_s)

    def end_by_force(self) -> None:
        """End what does not heed its cancellation; for when time is up."""
        self._closing = True
        for task in self.running:
            close_by_force(task)

    async def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (KeyboardInterrupt, SystemExit) as error:
            # It would end the loop and not the task.
            if not self._closing:
                self._on_failure(error)

    def _ended(self, work: Coroutine[Any, Any, None], task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        # Cancelling a task that has not begun leaves its work as it was made.
        work.close()
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not self._closing:
            self._on_failure(error)
