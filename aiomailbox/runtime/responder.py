"""A task's snapshots: written by a thread, reported to the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aiomailbox.checkpoint.handles import TaskHandle
from aiomailbox.checkpoint.writer import CheckpointWriter
from aiomailbox.ids import SubtaskId, TaskId
from aiomailbox.records.events import CheckpointBarrier
from aiomailbox.task.in_flight import TaskSnapshot, TaskStatistics
from aiomailbox.threads import run_in_thread


class CheckpointEvents(Protocol):
    """Is notified of what tasks report of checkpoints, on their loop."""

    def on_task_running(self, task: SubtaskId) -> None:
        """Be notified that a task has been restored and runs."""
        ...

    def on_end_of_data(self, task: SubtaskId) -> None:
        """Be notified that no more records will come out of a task."""
        ...

    def on_acknowledged(
        self,
        task: SubtaskId,
        checkpoint_id: int,
        handle: TaskHandle,
        statistics: TaskStatistics,
    ) -> None:
        """Take a task's part of a checkpoint."""
        ...

    def on_declined(
        self, task: SubtaskId, checkpoint_id: int, error: BaseException
    ) -> None:
        """Be notified that a task takes no part in a checkpoint."""
        ...


class NoCheckpointEvents:
    """Wants to know nothing: for tasks of a job without checkpoints."""

    def on_task_running(self, task: SubtaskId) -> None:
        """Do nothing."""

    def on_end_of_data(self, task: SubtaskId) -> None:
        """Do nothing."""

    def on_acknowledged(
        self,
        task: SubtaskId,
        checkpoint_id: int,
        handle: TaskHandle,
        statistics: TaskStatistics,
    ) -> None:
        """Do nothing."""

    def on_declined(
        self, task: SubtaskId, checkpoint_id: int, error: BaseException
    ) -> None:
        """Do nothing."""


class TaskResponder:
    """Writes one task's snapshots and reports them.

    Args:
        task: The task's attempt.
        writer: Writes.
        events: Notified of what tasks report.
    """

    def __init__(
        self, task: TaskId, writer: CheckpointWriter, events: CheckpointEvents
    ) -> None:
        self._subtask = SubtaskId(task.vertex, task.subtask_index)
        self._epoch = task.attempt
        self._writer = writer
        self._events = events

    async def write(
        self, barrier: CheckpointBarrier, snapshot: TaskSnapshot
    ) -> TaskHandle:
        """Write a snapshot in a thread.

        Raises:
            OSError: If it cannot be written.
            StateError: If something in it cannot be kept as bytes.
        """
        location = None if barrier.location is None else barrier.location.decode()
        write: Callable[..., TaskHandle] = self._writer.write_task
        return await run_in_thread(
            write,
            barrier.checkpoint_id,
            self._subtask,
            self._epoch,
            snapshot,
            location,
        )

    def acknowledge(
        self, checkpoint_id: int, written: TaskHandle, statistics: TaskStatistics
    ) -> None:
        """Say that the task's part is complete."""
        self._events.on_acknowledged(self._subtask, checkpoint_id, written, statistics)

    def decline(self, checkpoint_id: int, error: BaseException) -> None:
        """Say that the task has no part in a checkpoint, and why."""
        self._events.on_declined(self._subtask, checkpoint_id, error)
