"""Tasks of a worker that begin together, and what they tell the parent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

import anyio

from aiomailbox.availability import Availability
from aiomailbox.checkpoint.handles import TaskHandle
from aiomailbox.ids import SubtaskId
from aiomailbox.runtime.attempt_plan import AttemptPlan
from aiomailbox.runtime.local_tasks import LocalTasks
from aiomailbox.runtime.peers.errors_as_text import text_of_error
from aiomailbox.runtime.peers.messages import (
    Acknowledged,
    DataEnded,
    Declined,
    Ended,
    Failed,
    FromWorker,
    SplitRequest,
    Stopped,
    TaskEnded,
    TaskRunning,
)
from aiomailbox.task.in_flight import TaskStatistics
from aiomailbox.task.stream_task import StreamTask

__all__ = ["WorkerAttempt"]


class WorkerAttempt:
    """One attempt of some tasks at a worker; what they say is said under its number.

    Args:
        plan: Which attempt it is.
        send: Sends a message about an attempt to the parent.

    Attributes:
        number: The attempt's.
        tasks: The tasks that are here, once they are made.
    """

    def __init__(
        self, plan: AttemptPlan, send: Callable[[FromWorker, int], None]
    ) -> None:
        self.number: int = plan.number
        self.tasks: LocalTasks = LocalTasks([], self)
        self._send = send
        self._changed = Availability()
        self._cancelled: set[SubtaskId] = set()
        self._is_cancelled = False

    def add(self, tasks: list[StreamTask]) -> None:
        """Take the tasks: they have not started."""
        self.tasks.add(tasks)

    async def run(self, connect: Callable[[], Awaitable[None]]) -> None:
        """Run the tasks to their end, and say then that all is said.

        Args:
            connect: Connects this process with those that send data here.
        """
        tasks = self.tasks
        try:
            # Before any function of the user's runs, which may hold the loop.
            await connect()
            async with anyio.create_task_group() as group:
                tasks.start(group)
                while not tasks.is_over:
                    await self._changed.wait()
                    self._changed.reset()
        except Exception as error:  # noqa: BLE001 -- the parent gets it, whatever it is
            self._send(Failed(text_of_error(error)), self.number)
            # They have not started.
            tasks.cancel()
            tasks.on_interrupt()

    def end(self) -> None:
        """Say that nothing more comes of these tasks."""
        self._send(Ended(), self.number)

    def cancel(self, tasks: Collection[SubtaskId] | None = None) -> None:
        """Ask tasks to end; None for all."""
        if tasks is None:
            self._is_cancelled = True
        else:
            self._cancelled.update(tasks)
        self.tasks.cancel(tasks)

    @property
    def is_cancelled(self) -> bool:
        """Whether nothing of it is wanted any more."""
        return self._is_cancelled or all(
            task.lifecycle.is_cancelling or task.lifecycle.is_terminal
            for task in self.tasks.tasks
        )

    def on_task_ended(
        self, error: BaseException | None, task: str, subtask: SubtaskId
    ) -> None:
        """Tell the parent that a task ended."""
        text = None if error is None else text_of_error(error)
        self._send(TaskEnded(task, subtask, text), self.number)
        self._changed.set_available()

    def on_cancelled(self, subtask: SubtaskId) -> None:
        """Tell the parent that a task ended itself; it has said so if it cancelled."""
        # Only what the parent doesn't know: it has asked for the other ends itself.
        if not self._is_cancelled and subtask not in self._cancelled:
            self._send(Stopped(subtask), self.number)

    def on_task_running(self, task: SubtaskId) -> None:
        """Tell the parent that a task has been restored and runs."""
        self._send(TaskRunning(task), self.number)

    def on_end_of_data(self, task: SubtaskId) -> None:
        """Tell the parent that no more records will come out of a task."""
        self._send(DataEnded(task), self.number)

    def on_acknowledged(
        self,
        task: SubtaskId,
        checkpoint_id: int,
        handle: TaskHandle,
        statistics: TaskStatistics,
    ) -> None:
        """Give the parent a task's part of a checkpoint."""
        self._send(Acknowledged(task, checkpoint_id, handle, statistics), self.number)

    def on_declined(
        self, task: SubtaskId, checkpoint_id: int, error: BaseException
    ) -> None:
        """Tell the parent that a task takes no part in a checkpoint."""
        self._send(Declined(task, checkpoint_id, text_of_error(error)), self.number)

    def on_split_request(self, vertex: int, subtask_index: int) -> None:
        """Ask the parent for another split."""
        self._send(SplitRequest(vertex, subtask_index), self.number)
