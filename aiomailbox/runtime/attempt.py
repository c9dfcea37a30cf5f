"""One run of a job's tasks: made, started, and outlasted to their end.

Theory of operation: tasks that hand records to each other fail together, as a region.
Where that is not all of the job, the others go on: the tasks of the region are ended, and
made and started anew under a higher number, when all of them have ended. What fails
outside of any task, or all of them, fails the attempt. A region that reads what others keep
in files begins when these have finished, and again without them as long as the files are
there.

Concept:
    Flink, ``ExecutionGraph`` and ``RestartPipelinedRegionFailoverStrategy``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Final, Protocol

import anyio

from aiomailbox.availability import Availability
from aiomailbox.errors import (
    CorruptStreamError,
    PartitionNotFoundError,
    PartitionStorageError,
    RemoteTaskError,
)
from aiomailbox.graph.regions import FailoverRegions
from aiomailbox.ids import SubtaskId
from aiomailbox.records.events import StopMode
from aiomailbox.runtime.builder import AttemptPlan
from aiomailbox.runtime.coordinator import CheckpointCoordinator
from aiomailbox.runtime.failures import FirstError
from aiomailbox.runtime.host import Host
from aiomailbox.task.messages import (
    SplitRequest,
    StopSource,
    TaskCancelled,
    TaskEnded,
    TaskEvent,
)


class AttemptOwner(Protocol):
    """Is notified of what becomes of an attempt, on its loop."""

    def on_deployed(self) -> None:
        """Send splits: the tasks are made, and take them from now on."""

    def on_failing(
        self, error: BaseException, tasks: Collection[SubtaskId] | None = None
    ) -> bool:
        """Be notified that the attempt has failed, or only some of its tasks.

        Returns:
            Whether tasks begin again; if only some were to, and none may, the attempt
            is over.
        """

    def can_restart_alone(self, tasks: Collection[SubtaskId]) -> bool:
        """Say whether tasks can begin again while the sources of the others go on."""

    async def prepare_tasks(
        self, tasks: frozenset[SubtaskId], *, is_restart: bool
    ) -> AttemptPlan | None:
        """Get ready what tasks need that begin; None if they are not to."""

    def on_tasks_deployed(self, plan: AttemptPlan, *, is_restart: bool) -> None:
        """Send splits: tasks are made that begin, while others run or have run."""

    def cancel(self) -> None:
        """End the job: a task ended itself, or the loop goes down."""

    def on_split_request(self, task: SubtaskId) -> None:
        """Pass a reader's request for another split to its enumerator."""


class Attempt:
    """The tasks of a job from their making to their end.

    Args:
        job_name: The job's name, for errors.
        plan: What is run.
        host: Where the tasks run.
        owner: Notified of what becomes of it.
        checkpoints: Takes the checkpoints; None for a job without.
        regions: Says which tasks fail together; None if all do.

    Attributes:
        is_over: Whether all tasks have ended.
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
        # Those that were made, those of them that have finished, and of these the ones
        # whose files are gone.
        self._epochs: dict[SubtaskId, int] = {}
        self._finished: set[SubtaskId] = set()
        self._lost: set[SubtaskId] = set()
        self._changed = Availability()
        self._is_ending = False
        self.is_over: bool = False

    async def run(self) -> None:
        """Run all tasks to their end, however that comes.

        A task group that is interrupted would cut short the clean-up of its tasks, so
        it never sees an interrupt: they are cancelled as by `cancel`.
        """
        try:
            self._host.deploy(self._first_plan(), self)
        except BaseException as error:  # noqa: BLE001 -- the owner asks for it
            # As if a task had failed: the clean-up is the same.
            self.fail(error)
            return
        self._owner.on_deployed()
        async with anyio.create_task_group() as group:
            self._host.start(group)
            # Also when all have ended: a region may have to begin again.
            while not self._host.is_over or self._has_to_begin:
                try:
                    await self._go_on(group)
                except asyncio.CancelledError:
                    # The tasks clean up in this group: it is left only when they have
                    # ended.
                    self._owner.cancel()
                    self._host.on_interrupt()
        self.is_over = True

    def cancel(self) -> None:
        """Ask all tasks to end; any number of times, at any time."""
        self._is_ending = True
        self._host.cancel()
        self._changed.set_available()

    def stop(self, mode: StopMode) -> None:
        """Let the sources read no more; the tasks end when all that came is finished."""
        self._host.tell(None, StopSource(mode))

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
        """
        if self.is_over:
            return
        note = None if task is None else f"in task {task!r} of job {self._job_name!r}"
        is_first = self.failure.error is None
        # The tasks that fail now read what is gone: it has to be written again first.
        if tasks is not None and is_about_kept_records(error):
            self._lose_what_is_read_by(tasks)
        # The first failure only: what fails while all tasks end is its echo.
        region = self._region_of(tasks) if is_first else None
        if region is not None and self._owner.on_failing(error, region - self._failed):
            self._end_region(region - self._failed)
            return
        self.failure.add(error, note)
        if is_first and region is None:
            self._owner.on_failing(error)
        self.cancel()

    def on_event(self, event: TaskEvent) -> None:
        """Take what a task reports."""
        task = event.task
        match event:
            case SplitRequest():
                self._owner.on_split_request(task)
            # Those that end because another one has failed do not end the job.
            case TaskCancelled():
                if self.failure.error is None and task not in self._failed:
                    self._owner.cancel()
            case TaskEnded(name=name, error=error):
                if error is not None:
                    self.fail(error, name, tasks=[task])
                elif self.failure.error is None and task not in self._failed:
                    self._finished.add(task)
                    if self._checkpoints is not None:
                        self._checkpoints.on_task_finished(task)
                self._changed.set_available()
            case _:
                if self._checkpoints is not None:
                    self._checkpoints.on_event(event)

    def on_lost(self, error: BaseException, tasks: Collection[SubtaskId]) -> None:
        """Be notified that a place is gone, with its running tasks and what others left."""
        # Kept files are lost with the place, also those of tasks that had finished
        # there.
        regions, finished = self._regions, self._finished
        self._lost.update(finished.intersection(tasks))
        failed = [
            task
            for task in tasks
            if task not in finished
            or (regions is not None and regions.has_readers(task, finished))
        ]
        # Where nothing ran that is still needed, nothing has failed.
        if failed:
            self.fail(error, tasks=failed)

    def on_changed(self) -> None:
        """Look again whether everything is over."""
        self._changed.set_available()

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
        kept = self._finished - self._lost
        found = frozenset[SubtaskId]().union(
            *(regions.to_restart(task, kept.__contains__) for task in tasks)
        )
        # All tasks: then it is simpler to begin a new attempt, with new pools and new
        # connections.
        is_whole = len(found) == regions.task_count
        return None if is_whole or not self._owner.can_restart_alone(found) else found

    def _end_region(self, region: frozenset[SubtaskId]) -> None:
        if not region:
            return
        self._failed |= region
        if self._checkpoints is not None:
            self._checkpoints.on_failover(region)
        self._host.cancel(region)
        self._changed.set_available()

    def _lose_what_is_read_by(self, tasks: Collection[SubtaskId]) -> None:
        """Have what some tasks read written again: they could not read it."""
        if self._regions is not None:
            for task in tasks:
                self._lost.update(self._regions.kept_for(task))

    def _first_plan(self) -> AttemptPlan:
        """Return the plan of the tasks that wait for no others."""
        plan, regions = self.plan, self._regions
        if regions is None:
            return plan
        first = regions.can_begin(())
        self._epochs = dict.fromkeys(first, plan.number)
        return plan if len(first) == regions.task_count else replace(plan, tasks=first)

    @property
    def _can_begin(self) -> frozenset[SubtaskId]:
        """The tasks that can begin now and have not."""
        regions = self._regions
        if regions is None or len(self._epochs) == regions.task_count:
            return frozenset()
        return regions.can_begin(self._finished).difference(self._epochs)

    @property
    def _has_to_begin(self) -> bool:
        return not self._is_ending and bool(self._failed or self._can_begin)

    async def _go_on(self, group: anyio.abc.TaskGroup) -> None:
        """Let tasks begin whose time it is, or wait until something happens."""
        if self._failed and not self._is_ending and self._host.has_ended(self._failed):
            await self._begin_again(group)
        elif not self._is_ending and not self._failed and self._can_begin:
            await self._begin(self._can_begin, group, is_restart=False)
        else:
            await self._changed.wait()
            self._changed.reset()

    async def _begin_again(self, group: anyio.abc.TaskGroup) -> None:
        """Let those of the failed tasks begin whose input is there; others come later."""
        regions = self._regions
        assert regions is not None, "without, no task begins again alone"
        failed = frozenset(self._failed)
        # Those whose producers have to write their input again begin after them.
        ready = failed & regions.can_begin(self._finished - failed)
        if await self._begin(ready, group, is_restart=True):
            for task in failed - ready:
                self._epochs.pop(task, None)

    async def _begin(
        self,
        tasks: frozenset[SubtaskId],
        group: anyio.abc.TaskGroup,
        *,
        is_restart: bool,
    ) -> bool:
        before = frozenset(self._failed)
        plan = await self._owner.prepare_tasks(tasks, is_restart=is_restart)
        # More have failed meanwhile: what was read for fewer of them is not what they
        # need.
        if plan is None or self._is_ending or (self._failed - before) & tasks:
            return False
        self._failed -= before
        self._finished -= before
        self._lost -= before
        self._epochs |= dict.fromkeys(tasks, plan.number)
        try:
            self._host.deploy(replace(plan, epochs=dict(self._epochs)), self)
        except BaseException as error:  # noqa: BLE001 -- the owner asks for it
            self.fail(error)
            return False
        self._owner.on_tasks_deployed(plan, is_restart=is_restart)
        self._host.start(group)
        return True


def is_about_kept_records(error: BaseException) -> bool:
    """Say whether records of a blocking exchange could not be read, here or by a remote task."""
    kind = error.kind if isinstance(error, RemoteTaskError) else type(error).__name__
    return kind in _LOST


_LOST: Final = frozenset(
    one.__name__
    for one in (PartitionNotFoundError, PartitionStorageError, CorruptStreamError)
)
