"""The tasks of one loop: started together, cancelled together, outlasting interrupts."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Protocol

import anyio

from aiomailbox.errors import RejectedMailError
from aiomailbox.ids import SubtaskId
from aiomailbox.mailbox.mail import MAX_PRIORITY
from aiomailbox.records.events import CheckpointBarrier, StopMode
from aiomailbox.runtime.loop_watch import watching
from aiomailbox.runtime.views import TaskView, view_of
from aiomailbox.task.stream_task import StreamTask, TaskState


class TaskEvents(Protocol):
    """Is notified of the end of tasks, on their loop."""

    def on_task_ended(
        self, error: BaseException | None, task: str, subtask: SubtaskId
    ) -> None:
        """Be notified that a task ended: well, or with an error."""
        ...

    def on_cancelled(self, subtask: SubtaskId) -> None:
        """Be notified that a task ended itself, or was interrupted."""
        ...


class LocalTasks:
    """Tasks that live on one loop.

    Args:
        tasks: They have not started.
        events: Notified of their end; may be left out where there are none.
    """

    def __init__(
        self, tasks: Sequence[StreamTask], events: TaskEvents | None = None
    ) -> None:
        self._events = events
        self._places: dict[tuple[int, int], StreamTask] = {}
        self._unstarted: list[StreamTask] = []
        self.add(tasks)

    @property
    def tasks(self) -> list[StreamTask]:
        """The last attempt of each task."""
        return list(self._places.values())

    @property
    def subtasks(self) -> list[SubtaskId]:
        """Which tasks are here."""
        return [_subtask_of(task) for task in self._places.values()]

    @property
    def is_over(self) -> bool:
        """Whether none runs any more."""
        return all(task.lifecycle.is_terminal for task in self._places.values())

    def has_ended(self, tasks: Collection[SubtaskId]) -> bool:
        """Say whether none of those of the tasks runs that are here."""
        return all(task.lifecycle.is_terminal for task in self._here(tasks))

    def add(self, tasks: Sequence[StreamTask]) -> None:
        """Take tasks that have not started, in the place of attempts that have ended."""
        # By place: an attempt replaces the one before, which is no longer asked about.
        for task in tasks:
            self._places[_subtask_of(task)] = task
        self._unstarted += tasks

    def start(self, group: anyio.abc.TaskGroup) -> None:
        """Start what has not started; the owner of the group must outlast interrupts."""
        unstarted, self._unstarted = self._unstarted, []
        for task in unstarted:
            group.start_soon(self._supervise, task, name=task.name)

    def cancel(self, tasks: Collection[SubtaskId] | None = None) -> None:
        """Ask tasks to end; None for all of them."""
        for task in self.tasks if tasks is None else self._here(tasks):
            task.cancel()

    def on_interrupt(self) -> None:
        """End the tasks that were interrupted before their first step."""
        # anyio cancels what has not begun without running any of it, clean-up neither.
        for task in self._places.values():
            # A task whose coroutine never took a step would never reach its end.
            if task.runner is None and not task.lifecycle.is_terminal:
                task.release()

    def stop(self, mode: StopMode) -> None:
        """Let all sources read no more; those that have ended are left out."""
        for task in self._places.values():
            # Its mailbox is closed: it has read all there was, or is ending.
            with suppress(RejectedMailError):
                task.processor.main_executor.execute(
                    task.stop_source, mode, description="stop the source"
                )

    def deliver_splits(
        self, vertex: int, subtask_index: int, splits: list[Any], *, no_more: bool
    ) -> None:
        """Send splits to a reader as mail; one that has ended takes none."""
        task = self._places.get((vertex, subtask_index))
        if task is None:
            return
        with suppress(RejectedMailError):
            task.processor.main_executor.execute(
                task.add_splits, splits, no_more, description="add splits"
            )

    def trigger_checkpoint(
        self, tasks: Sequence[SubtaskId], barrier: CheckpointBarrier
    ) -> None:
        """Send a barrier as mail to those of the tasks that are here.

        It comes behind the splits that were sent before: these are on one side of it.
        """
        for task in self._here(tasks):
            with suppress(RejectedMailError):
                task.processor.main_executor.execute(
                    task.trigger_checkpoint, barrier, description="take a checkpoint"
                )

    def notify_checkpoint_complete(
        self, tasks: Sequence[SubtaskId], checkpoint_id: int
    ) -> None:
        """Tell those of the tasks that are here that a checkpoint is complete."""
        for task in self._here(tasks):
            with suppress(RejectedMailError):
                # Above everything: a task that yields in the middle of a record hears
                # of it as well.
                task.processor.executor(MAX_PRIORITY).execute(
                    task.notify_checkpoint_complete,
                    checkpoint_id,
                    description="a checkpoint is complete",
                )

    def notify_checkpoint_aborted(
        self, tasks: Sequence[SubtaskId], checkpoint_id: int, latest_completed_id: int
    ) -> None:
        """Tell those of the tasks that are here that a checkpoint was aborted."""
        for task in self._here(tasks):
            with suppress(RejectedMailError):
                task.processor.executor(MAX_PRIORITY).execute(
                    task.notify_checkpoint_aborted,
                    checkpoint_id,
                    latest_completed_id,
                    description="a checkpoint was aborted",
                )

    def _here(self, tasks: Collection[SubtaskId]) -> list[StreamTask]:
        found = (self._places.get(task) for task in tasks)
        return [task for task in found if task is not None]

    def views(self, *, with_stacks: bool) -> list[TaskView]:
        """Return the statistics of every task."""
        return [view_of(task, with_stack=with_stacks) for task in self._places.values()]

    async def _supervise(self, task: StreamTask) -> None:
        events = self._events
        assert events is not None, "tasks are started with a receiver of their events"
        failure: BaseException | None = None
        subtask = _subtask_of(task)
        try:
            with watching(task, task.environment.stall_threshold_s):
                await task.run()
        except asyncio.CancelledError:
            # Not by `cancel`: the loop itself is going down. It has cleaned up.
            events.on_cancelled(subtask)
        except BaseException as error:  # noqa: BLE001 -- the attempt keeps it
            failure = error
        else:
            # Before its end is reported: the attempt counts those that were cancelled.
            if task.lifecycle.state is TaskState.CANCELED:
                events.on_cancelled(subtask)
        events.on_task_ended(failure, task.name, subtask)


def _subtask_of(task: StreamTask) -> SubtaskId:
    task_id = task.environment.task_id
    return SubtaskId(task_id.vertex, task_id.subtask_index)
