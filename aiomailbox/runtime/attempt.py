"""One run of a job's tasks: made, started, and outlasted to their end.

Theory of operation: tasks that hand records to each other fail together, as a region.
Where that is not all of the job, the others go on: the tasks of the region are ended, and
made and started anew under a higher number, when all of them have ended. What fails
outside of any task, or all of them, fails the attempt.

Concept:
    Flink, ``ExecutionGraph`` and ``RestartPipelinedRegionFailoverStrategy``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Protocol

import anyio

from aiomailbox.availability import Availability
from aiomailbox.checkpoint import TaskHandle
from aiomailbox.graph import FailoverRegions
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

    def on_failing(
        self, error: BaseException, tasks: Collection[SubtaskId] | None = None
    ) -> bool:
        """Hear that the attempt has failed, or only some of its tasks.

        Args:
            error: Why.
            tasks: Those that are to begin again, without those that are being ended for
                that; None if the attempt is over.

        Returns:
            Whether tasks begin again; if only some were to, and none may, the attempt
            is over.
        """
        ...

    async def prepare_tasks(self, tasks: frozenset[SubtaskId]) -> AttemptPlan | None:
        """Get ready what tasks need that begin again; None if they are not to."""
        ...

    def on_tasks_deployed(self, plan: AttemptPlan, *, are_last: bool) -> None:
        """Send splits: tasks are made that begin again.

        Args:
            plan: What they are.
            are_last: Whether all tasks run now that are to.
        """
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
        regions: Says which tasks fail together; None if all do.

    Attributes:
        plan: What it began with.
        failure: Why it failed, if it did.
    """

    def __init__(
        self,
        job_name: str,
        plan: AttemptPlan,
        host: Host,
        owner: AttemptOwner,
        checkpoints: CheckpointCoordinator | None = None,
        regions: FailoverRegions | None = None,
    ) -> None:
        self.plan = plan
        self.failure: FirstError = FirstError()
        self._job_name = job_name
        self._host = host
        self._owner = owner
        self._checkpoints = checkpoints
        self._regions = regions
        # Those that are ended, to begin again.
        self._failed: set[SubtaskId] = set()
        self._epochs: dict[SubtaskId, int] = {}
        self._changed = Availability()
        self._is_ending = False
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
            while not self._host.is_over or (self._failed and not self._is_ending):
                try:
                    await self._go_on(group)
                except asyncio.CancelledError:
                    self._owner.cancel()
                    self._host.on_interrupt()
        self._is_over = True

    def cancel(self) -> None:
        """Ask all tasks to end; any number of times, at any time."""
        self._is_ending = True
        self._host.cancel()
        self._changed.set_available()

    def stop(self, mode: StopMode) -> None:
        """Let the sources read no more; the tasks end when all that came is finished."""
        self._host.stop(mode)

    def fail(
        self,
        error: BaseException,
        task: str | None = None,
        *,
        tasks: Collection[SubtaskId] | None = None,
    ) -> None:
        """Fail: end all tasks, or the region of those that failed.

        A no-op once all have ended: a worker that dies when there is nothing left to do
        spoils no result.

        Args:
            error: Why; the first one counts.
            task: Which task had it, if one did.
            tasks: Those that failed; None if it is of no task.
        """
        if self._is_over:
            return
        note = None if task is None else f"in task {task!r} of job {self._job_name!r}"
        is_first = self.failure.error is None
        region = self._region_of(tasks) if is_first else None
        if region is not None and self._owner.on_failing(error, region - self._failed):
            self._end_region(region - self._failed)
            return
        self.failure.add(error, note)
        if is_first and region is None:
            self._owner.on_failing(error)
        self.cancel()

    @property
    def is_over(self) -> bool:
        """Whether all tasks have ended."""
        return self._is_over

    def on_task_ended(
        self, error: BaseException | None, task: str, subtask: SubtaskId
    ) -> None:
        """Hear that a task ended: well, or with an error."""
        if error is not None:
            self.fail(error, task, tasks=[subtask])
        elif (
            self._checkpoints is not None
            and self.failure.error is None
            and subtask not in self._failed
        ):
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

    def on_cancelled(self, subtask: SubtaskId) -> None:
        """Hear that a task ended itself, or was interrupted."""
        # Those that end because another one has failed do not end the job.
        if self.failure.error is None and subtask not in self._failed:
            self._owner.cancel()

    def on_failed(
        self, error: BaseException, tasks: Collection[SubtaskId] | None = None
    ) -> None:
        """Hear of a failure of a whole place: of tasks there, or of none."""
        self.fail(error, tasks=tasks)

    def on_changed(self) -> None:
        """Look again whether everything is over."""
        self._changed.set_available()

    def on_split_request(self, vertex: int, subtask_index: int) -> None:
        """Pass a reader's request for another split to its enumerator."""
        self._owner.on_split_request(vertex, subtask_index)

    def _region_of(
        self, tasks: Collection[SubtaskId] | None
    ) -> frozenset[SubtaskId] | None:
        """Return what has to begin again with some tasks; None if that is all."""
        regions = self._regions
        if not tasks or regions is None or self._is_ending:
            return None
        if self._checkpoints is not None and self._checkpoints.is_stopping:
            # Sources of other tasks have stopped for a savepoint that there will not be.
            return None
        found = frozenset().union(*(regions.to_restart(task) for task in tasks))
        return None if len(found) == regions.task_count else found

    def _end_region(self, region: frozenset[SubtaskId]) -> None:
        if not region:
            return
        self._failed |= region
        if self._checkpoints is not None:
            self._checkpoints.on_failover(region)
        self._host.cancel(region)
        self._changed.set_available()

    async def _go_on(self, group: anyio.abc.TaskGroup) -> None:
        """Begin again what has ended for that, or wait until something happens."""
        if self._failed and not self._is_ending and self._host.has_ended(self._failed):
            await self._begin_again(group)
            return
        await self._changed.wait()
        self._changed.reset()

    async def _begin_again(self, group: anyio.abc.TaskGroup) -> None:
        tasks = frozenset(self._failed)
        plan = await self._owner.prepare_tasks(tasks)
        if plan is None or self._is_ending:
            return
        self._failed -= tasks
        self._epochs |= dict.fromkeys(tasks, plan.number)
        try:
            self._host.deploy(replace(plan, epochs=self._all_epochs()), self)
        except BaseException as error:  # noqa: BLE001 -- the owner asks for it
            self.fail(error)
            return
        self._owner.on_tasks_deployed(plan, are_last=not self._failed)
        self._host.start(group)

    def _all_epochs(self) -> dict[SubtaskId, int]:
        regions = self._regions
        assert regions is not None, "without, no task begins again alone"
        first = dict.fromkeys(regions.tasks, self.plan.number)
        return first | self._epochs
