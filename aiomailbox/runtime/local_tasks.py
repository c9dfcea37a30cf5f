"""The tasks of one loop: started together, cancelled together, outlasting interrupts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import anyio

from aiomailbox.errors import RejectedMailError
from aiomailbox.ids import SubtaskId
from aiomailbox.mailbox import MAX_PRIORITY
from aiomailbox.records import CheckpointBarrier, StopMode
from aiomailbox.runtime.views import TaskView, view_of
from aiomailbox.task import StreamTask, TaskState

__all__ = ["LocalTasks", "TaskEvents"]


class TaskEvents(Protocol):
    """Who is told how tasks end, on their loop."""

    def on_task_ended(
        self, error: BaseException | None, task: str, subtask: SubtaskId
    ) -> None:
        """Hear that a task ended: well, or with an error."""
        ...

    def on_cancelled(self) -> None:
        """Hear that a task ended itself, or was interrupted."""
        ...


class LocalTasks:
    """Tasks that live on one loop.

    Args:
        tasks: They have not started.
        events: Who is told how they end; may be left out where there are none.
    """

    def __init__(
        self, tasks: Sequence[StreamTask], events: TaskEvents | None = None
    ) -> None:
        self.tasks: list[StreamTask] = list(tasks)
        self._events = events
        self._places: dict[tuple[int, int], StreamTask] = {
            (task.environment.task_id.vertex, task.environment.subtask_index): task
            for task in self.tasks
        }

    @property
    def is_over(self) -> bool:
        """Whether none runs any more."""
        return all(task.lifecycle.is_terminal for task in self.tasks)

    def start(self, group: anyio.abc.TaskGroup) -> None:
        """Start all of them in the group; whoever owns it must outlast interrupts."""
        for task in self.tasks:
            group.start_soon(self._supervise, task, name=task.name)

    def cancel(self) -> None:
        """Ask all of them to end."""
        for task in self.tasks:
            task.cancel()

    def on_interrupt(self) -> None:
        """End the tasks that were interrupted before their first step."""
        for task in self.tasks:
            if task.runner is None and not task.lifecycle.is_terminal:
                task.release()

    def stop(self, mode: StopMode) -> None:
        """Let all sources read no more; those that have ended need not be told."""
        for task in self.tasks:
            with suppress(RejectedMailError):
                task.processor.main_executor.execute(
                    task.stop_source, mode, description="stop the source"
                )

    def deliver_splits(
        self, vertex: int, subtask_index: int, splits: list[Any], *, no_more: bool
    ) -> None:
        """Send splits to a reader as mail; one that has ended takes none."""
        task = self._places[vertex, subtask_index]
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

    def _here(self, tasks: Sequence[SubtaskId]) -> list[StreamTask]:
        found = (self._places.get((task.vertex, task.subtask_index)) for task in tasks)
        return [task for task in found if task is not None]

    def views(self, *, with_stacks: bool) -> list[TaskView]:
        """Return the statistics of every task."""
        return [view_of(task, with_stack=with_stacks) for task in self.tasks]

    async def _supervise(self, task: StreamTask) -> None:
        events = self._events
        assert events is not None, "tasks are started with somebody to tell"
        failure: BaseException | None = None
        try:
            await task.run()
        except asyncio.CancelledError:
            # Not by `cancel`: the loop itself is going down. It has cleaned up.
            events.on_cancelled()
        except BaseException as error:  # noqa: BLE001 -- whoever is told keeps it
            failure = error
        else:
            if task.lifecycle.state is TaskState.CANCELED:
                events.on_cancelled()
        task_id = task.environment.task_id
        subtask = SubtaskId(task_id.vertex, task_id.subtask_index)
        events.on_task_ended(failure, task.name, subtask)
