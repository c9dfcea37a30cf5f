"""The steps that close a task: each is taken once, whatever they raise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from aiomailbox.operators import Pending
from aiomailbox.supervision import SupervisedTask, forget_cancellation

__all__ = ["Closing"]

# When time is up: enough for what does not really wait.
_MOMENT_S: Final = 0.05

Step = Callable[[], Pending]


class Closing:
    """Takes steps one by one; whoever goes on after somebody else repeats none.

    Args:
        steps: What is to be done, in order.

    Attributes:
        errors: What the steps raised, in order.
    """

    def __init__(self, steps: Iterator[Step]) -> None:
        self.errors: list[BaseException] = []
        self._steps = steps

    async def run(self, runner: SupervisedTask) -> None:
        """Take the steps, until the time of the task that runs them is up."""
        while not runner.is_late and (step := next(self._steps, None)) is not None:
            await self._take(step, runner)

    async def run_late(self, name: str) -> None:
        """Take the steps that are left, and let none of them wait for long.

        Args:
            name: Of the asyncio tasks that take them.
        """
        for step in self._steps:
            late = SupervisedTask(
                self._done(step), name=name, timeout_s=_MOMENT_S, grace_s=_MOMENT_S
            )
            late.start()
            late.limit()
            try:
                await late.outlast()
            except asyncio.CancelledError as error:
                self.errors.append(error)
            if late.error is not None and not late.is_late:
                self.errors.append(late.error)

    async def _take(self, step: Step, runner: SupervisedTask) -> None:
        try:
            await self._done(step)
        except BaseException as error:
            if runner.is_given_up:
                # Closed by force: nothing can be awaited any more.
                raise
            if not (runner.is_late and isinstance(error, asyncio.CancelledError)):
                self.errors.append(error)
        # A cancellation has been delivered; the next one would be somebody else's.
        forget_cancellation(runner.task)

    async def _done(self, step: Step) -> None:
        pending: Awaitable[None] | None = step()
        if pending is not None:
            await pending
