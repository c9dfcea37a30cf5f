"""What a task does with a checkpoint: barrier on, state captured, result said.

Theory of operation: `SubtaskCheckpoints.perform` runs on the mailbox, so that no record,
timer or mail comes between its steps: operators emit what belongs before the barrier,
the barrier leaves, and only then is the state captured, on the loop. It is written off
the loop, by a coroutine of its own that says at the end how it went: with the data in
flight of an unaligned checkpoint, once that is complete. Numbers only grow; one that is late, or was aborted before it came, is not performed.

Concept:
    Flink, ``SubtaskCheckpointCoordinatorImpl``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from aiomailbox.barriers.statistics import AlignmentStatistics
from aiomailbox.clock import Clock
from aiomailbox.exchange.writer import RecordWriter
from aiomailbox.operators.core.contract import Pending
from aiomailbox.records.events import CancelCheckpoint, CheckpointBarrier
from aiomailbox.task.overtaking import OutputBarriers
from aiomailbox.task.snapshot import TaskSnapshot

__all__ = [
    "CheckpointResponder",
    "CheckpointedChain",
    "SubtaskCheckpoints",
    "TaskStatistics",
]

# Flink's number. Aborts of checkpoints that never come here must not pile up.
_ABORTED_MAX: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatistics:
    """What one checkpoint took at one task.

    Attributes:
        start_delay_ms: From the trigger at the coordinator to the first barrier.
        alignment_ms: From the first barrier to the last.
        alignment_bytes: What was read meanwhile.
        sync_ms: How long the task stood still to capture its state.
        async_ms: How long it took to write that.

    Concept:
        Flink, ``CheckpointMetrics``.
    """

    start_delay_ms: float = 0.0
    alignment_ms: float = 0.0
    alignment_bytes: int = 0
    sync_ms: float = 0.0
    async_ms: float = 0.0


class CheckpointedChain(Protocol):
    """What a checkpoint needs of a task's operators."""

    async def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Let the operators emit what must precede a barrier, head first."""
        ...

    async def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Notify the operators, tail first; all are notified, the first error is raised."""
        ...

    async def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Notify the operators, tail first; all are notified, the first error is raised."""
        ...


class CheckpointResponder(Protocol):
    """Keeps a task's snapshots, and notifies the coordinator."""

    async def write(self, barrier: CheckpointBarrier, snapshot: TaskSnapshot) -> Any:
        """Write a snapshot off the loop; return what finds it again."""
        ...

    def acknowledge(
        self, checkpoint_id: int, written: Any, statistics: TaskStatistics
    ) -> None:
        """Say that the task's part is complete, and what it took."""
        ...

    def decline(self, checkpoint_id: int, error: BaseException) -> None:
        """Say that the task has no part in a checkpoint, and why."""
        ...


class SubtaskCheckpoints:
    """The checkpoints of one task; every method runs on its mailbox.

    Args:
        chain: The task's operators.
        capture: Returns their state as it is now.
        writers: The task's outputs.
        responder: Keeps the snapshots.
        clock: Measures what they take.
        spawn: Starts a coroutine that the task owns, and returns how to cancel it.
        outputs: Sends barriers where they may overtake; None where none ever does.
        aborted_max: How many aborted checkpoints that have not come are remembered.

    Attributes:
        last_id: The newest checkpoint that came here, -1 before the first.
        completed_id: The newest one that is known to be complete, -1 before the first.
    """

    def __init__(
        self,
        chain: CheckpointedChain,
        capture: Callable[[], TaskSnapshot],
        writers: Sequence[RecordWriter],
        responder: CheckpointResponder,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], Callable[[], object]],
        *,
        outputs: OutputBarriers | None = None,
        restored_id: int = -1,
        aborted_max: int = _ABORTED_MAX,
    ) -> None:
        self.last_id: int = restored_id
        self.completed_id: int = restored_id
        self._chain = chain
        self._capture = capture
        self._writers = writers
        self._outputs = outputs
        self._responder = responder
        self._clock = clock
        self._spawn = spawn
        self._aborted_max = aborted_max
        # In the order they were aborted; none is at or before `last_id`.
        self._aborted: dict[int, None] = {}
        self._idle: list[Callable[[], None]] = []
        self._writing: dict[int, Callable[[], object]] = {}

    @property
    def aborted_ids(self) -> list[int]:
        """The checkpoints that were aborted and have not come."""
        return list(self._aborted)

    @property
    def is_writing(self) -> bool:
        """Whether snapshots are on their way to where they are kept."""
        return bool(self._writing)

    async def perform(
        self, barrier: CheckpointBarrier, alignment: AlignmentStatistics | None = None
    ) -> bool:
        """Take a checkpoint now.

        Args:
            barrier: What the task is to do.
            alignment: How its barriers met, if there were several.

        Returns:
            Whether a snapshot was taken; False for one that is late or was aborted.

        Raises whatever an operator raises before the barrier has left; the task cannot
        go on then. A snapshot that fails is declined.
        """
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id <= self.last_id:
            return False
        self.last_id = checkpoint_id
        was_aborted = checkpoint_id in self._aborted
        self._forget_aborted()
        if was_aborted:
            # A reader of this output may have the barriers of others already.
            self._broadcast(CancelCheckpoint(checkpoint_id))
            return False
        # What operators emit here belongs to this checkpoint: it leaves before the barrier.
        await self._chain.prepare_snapshot_pre_barrier(checkpoint_id)
        # No await from the barrier to the capture: no record comes between the two. The
        # barrier is first, so that consumers need not wait for the capture.
        if self._outputs is None:
            self._broadcast(barrier)
        else:
            self._outputs.broadcast(barrier.with_wish_restored())
        started_s = self._clock.monotonic()
        try:
            snapshot = self._capture()
        except Exception as error:  # noqa: BLE001 -- the coordinator decides
            self._drop_in_flight(checkpoint_id)
            self._responder.decline(checkpoint_id, error)
            return False
        sync_ms = (self._clock.monotonic() - started_s) * 1000
        statistics = _statistics(barrier, alignment, sync_ms)
        # The coroutine may be done before its canceller is known here.
        self._writing[checkpoint_id] = _nothing
        cancel = self._spawn(self._write(barrier, snapshot, statistics))
        if checkpoint_id in self._writing:
            self._writing[checkpoint_id] = cancel
        return True

    def decline(self, checkpoint_id: int, error: BaseException) -> None:
        """Refuse a checkpoint, so that no task downstream waits for its barrier."""
        if checkpoint_id > self.last_id:
            self.last_id = checkpoint_id
            self._forget_aborted()
            self._broadcast(CancelCheckpoint(checkpoint_id))
        # Its data in flight will not be complete.
        cancel = self._end_writing(checkpoint_id)
        if cancel is not None:
            cancel()
        self._drop_in_flight(checkpoint_id)
        self._responder.decline(checkpoint_id, error)

    def notify_complete(self, checkpoint_id: int) -> Pending:
        """Be notified that a checkpoint is complete; one older than known is ignored."""
        if checkpoint_id <= self.completed_id:
            return None
        self.completed_id = checkpoint_id
        return self._chain.notify_checkpoint_complete(checkpoint_id)

    def notify_aborted(self, checkpoint_id: int, latest_completed_id: int) -> Pending:
        """Be notified that a checkpoint will not complete, and which one did before."""
        if checkpoint_id <= self.completed_id:
            return None
        cancel = self._end_writing(checkpoint_id)
        if cancel is not None:
            cancel()
            self._drop_in_flight(checkpoint_id)
        elif checkpoint_id > self.last_id:
            # Others need no mark: what is not newer than `last_id` is refused by its
            # number.
            self._aborted[checkpoint_id] = None
            while len(self._aborted) > self._aborted_max:
                del self._aborted[next(iter(self._aborted))]
        return self._aborted_after(checkpoint_id, latest_completed_id)

    def when_written(self, callback: Callable[[], None]) -> None:
        """Call back once, when no snapshot is on its way any more."""
        if self._writing:
            self._idle.append(callback)
        else:
            callback()

    def close(self) -> None:
        """Cancel what is being written."""
        for cancel in self._writing.values():
            cancel()
        self._writing.clear()
        if self._outputs is not None:
            self._outputs.close()

    async def _aborted_after(self, checkpoint_id: int, latest_id: int) -> None:
        # The notification of that one may have been lost; an abort makes up for it, as
        # in Flink.
        completed = self.notify_complete(latest_id) if latest_id > 0 else None
        if completed is not None:
            await completed
        if checkpoint_id > self.completed_id:
            await self._chain.notify_checkpoint_aborted(checkpoint_id)

    async def _write(
        self,
        barrier: CheckpointBarrier,
        snapshot: TaskSnapshot,
        statistics: TaskStatistics,
    ) -> None:
        checkpoint_id = barrier.checkpoint_id
        started_s = self._clock.monotonic()
        try:
            if self._outputs is not None:
                in_flight = await self._outputs.collected(checkpoint_id)
                snapshot = replace(snapshot, channel_state=in_flight)
            written = await self._responder.write(barrier, snapshot)
        except asyncio.CancelledError:
            # The canceller has taken it out of `_writing` already.
            raise
        except Exception as error:  # noqa: BLE001 -- the coordinator decides
            if self._end_writing(checkpoint_id) is not None:
                self._responder.decline(checkpoint_id, error)
            return
        # One that was aborted in the meantime is not acknowledged.
        if self._end_writing(checkpoint_id) is not None:
            async_ms = (self._clock.monotonic() - started_s) * 1000
            statistics = replace(statistics, async_ms=async_ms)
            self._responder.acknowledge(checkpoint_id, written, statistics)

    def _end_writing(self, checkpoint_id: int) -> Callable[[], object] | None:
        cancel = self._writing.pop(checkpoint_id, None)
        if not self._writing:
            idle, self._idle = self._idle, []
            for callback in idle:
                callback()
        return cancel

    def _broadcast(self, event: CheckpointBarrier | CancelCheckpoint) -> None:
        for writer in self._writers:
            writer.broadcast_event(event)

    def _drop_in_flight(self, checkpoint_id: int) -> None:
        if self._outputs is not None:
            self._outputs.abort(checkpoint_id)

    def _forget_aborted(self) -> None:
        for checkpoint_id in [one for one in self._aborted if one <= self.last_id]:
            del self._aborted[checkpoint_id]


def _statistics(
    barrier: CheckpointBarrier, alignment: AlignmentStatistics | None, sync_ms: float
) -> TaskStatistics:
    if alignment is None or alignment.checkpoint_id != barrier.checkpoint_id:
        return TaskStatistics(sync_ms=sync_ms)
    return TaskStatistics(
        start_delay_ms=alignment.start_delay_ms,
        alignment_ms=alignment.duration_ms or 0.0,
        alignment_bytes=alignment.processed_bytes or 0,
        sync_ms=sync_ms,
    )


def _nothing() -> None:
    """Nothing can be cancelled yet."""
