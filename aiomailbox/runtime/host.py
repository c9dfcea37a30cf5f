"""Where the tasks of a job run, attempt after attempt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol

import anyio

from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.graph.regions import has_blocking
from aiomailbox.ids import SubtaskId
from aiomailbox.records.events import CheckpointBarrier, StopMode
from aiomailbox.runtime.builder import TaskBuilder
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.coordinator import CheckpointTasks
from aiomailbox.runtime.exchange_plan import AttemptPlan
from aiomailbox.runtime.local_tasks import LocalTasks
from aiomailbox.runtime.responder import CheckpointEvents
from aiomailbox.runtime.services import JobServices
from aiomailbox.runtime.views import TaskView
from aiomailbox.scratch import ScratchDirectories
from aiomailbox.task.stream_task import StreamTask


class AttemptEvents(CheckpointEvents, Protocol):
    """What a host reports to the attempt that it runs, on the job's loop."""

    def on_task_ended(
        self, error: BaseException | None, task: str, subtask: SubtaskId
    ) -> None:
        """Be notified that a task ended: well, or with an error."""
        ...

    def on_cancelled(self, subtask: SubtaskId) -> None:
        """Be notified that a task ended itself, or was interrupted: so will the job."""
        ...

    def on_failed(
        self, error: BaseException, tasks: Collection[SubtaskId] | None = None
    ) -> None:
        """Hear of a failure of a whole place: of tasks there, or of none."""
        ...

    def on_lost(self, error: BaseException, tasks: Collection[SubtaskId]) -> None:
        """Be notified that a place is gone, with its running tasks and what others left."""
        ...

    def on_changed(self) -> None:
        """Look again whether everything is over."""
        ...

    def on_split_request(self, vertex: int, subtask_index: int) -> None:
        """Pass a reader's request for another split to its enumerator."""
        ...


class Host(CheckpointTasks, Protocol):
    """Where the tasks of a job run: what it has made ready outlives an attempt.

    Concept:
        Flink, the task managers of a job as its ``JobMaster`` sees them.
    """

    @property
    def tasks(self) -> list[StreamTask]:
        """The attempt's tasks on the job's own loop, those of sources first."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether no task runs any more."""
        ...

    def has_ended(self, tasks: Collection[SubtaskId]) -> bool:
        """Say whether none of some tasks runs any more."""
        ...

    async def prepare(self) -> None:
        """Get ready what tasks need, before they are made; others may run.

        What it raises fails the job before the first one runs.
        """
        ...

    def deploy(self, plan: AttemptPlan, events: AttemptEvents) -> None:
        """Make the tasks of a plan; from now on they take splits.

        Those that it does not name go on, if there are any.
        """
        ...

    def start(self, group: anyio.abc.TaskGroup) -> None:
        """Start the tasks that were made; those of this loop in the group."""
        ...

    def cancel(self, tasks: Collection[SubtaskId] | None = None) -> None:
        """Ask tasks to end, None for all; any number of times, at any time."""
        ...

    def stop(self, mode: StopMode) -> None:
        """Let all sources read no more."""
        ...

    def on_interrupt(self) -> None:
        """Be notified that the loop itself is going down, after `cancel`."""
        ...

    def deliver_splits(
        self, vertex: int, subtask_index: int, splits: list[Any], *, no_more: bool
    ) -> None:
        """Send splits to a reader; one that has ended takes none."""
        ...

    def views(self, *, with_stacks: bool) -> list[TaskView]:
        """Return the statistics of every task."""
        ...

    async def release(self) -> None:
        """Release everything, whatever happened before; leaves no place behind."""
        ...


class EmbeddedHost:
    """Runs all tasks of a job on its own loop.

    Args:
        graph: What to run.
        config: Settings.
        services: What the tasks share.
    """

    def __init__(
        self, graph: JobGraph, config: JobConfig, services: JobServices
    ) -> None:
        self._graph = graph
        self._config = config
        self._scratch = ScratchDirectories()
        self._is_prepared = False
        self._services = services
        self._local = LocalTasks([])

    @property
    def tasks(self) -> list[StreamTask]:
        """All tasks, once they are built."""
        return self._local.tasks

    @property
    def is_over(self) -> bool:
        """Whether no task runs any more."""
        return self._local.is_over

    def has_ended(self, tasks: Collection[SubtaskId]) -> bool:
        """Say whether none of some tasks runs any more."""
        return self._local.has_ended(tasks)

    async def prepare(self) -> None:
        """Make a directory for state that is kept in files, once.

        Raises:
            OSError: If it cannot be made.
        """
        if self._is_prepared:
            return
        self._is_prepared = True
        backend = self._config.state_backend.placed(self._scratch.below)
        self._config = replace(self._config, state_backend=backend)

    def deploy(self, plan: AttemptPlan, events: AttemptEvents) -> None:
        """Make the tasks of a plan."""
        self._services.begin_attempt(plan.beginning)
        builder = TaskBuilder(
            self._graph,
            self._config,
            self._services,
            plan,
            events,
            # Only blocking exchanges write records to files.
            directory=self._scratch.below("") if has_blocking(self._graph) else None,
        )
        tasks = builder.build()
        if plan.is_first:
            self._local = LocalTasks(tasks, events)
        else:
            self._local.add(tasks)

    def start(self, group: anyio.abc.TaskGroup) -> None:
        """Start the tasks that were made, in the group."""
        self._local.start(group)

    def cancel(self, tasks: Collection[SubtaskId] | None = None) -> None:
        """Ask tasks to end."""
        self._local.cancel(tasks)

    def stop(self, mode: StopMode) -> None:
        """Let all sources read no more."""
        self._local.stop(mode)

    def on_interrupt(self) -> None:
        """Do not wait for tasks that never began."""
        self._local.on_interrupt()

    def deliver_splits(
        self, vertex: int, subtask_index: int, splits: list[Any], *, no_more: bool
    ) -> None:
        """Send splits to a reader as mail."""
        self._local.deliver_splits(vertex, subtask_index, splits, no_more=no_more)

    def trigger_checkpoint(
        self, tasks: Sequence[SubtaskId], barrier: CheckpointBarrier
    ) -> None:
        """Send tasks a barrier."""
        self._local.trigger_checkpoint(tasks, barrier)

    def notify_checkpoint_complete(
        self, tasks: Sequence[SubtaskId], checkpoint_id: int
    ) -> None:
        """Tell tasks that a checkpoint is complete."""
        self._local.notify_checkpoint_complete(tasks, checkpoint_id)

    def notify_checkpoint_aborted(
        self, tasks: Sequence[SubtaskId], checkpoint_id: int, latest_completed_id: int
    ) -> None:
        """Tell tasks that a checkpoint will not complete."""
        self._local.notify_checkpoint_aborted(tasks, checkpoint_id, latest_completed_id)

    def views(self, *, with_stacks: bool) -> list[TaskView]:
        """Return the statistics of every task."""
        return self._local.views(with_stacks=with_stacks)

    async def release(self) -> None:
        """Release what the tasks shared."""
        try:
            self._services.release()
        finally:
            self._scratch.remove()
