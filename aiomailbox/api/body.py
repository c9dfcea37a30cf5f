"""The body of a block in which a job runs: what becomes of it when the job fails.

Concept:
    asyncio, ``TaskGroup``: the body is cancelled once, and that is taken back at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiomailbox.errors import JobFailedError

__all__ = ["Body"]


class Body:
    """The running asyncio task, for as long as it is in the block.

    Args:
        is_cancelled: Whether a failure of the job cancels it.

    Attributes:
        loop: The event loop on which it and the job run.
    """

    def __init__(self, *, is_cancelled: bool) -> None:
        task = asyncio.current_task()
        assert task is not None, "a block is entered by an asyncio task"
        self.loop: asyncio.AbstractEventLoop = task.get_loop()
        self._task: asyncio.Task[Any] = task
        self._cancels_before = task.cancelling()
        # It is to be cancelled, and nothing is in the way.
        self._may_cancel = is_cancelled
        self._has_failed = False
        self._is_cancelled = False
        self._waits = 0

    def on_failed(self) -> None:
        """Be notified that the job has failed."""
        self._has_failed = True
        self._interrupt()

    @contextmanager
    def told(self) -> Iterator[None]:
        """Leave it alone while it waits for something that raises the job's failure."""
        if asyncio.current_task() is not self._task:
            yield
            return
        self._waits += 1
        try:
            yield
        except JobFailedError:
            self._may_cancel = False
            raise
        finally:
            self._waits -= 1
            self._interrupt()

    async def leave(self) -> bool:
        """Take the cancellation back, and say whether it was the only one.

        The body is not cancelled any more from now on.

        Raises:
            asyncio.CancelledError: If it was cancelled from outside, too.
        """
        self._may_cancel = False
        if not self._is_cancelled:
            return False
        self._is_cancelled = False
        met: asyncio.CancelledError | None = None
        try:
            # One that is not delivered yet must not hit what comes after the block.
            await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            met = error
        is_only = self._task.uncancel() <= self._cancels_before
        if met is not None and not is_only:
            raise met
        return is_only

    def _interrupt(self) -> None:
        if self._has_failed and self._may_cancel and not self._waits:
            self._may_cancel = False
            self._is_cancelled = self._task.cancel("the job of the block has failed")
