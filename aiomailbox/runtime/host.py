"""Where the tasks of a job run, attempt after attempt.

Theory of operation: a host has the tasks of the present attempt, or of several whose tasks
do not share data. It tells them commands, passes on what they report, and outlasts
interrupts: what it has made ready stays for the next attempt.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import anyio

from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.graph.regions import has_blocking
from aiomailbox.ids import SubtaskId
from aiomailbox.runtime.builder import AttemptPlan, TaskBuilder, Wiring
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.loop_watch import watching
from aiomailbox.runtime.services import JobServices
from aiomailbox.runtime.views import TaskView, view_of
from aiomailbox.scratch import ScratchDirectories
from aiomailbox.task.messages import Command, TaskCancelled, TaskEnded, TaskEvent
from aiomailbox.task.stream_task import StreamTask, TaskState


class AttemptEvents(Protocol):
    """The reports of a host to the attempt that it runs, on the job's loop."""

    def on_event(self, event: TaskEvent) -> None:
        """Take what a task reports."""

    def fail(
        self,
        error: BaseException,
        task: str | None = None,
        *,
        tasks: Collection[SubtaskId] | None = None,
    ) -> None:
        """Hear of a failure of a whole place: of tasks there, or of none."""

    def on_lost(self, error: BaseException, tasks: Collection[SubtaskId]) -> None:
        """Be notified that a place is gone, with its running tasks and what others left."""

    def on_changed(self) -> None:
        """Look again whether everything is over."""


class LocalTasks:
    """Tasks that live on one loop: started together, cancelled together."""

    def __init__(self) -> None:
        self._places: dict[SubtaskId, StreamTask] = {}
        self._unstarted: list[tuple[StreamTask, Callable[[TaskEvent], None]]] = []

    @property
    def tasks(self) -> list[StreamTask]:
        """The last attempt of each task."""
        return list(self._places.values())

    @property
    def is_over(self) -> bool:
        """Whether none runs any more."""
        return all(task.lifecycle.is_terminal for task in self._places.values())

    def has_ended(self, tasks: Collection[SubtaskId]) -> bool:
        """Say whether none of those of the tasks runs that are here."""
        return all(task.lifecycle.is_terminal for task in self._here(tasks))

    def add(
        self, tasks: Sequence[StreamTask], on_event: Callable[[TaskEvent], None]
    ) -> None:
        """Take tasks that have not started, in the place of attempts that have ended."""
        # By place: an attempt replaces the one before, which is no longer asked about.
        for task in tasks:
            self._places[task.subtask] = task
            self._unstarted.append((task, on_event))

    def clear(self) -> None:
        """Forget all tasks: they have ended, and a new attempt begins."""
        self._places.clear()
        self._unstarted.clear()

    def start(self, group: anyio.abc.TaskGroup) -> None:
        """Start what has not started; the owner of the group must outlast interrupts."""
        unstarted, self._unstarted = self._unstarted, []
        for task, on_event in unstarted:
            group.start_soon(_supervise, task, on_event, name=task.name)

    def cancel(self, tasks: Collection[SubtaskId] | None = None) -> None:
        """Ask tasks to end; None for all of them."""
        for task in self._here(tasks):
            task.cancel()

    def tell(self, tasks: Collection[SubtaskId] | None, command: Command) -> None:
        """Tell a command to those of the tasks that are here; None for all of them."""
        for task in self._here(tasks):
            task.tell(command)

    def are_unchanged_since(
        self, checkpoint_id: int, tasks: Collection[SubtaskId]
    ) -> bool:
        """Say whether tasks are as they were at a complete checkpoint."""
        return all(task.unchanged_id == checkpoint_id for task in self._here(tasks))

    def on_interrupt(self) -> None:
        """End the tasks that were interrupted before their first step."""
        # anyio cancels what has not begun without running any of it, clean-up neither.
        for task in self._places.values():
            # A task whose coroutine never took a step would never reach its end.
            if task.runner is None and not task.lifecycle.is_terminal:
                task.release()

    def views(self, *, with_stacks: bool) -> list[TaskView]:
        """Return the statistics of every task."""
        return [view_of(task, with_stack=with_stacks) for task in self._places.values()]

    def _here(self, tasks: Collection[SubtaskId] | None) -> list[StreamTask]:
        if tasks is None:
            return self.tasks
        found = (self._places.get(task) for task in tasks)
        return [task for task in found if task is not None]


async def _supervise(task: StreamTask, on_event: Callable[[TaskEvent], None]) -> None:
    failure: BaseException | None = None
    subtask = task.subtask
    try:
        with watching(task, task.environment.settings.stall_threshold_s):
            await task.run()
    except asyncio.CancelledError:
        # Not by `cancel`: the loop itself is going down. It has cleaned up.
        on_event(TaskCancelled(subtask))
    except BaseException as error:  # noqa: BLE001 -- the attempt keeps it
        failure = error
    else:
        # Before its end is reported: the attempt counts those that were cancelled.
        if task.lifecycle.state is TaskState.CANCELED:
            on_event(TaskCancelled(subtask))
    on_event(TaskEnded(subtask, task.name, failure))


class Host(LocalTasks, ABC):
    """Where the tasks of a job run: what it has made ready outlives an attempt.

    Some or all of them are on the job's own loop.

    Concept:
        Flink, the task managers of a job as its ``JobMaster`` sees them.

    Args:
        graph: What to run.
        config: Settings.
        services: What the tasks of this process share.
    """

    def __init__(
        self, graph: JobGraph, config: JobConfig, services: JobServices
    ) -> None:
        super().__init__()
        self._graph = graph
        self._config = config
        self._services = services

    @abstractmethod
    async def prepare(self) -> None:
        """Get ready what tasks need, before they are made; others may run.

        What it raises fails the job before the first one runs.
        """

    @abstractmethod
    def deploy(self, plan: AttemptPlan, events: AttemptEvents) -> None:
        """Make the tasks of a plan; from now on they take commands.

        Those that it does not name go on, if there are any.
        """

    @abstractmethod
    async def release(self) -> None:
        """Release everything, whatever happened before; leaves no place behind."""

    def _make_tasks(
        self,
        plan: AttemptPlan,
        events: AttemptEvents,
        *,
        wiring: Wiring | None = None,
        directory: str | None = None,
    ) -> None:
        """Make those tasks of a plan that belong to this process."""
        self._services.begin_attempt(plan.beginning)
        builder = TaskBuilder(
            self._graph,
            self._config,
            self._services,
            plan,
            events.on_event,
            wiring=wiring,
            directory=directory,
        )
        tasks = builder.build()
        if plan.is_first:
            self.clear()
        self.add(tasks, events.on_event)


class EmbeddedHost(Host):
    """Runs all tasks of a job on its own loop; arguments as `Host`."""

    def __init__(
        self, graph: JobGraph, config: JobConfig, services: JobServices
    ) -> None:
        super().__init__(graph, config, services)
        self._scratch = ScratchDirectories()
        self._is_prepared = False

    async def prepare(self) -> None:
        """Make a directory for state that is kept in files, once.

        Raises:
            OSError: If it cannot be made.
        """
        if self._is_prepared:
            return
        self._is_prepared = True
        services = self._services
        services.state_backend = services.state_backend.placed(self._scratch.below)

    def deploy(self, plan: AttemptPlan, events: AttemptEvents) -> None:
        """Make the tasks of a plan."""
        # Only blocking exchanges write records to files.
        directory = self._scratch.below("") if has_blocking(self._graph) else None
        self._make_tasks(plan, events, directory=directory)

    async def release(self) -> None:
        """Release what the tasks shared."""
        try:
            self._services.release()
        finally:
            self._scratch.remove()
