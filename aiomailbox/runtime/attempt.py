"""One run of a job's tasks: made, started, and outlasted to their end.

Concept:
    Flink, ``Execution``: an attempt of all tasks that fail together.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import anyio

from aiomailbox.availability import Availability
from aiomailbox.records import StopMode
from aiomailbox.runtime.attempt_plan import AttemptPlan
from aiomailbox.runtime.first_error import FirstError
from aiomailbox.runtime.host import Host

__all__ = ["Attempt", "AttemptOwner"]


class AttemptOwner(Protocol):
    """Who is told what becomes of an attempt, on its loop."""

    def on_deployed(self) -> None:
        """Send splits: the tasks are made, and take them from now on."""
        ...

    def on_failing(self) -> None:
        """Hear that the attempt has failed; its tasks are being ended."""
        ...

    def cancel(self) -> None:
        """End the job: a task ended itself, or the loop goes down."""
        ...

    def on_split_request(self, vertex: int, subtask_index: int) -> None:
        """Pass a reader's request for another split to its enumerator."""
        ...


class Attempt:
    """The tasks of a job from their making to their end.

    Args:
        job_name: The job's name, for errors.
        plan: What is run.
        host: Where the tasks run.
        owner: Who is told.

    Attributes:
        plan: What is run.
        failure: Why it failed, if it did.
    """

    def __init__(
        self, job_name: str, plan: AttemptPlan, host: Host, owner: AttemptOwner
    ) -> None:
        self.plan = plan
        self.failure: FirstError = FirstError()
        self._job_name = job_name
        self._host = host
        self._owner = owner
        self._changed = Availability()
        self._is_over = False

    async def run(self) -> None:
        """Run all tasks to their end, however that comes.

        A task group that is interrupted would cut short the clean-up of its tasks, so
        it never sees an interrupt: they are cancelled as by `cancel`.
        """
        try:
            self._host.deploy(self.plan, self)
        except BaseException as error:  # noqa: BLE001 -- the owner asks for it
            self.fail(error)
            return
        self._owner.on_deployed()
        async with anyio.create_task_group() as group:
            self._host.start(group)
            while not self._host.is_over:
                try:
                    await self._changed.wait()
                except asyncio.CancelledError:
                    self._owner.cancel()
                    self._host.on_interrupt()
                self._changed.reset()
        self._is_over = True

    def cancel(self) -> None:
        """Ask all tasks to end; any number of times, at any time."""
        self._host.cancel()

    def stop(self, mode: StopMode) -> None:
        """Let the sources read no more; the tasks end when all that came is finished."""
        self._host.stop(mode)

    def fail(self, error: BaseException, task: str | None = None) -> None:
        """Fail, and end all tasks; a no-op once all have ended.

        A worker that dies when there is nothing left to do spoils no result.

        Args:
            error: Why; the first one counts.
            task: Which task had it, if one did.
        """
        if self._is_over:
            return
        note = None if task is None else f"in task {task!r} of job {self._job_name!r}"
        self.failure.add(error, note)
        self._owner.on_failing()
        self._host.cancel()
        self._changed.set_available()

    def on_task_ended(self, error: BaseException | None, task: str) -> None:
        """Hear that a task ended: well, or with an error."""
        if error is not None:
            self.fail(error, task)
        self._changed.set_available()

    def on_cancelled(self) -> None:
        """Hear that a task ended itself, or was interrupted."""
        self._owner.cancel()

    def on_failed(self, error: BaseException) -> None:
        """Hear of a failure that is of no task."""
        self.fail(error)

    def on_changed(self) -> None:
        """Look again whether everything is over."""
        self._changed.set_available()

    def on_split_request(self, vertex: int, subtask_index: int) -> None:
        """Pass a reader's request for another split to its enumerator."""
        self._owner.on_split_request(vertex, subtask_index)
