"""One run of a job's tasks: made, started, and outlasted to their end.

Concept:
    Flink, ``Execution``: an attempt of all tasks that fail together.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import anyio

from aiomailbox.availability import Availability
from aiomailbox.checkpoint import TaskHandle
from aiomailbox.ids import SubtaskId
from aiomailbox.records import StopMode
from aiomailbox.runtime.attempt_plan import AttemptPlan
from aiomailbox.runtime.coordinator import CheckpointCoordinator
from aiomailbox.runtime.first_error import FirstError
from aiomailbox.runtime.host import Host
from aiomailbox.task import TaskStatistics

__all__ = ["Attempt", "AttemptOwner"]


class AttemptOwner(Protocol):
    """Who is told what becomes of an attempt, on its loop."""

    def on_deployed(self) -> None:
        """Send splits: the tasks are made, and take them from now on."""
        ...

    def on_failing(self, error: BaseException) -> None:
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
        checkpoints: Takes the checkpoints; None for a job without.

    Attributes:
        plan: What is run.
        failure: Why it failed, if it did.
    """

    def __init__(
        self,
        job_name: str,
        plan: AttemptPlan,
        host: Host,
        owner: AttemptOwner,
        checkpoints: CheckpointCoordinator | None = None,
    ) -> None:
        self.plan = plan
        self.failure: FirstError = FirstError()
        self._job_name = job_name
        self._host = host
        self._owner = owner
        self._checkpoints = checkpoints
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
        is_first = self.failure.error is None
        self.failure.add(error, note)
        if is_first:
            self._owner.on_failing(error)
        self._host.cancel()
        self._changed.set_available()

    @property
    def is_over(self) -> bool:
        """Whether all tasks have ended."""
        return self._is_over

    def on_task_ended(
        self, error: BaseException | None, task: str, subtask: SubtaskId
    ) -> None:
        """Hear that a task ended: well, or with an error."""
        if error is not None:
            self.fail(error, task)
        elif self._checkpoints is not None and self.failure.error is None:
            self._checkpoints.on_task_finished(subtask)
        self._changed.set_available()

    def on_task_running(self, task: SubtaskId) -> None:
        """Hear that a task has been restored and runs."""
        if self._checkpoints is not None:
            self._checkpoints.on_task_running(task)

    def on_end_of_data(self, task: SubtaskId) -> None:
        """Hear that no more records will come out of a task."""
        if self._checkpoints is not None:
            self._checkpoints.on_end_of_data(task)

    def on_acknowledged(
        self,
        task: SubtaskId,
        checkpoint_id: int,
        handle: TaskHandle,
        statistics: TaskStatistics,
    ) -> None:
        """Take a task's part of a checkpoint."""
        if self._checkpoints is not None:
            self._checkpoints.on_acknowledged(task, checkpoint_id, handle, statistics)

    def on_declined(
        self, task: SubtaskId, checkpoint_id: int, error: BaseException
    ) -> None:
        """Hear that a task takes no part in a checkpoint."""
        if self._checkpoints is not None:
            self._checkpoints.on_declined(task, checkpoint_id, error)

    def on_cancelled(self) -> None:
        """Hear that a task ended itself, or was interrupted."""
        # Those that end because another one has failed do not end the job.
        if self.failure.error is None:
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
