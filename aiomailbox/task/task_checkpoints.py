"""A task's part in checkpoints: from the first barrier to the one that lets it end.

Theory of operation: a task whose data has ended goes on to take checkpoints until one
that began after that is complete: only then is what it has done committed. A savepoint
that stops the job ends it instead, and nothing else does.

Concept:
    Flink, ``StreamTask.triggerCheckpointAsync`` and FLIP-147.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from aiomailbox.availability import Availability, when_all_available
from aiomailbox.barriers.handler import CheckpointBarrierHandler
from aiomailbox.barriers.tracker import CheckpointBarrierTracker
from aiomailbox.clock import Clock
from aiomailbox.errors import CheckpointFailedError, IllegalStateError
from aiomailbox.exchange.input.gate import InputGate
from aiomailbox.exchange.writer import RecordWriter
from aiomailbox.ids import OperatorId
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.operators.core.contract import Pending, then
from aiomailbox.records.events import CheckpointBarrier
from aiomailbox.task.barriers import BarrierHandler, InputBarriers
from aiomailbox.task.channel_state import ChannelStates, TaskChannels
from aiomailbox.task.checkpointing import CheckpointedChain, SubtaskCheckpoints
from aiomailbox.task.environment import TaskCheckpointing
from aiomailbox.task.input_state import InputState
from aiomailbox.task.overtaking import OutputBarriers
from aiomailbox.task.snapshot import Prepared, TaskSnapshot

__all__ = ["PreparedResults", "TaskCheckpoints"]


class PreparedResults:
    """What the writers of a task's sinks have prepared, before it is committed.

    Each is kept until a checkpoint that holds it is complete: one that fails takes
    nothing along.
    """

    def __init__(self) -> None:
        self._new: dict[OperatorId, list[Any]] = {}
        self._captured: dict[OperatorId, list[Prepared]] = {}

    def add(self, operator_id: OperatorId, committables: list[Any]) -> None:
        """Take what a writer prepared."""
        self._new.setdefault(operator_id, []).extend(committables)

    def capture(self, checkpoint_id: int) -> dict[OperatorId, tuple[Prepared, ...]]:
        """Return all of it, the new part as prepared for a checkpoint."""
        for operator_id, values in self._new.items():
            captured = self._captured.setdefault(operator_id, [])
            captured += [(checkpoint_id, value) for value in values]
        self._new.clear()
        return {name: tuple(found) for name, found in self._captured.items() if found}

    def on_complete(self, checkpoint_id: int) -> None:
        """Forget what has been committed with a checkpoint."""
        for operator_id, captured in self._captured.items():
            self._captured[operator_id] = [
                one for one in captured if one[0] > checkpoint_id
            ]

    def take_rest(self) -> dict[OperatorId, list[Any]]:
        """Return what no checkpoint will hold, and forget it."""
        rest = {
            name: [value for _, value in captured]
            for name, captured in self._captured.items()
        }
        for name, values in self._new.items():
            rest.setdefault(name, []).extend(values)
        self._captured.clear()
        self._new.clear()
        return {name: values for name, values in rest.items() if values}


class TaskCheckpoints:
    """The checkpoints of one task; every method runs on its mailbox.

    Args:
        settings: How it takes them.
        chain: Its operators.
        capture: Returns the state of the operators and inputs.
        gates: What it reads; none for a source.
        writers: Its outputs.
        prepared: What its sinks prepared.
        mailbox: The mailbox, for timers.
        clock: For the statistics of alignments.
        spawn: Starts a coroutine that the task owns, and returns how to cancel it.
        channels: What it needs to keep data in flight; None if barriers never overtake.
        log: Gets warnings.

    Attributes:
        barriers: Takes the events of the gates; None for a source.
    """

    def __init__(
        self,
        settings: TaskCheckpointing,
        chain: CheckpointedChain,
        capture: Callable[[], TaskSnapshot],
        gates: Sequence[InputGate],
        writers: Sequence[RecordWriter],
        prepared: PreparedResults,
        mailbox: MailboxExecutor,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], Callable[[], object]],
        channels: TaskChannels | None = None,
        log: Any = None,
    ) -> None:
        self._settings = settings
        self._capture = capture
        self._writers = writers
        self._prepared = prepared
        self._barrier: CheckpointBarrier | None = None
        outputs: OutputBarriers | None = None
        inputs: InputState | None = None
        if channels is not None:
            states = ChannelStates()
            outputs = OutputBarriers(channels, writers, states, mailbox, clock, log)
            inputs = InputState(channels, gates, states)
        self._subtask = SubtaskCheckpoints(
            chain,
            self._capture_now,
            writers,
            settings.responder,
            clock,
            spawn,
            outputs=outputs,
            restored_id=settings.restored_id,
        )
        self.barriers: InputBarriers | None = None
        if gates:
            handler = _handler(settings, gates, clock)
            self.barriers = InputBarriers(handler, gates, self, mailbox, inputs)
        self._data_has_ended = False
        self._is_finished = False
        # The first checkpoint after the end of data, and the savepoint to end with.
        self._final_id: int | None = None
        self._savepoint_id: int | None = None
        self._is_final_complete = Availability()

    async def trigger(self, barrier: CheckpointBarrier) -> None:
        """Take the coordinator's barrier: nothing upstream sends one."""
        if self.barriers is None:
            await self.perform(barrier)
        else:
            await self.barriers.trigger(barrier)

    async def perform(self, barrier: CheckpointBarrier) -> bool:
        """Take a checkpoint now.

        Raises:
            IllegalStateError: If the task waits for another savepoint in order to end.
        """
        checkpoint_id = barrier.checkpoint_id
        if barrier.snapshot_type.is_synchronous:
            if self._savepoint_id not in {None, checkpoint_id}:
                raise IllegalStateError(
                    f"savepoint {checkpoint_id} is to end the job, and so is "
                    f"{self._savepoint_id} already"
                )
            self._savepoint_id = checkpoint_id
        # Only one that begins now holds all that the task has done (FLIP-147).
        if self._data_has_ended and self._final_id is None:
            self._final_id = checkpoint_id
        self._barrier = barrier
        met = None if self.barriers is None else self.barriers.statistics
        return await self._subtask.perform(barrier, met)

    def decline(self, checkpoint_id: int, error: BaseException) -> None:
        """Refuse a checkpoint."""
        self._subtask.decline(checkpoint_id, error)

    def notify_complete(self, checkpoint_id: int) -> Pending:
        """Be notified that a checkpoint is complete."""
        self._prepared.on_complete(checkpoint_id)
        pending = self._subtask.notify_complete(checkpoint_id)
        return then(pending, self._on_complete, checkpoint_id)

    def notify_aborted(self, checkpoint_id: int, latest_completed_id: int) -> Pending:
        """Be notified that a checkpoint will not complete, and which one did before.

        Raises:
            CheckpointFailedError: If it is the savepoint that was to end the job.
        """
        if latest_completed_id > 0:
            self._prepared.on_complete(latest_completed_id)
        pending = self._subtask.notify_aborted(checkpoint_id, latest_completed_id)
        return then(pending, self._on_aborted, checkpoint_id, latest_completed_id)

    def end_data(self, *, is_finished: bool) -> None:
        """Be notified that no more records come out of the task.

        Args:
            is_finished: Whether its operators have been finished.
        """
        self._data_has_ended = True
        self._is_finished = is_finished

    def when_may_end(self, callback: Callable[[], None]) -> None:
        """Call back once, when no checkpoint needs the task any more."""
        waited: list[Availability] = []
        if self._data_has_ended and self._settings.after_end:
            waited += [one.partition.all_data_processed for one in self._writers]
            waited.append(self._is_final_complete)
        elif self._savepoint_id is not None:
            waited.append(self._is_final_complete)
        when_all_available(waited, lambda: self._subtask.when_written(callback))

    def close(self) -> None:
        """Take no checkpoints any more."""
        if self.barriers is not None:
            self.barriers.close()
        self._subtask.close()

    def _capture_now(self) -> TaskSnapshot:
        barrier = self._barrier
        assert barrier is not None, "a barrier is performed"
        snapshot = self._capture()
        # A job that is stopped resumes from the savepoint, wherever it stood.
        ends = self._is_finished and not barrier.snapshot_type.is_synchronous
        return TaskSnapshot(
            snapshot.operators,
            snapshot.inputs,
            self._prepared.capture(barrier.checkpoint_id),
            ends,
        )

    def _on_complete(self, checkpoint_id: int) -> Pending:
        if self._savepoint_id is not None:
            is_final = checkpoint_id == self._savepoint_id
        else:
            is_final = self._final_id is not None and checkpoint_id >= self._final_id
        if is_final:
            self._is_final_complete.set_available()
        return None

    def _on_aborted(self, checkpoint_id: int, latest_completed_id: int) -> Pending:
        if checkpoint_id == self._savepoint_id:
            raise CheckpointFailedError(
                f"savepoint {checkpoint_id} was to end the job, and was aborted"
            )
        return self._on_complete(latest_completed_id)


def _handler(
    settings: TaskCheckpointing, gates: Sequence[InputGate], clock: Clock
) -> BarrierHandler:
    channels = sum(gate.channel_count for gate in gates)
    if not settings.is_exactly_once:
        return CheckpointBarrierTracker(channels, clock, after_end=settings.after_end)
    return CheckpointBarrierHandler(
        channels,
        clock,
        may_overtake=settings.may_overtake,
        after_end=settings.after_end,
    )
