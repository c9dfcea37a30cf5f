"""What a task does with a checkpoint, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from aiomailbox.clock import SystemClock
from aiomailbox.ids import TaskId, VertexId
from aiomailbox.records.events import Alignment, CheckpointBarrier
from aiomailbox.task.checkpoints import PreparedResults, TaskCheckpoints
from aiomailbox.task.environment import TaskCheckpointing, TaskPlan
from aiomailbox.task.in_flight import TaskSnapshot
from aiomailbox.task.messages import Acknowledged, Declined, TaskEvent


class File(str):
    """Where a snapshot is."""

    __slots__ = ()
    size = 5_000


class Task:
    """Everything around a task's checkpoints, as one log."""

    def __init__(self, *, restored_id: int = -1) -> None:
        self.log: list[str] = []
        self.notified: list[int] = []
        self.capture_error: Exception | None = None
        self.write_error: Exception | None = None
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.tasks: list[asyncio.Task[None]] = []
        environment: Any = SimpleNamespace(
            task_id=TaskId(VertexId(0), 0, 0),
            report=self.report,
            job=SimpleNamespace(clock=SystemClock()),
            log=None,
        )
        outputs: Any = [self, self]
        chain: Any = self
        mailbox: Any = None
        self.steps = 0
        self.checkpoints = TaskCheckpoints(
            TaskCheckpointing(
                write=self.write,
                write_little=lambda checkpoint_id, snapshot: None,
                restored_id=restored_id,
            ),
            environment,
            TaskPlan([], writers=outputs),
            chain,
            self.capture,
            lambda: self.steps,
            PreparedResults(),
            mailbox,
            self.spawn,
        )

    async def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        self.log.append("prepare")

    def settle_snapshots(self) -> None:
        pass

    async def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.notified.append(checkpoint_id)

    async def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.log.append(f"aborted {checkpoint_id}")

    def broadcast_event(self, event: Any) -> None:
        priority = ", priority" if event.is_priority else ""
        self.log.append(f"{type(event).__name__} {event.checkpoint_id}{priority}")

    def capture(self) -> TaskSnapshot:
        self.log.append("capture")
        if self.capture_error is not None:
            raise self.capture_error
        return TaskSnapshot()

    def spawn(self, work: Coroutine[Any, Any, None]) -> Callable[[], object]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.append(task)
        return task.cancel

    async def write(
        self, checkpoint_id: int, snapshot: TaskSnapshot, location: str | None
    ) -> Any:
        await self.may_write.wait()
        if self.write_error is not None:
            raise self.write_error
        return File(f"file {checkpoint_id}")

    def report(self, event: TaskEvent) -> None:
        if isinstance(event, Acknowledged):
            self.log.append(f"acknowledge {event.checkpoint_id}: {event.handle}")
        elif isinstance(event, Declined):
            self.log.append(f"decline {event.checkpoint_id}: {event.error}")

    async def settle(self) -> None:
        await asyncio.wait(self.tasks)


def barrier(
    checkpoint_id: int, alignment: Alignment = Alignment.ALIGNED
) -> CheckpointBarrier:
    return CheckpointBarrier(checkpoint_id, 0, alignment)


async def test_the_barrier_leaves_between_what_precedes_it_and_the_state() -> None:
    """SEM-201."""
    task = Task()
    assert await task.checkpoints.perform(barrier(1))
    assert task.log == [
        "prepare",
        "CheckpointBarrier 1",
        "CheckpointBarrier 1",
        "capture",
    ]
    assert task.checkpoints._writing
    await task.settle()
    assert task.log[-1] == "acknowledge 1: file 1"
    assert not task.checkpoints._writing


async def test_an_unaligned_barrier_overtakes_what_is_queued() -> None:
    task = Task()
    await task.checkpoints.perform(barrier(1, Alignment.UNALIGNED))
    assert "CheckpointBarrier 1, priority" in task.log
    await task.settle()


async def test_a_checkpoint_that_was_aborted_before_it_came_is_cancelled_once() -> None:
    """SEM-196."""
    task = Task()
    pending = task.checkpoints.notify_aborted(42, 0)
    assert pending is not None
    await pending
    task.log.clear()
    assert not await task.checkpoints.perform(barrier(42))
    assert task.log == ["CancelCheckpoint 42"] * 2
    assert not task.checkpoints._aborted
    assert not task.checkpoints._writing


async def test_only_so_many_aborts_are_remembered() -> None:
    """SEM-197."""
    task = Task()
    for number in range(1, 299):
        pending = task.checkpoints.notify_aborted(number, 0)
        assert pending is not None
        await pending
        assert len(task.checkpoints._aborted) == min(128, number)
    assert await task.checkpoints.perform(barrier(300))
    assert not task.checkpoints._aborted
    await task.settle()


async def test_a_late_barrier_is_not_performed() -> None:
    """SEM-200."""
    task = Task()
    await task.checkpoints.perform(barrier(2))
    await task.settle()
    task.log.clear()
    assert not await task.checkpoints.perform(barrier(2))
    assert not await task.checkpoints.perform(barrier(1))
    assert task.log == []


async def test_a_task_that_does_not_run_lets_nobody_wait() -> None:
    """SEM-202."""
    task = Task()
    task.checkpoints.decline(3, RuntimeError("not running"))
    task.checkpoints.decline(3, RuntimeError("again"))
    assert task.log == [
        "CancelCheckpoint 3",
        "CancelCheckpoint 3",
        "decline 3: not running",
        "decline 3: again",
    ]


@pytest.mark.parametrize("where", ["capture", "write"])
async def test_a_snapshot_that_fails_is_declined(where: str) -> None:
    """MB-50, MB-53. Whichever half of it does."""
    task = Task()
    setattr(task, f"{where}_error", OSError("no space"))
    assert await task.checkpoints.perform(barrier(1)) == (where == "write")
    if task.tasks:
        await task.settle()
    assert task.log[-1] == "decline 1: no space"
    assert not task.checkpoints._writing


async def test_an_abort_cancels_what_is_being_written() -> None:
    """And no acknowledgement is sent."""
    task = Task()
    task.may_write.clear()
    await task.checkpoints.perform(barrier(1))
    await asyncio.sleep(0)
    pending = task.checkpoints.notify_aborted(1, 0)
    assert pending is not None
    await pending
    await task.settle()
    assert task.tasks[0].cancelled()
    assert task.log[-1] == "aborted 1"


async def test_closing_cancels_what_is_being_written() -> None:
    """MB-55."""
    task = Task()
    task.may_write.clear()
    await task.checkpoints.perform(barrier(1))
    task.checkpoints.close()
    await task.settle()
    assert task.log[-1] == "capture"


async def hear(task: Task, script: list[int | tuple[int, int]]) -> list[int]:
    for item in script:
        pending = (
            task.checkpoints.notify_complete(item)
            if isinstance(item, int)
            else task.checkpoints.notify_aborted(*item)
        )
        if pending is not None:
            await pending
    return task.notified


async def test_a_completion_is_told_once_also_by_an_abort() -> None:
    """SEM-198. MB-71."""
    assert await hear(Task(), [3, (5, 3), (10, 8), 8]) == [3, 8]


async def test_a_task_is_unchanged_from_a_complete_checkpoint_to_its_next_step() -> (
    None
):
    task = Task()
    # Nor was it restored from one that it has taken.
    assert task.checkpoints.unchanged_id == -1
    await task.checkpoints.perform(barrier(1))
    await task.settle()
    assert task.checkpoints.unchanged_id == -1
    await hear(task, [1])
    assert task.checkpoints.unchanged_id == 1
    task.steps += 1
    assert task.checkpoints.unchanged_id == -1
    await task.checkpoints.perform(barrier(2))
    assert task.checkpoints.unchanged_id == -1
    # Of one that is over in the meantime nothing is known but that.
    task.checkpoints.decline(3, RuntimeError("not now"))
    await hear(task, [2, 3])
    assert task.checkpoints.unchanged_id == -1


async def test_what_was_complete_before_the_start_is_not_told() -> None:
    """MB-72."""
    task = Task(restored_id=3)
    assert await hear(task, [2, (4, 3), 5, (7, 6)]) == [5, 6]
    assert [line for line in task.log if line.startswith("aborted")] == [
        "aborted 4",
        "aborted 7",
    ]
