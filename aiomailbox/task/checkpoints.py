"""A task's part in checkpoints: from the first barrier to the one that lets it end.

Theory of operation: each event of the gates goes to a handler, which decides, and what it
decides is done at once, in its order, before anything else is read: in the default action
for what a gate has brought, in mail for triggers and timers. A checkpoint is taken on the
mailbox, so that no record, timer or mail comes between its steps: operators emit what
belongs before the barrier, the barrier leaves, and only then is the state captured, on the
loop. It is written off the loop, by a coroutine of its own that reports at the end how it
went: with the data in flight of an unaligned checkpoint, once that is complete. Numbers
only grow; one that is late, or was aborted before it came, is not taken.

A task whose data has ended goes on to take checkpoints until one that began after that is
complete: only then is what it has done committed. A savepoint that stops the job ends it
instead, and nothing else does.

Concept:
    Flink, ``CheckpointedInputGate``, ``SubtaskCheckpointCoordinatorImpl``,
    ``StreamTask.triggerCheckpointAsync`` and FLIP-147.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from aiomailbox.availability import Availability, when_all_available
from aiomailbox.barriers.handler import (
    AlignmentStatistics,
    CheckpointBarrierHandler,
    CheckpointBarrierTracker,
)
from aiomailbox.barriers.machine import (
    Abort,
    Action,
    CancelAlignmentTimer,
    ChannelInfo,
    Prioritize,
    ResumeChannel,
    SetAlignmentTimer,
    StartPersisting,
    StopPersisting,
    TakeSnapshot,
)
from aiomailbox.clock import Clock
from aiomailbox.errors import (
    CheckpointDeclinedError,
    CheckpointFailedError,
    IllegalStateError,
)
from aiomailbox.exchange.core.contract import ObjectBuffer
from aiomailbox.exchange.gate import InputGate
from aiomailbox.ids import OperatorId, SubtaskId
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.operators.core.operator import Pending, finished, then
from aiomailbox.records.events import (
    CancelCheckpoint,
    CheckpointBarrier,
    EndOfPartition,
    EventAnnouncement,
    RuntimeEvent,
)
from aiomailbox.task.chain import OperatorChain
from aiomailbox.task.environment import TaskCheckpointing, TaskEnvironment, TaskPlan
from aiomailbox.task.in_flight import (
    BarrierTimer,
    ChannelStates,
    InputState,
    OutputBarriers,
    Prepared,
    Rest,
    TaskSnapshot,
    send_urgent,
)
from aiomailbox.task.messages import (
    LITTLE_BYTES,
    Acknowledged,
    Declined,
    TaskStatistics,
)

BarrierHandler: TypeAlias = CheckpointBarrierHandler | CheckpointBarrierTracker
# Flink's number. Aborts of checkpoints that never come here must not pile up.
_ABORTED_MAX: Final = 128


class PreparedResults:
    """Committables that the writers of a task's sinks have prepared.

    It keeps each until a checkpoint that holds it is complete. A checkpoint that fails
    loses none.
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
        environment: What the task was given.
        plan: What it reads and writes, and its channels if barriers may overtake there.
        chain: Its operators.
        capture: Returns the state of the operators and inputs.
        steps: Says how much the task has done: where that stays, so does its state.
        prepared: What its sinks prepared.
        mailbox: The mailbox, for timers.
        spawn: Starts a coroutine that the task owns, and returns how to cancel it.

    Attributes:
        last_id: The newest checkpoint that came here, -1 before the first.
        completed_id: The newest one that is known to be complete, -1 before the first.
    """

    def __init__(
        self,
        settings: TaskCheckpointing,
        environment: TaskEnvironment,
        plan: TaskPlan,
        chain: OperatorChain,
        capture: Callable[[], TaskSnapshot],
        steps: Callable[[], int],
        prepared: PreparedResults,
        mailbox: MailboxExecutor,
        spawn: Callable[[Coroutine[Any, Any, None]], Callable[[], object]],
    ) -> None:
        self.last_id: int = settings.restored_id
        self.completed_id: int = settings.restored_id
        self._settings = settings
        task_id = environment.task_id
        self._subtask = SubtaskId(task_id.vertex, task_id.subtask_index)
        self._report = environment.report
        self._clock = environment.job.clock
        self._chain = chain
        self._capture = capture
        self._steps = steps
        # When the snapshot of `last_id` was taken; None if there is none.
        self._steps_then: int | None = None
        self._gates = plan.gates
        self._writers = plan.writers
        self._prepared = prepared
        self._mailbox = mailbox
        self._spawn = spawn
        self._outputs: OutputBarriers | None = None
        self._inputs: InputState | None = None
        if settings.may_overtake and plan.channels is not None:
            states = ChannelStates()
            self._outputs = OutputBarriers(
                plan.channels,
                plan.writers,
                states,
                mailbox,
                environment.job.clock,
                environment.log,
            )
            self._inputs = InputState(plan.channels, plan.gates, states)
        # A source hears of barriers by its coordinator only.
        self._handler = (
            _handler(settings, plan.gates, environment.job.clock)
            if plan.gates
            else None
        )
        self._alignment_timer = BarrierTimer(
            mailbox, self._on_timeout, "end of an alignment's time"
        )
        # In the order they were aborted; none is at or before `last_id`.
        self._aborted: dict[int, None] = {}
        self._idle: list[Callable[[], None]] = []
        self._writing: dict[int, Callable[[], object]] = {}
        # The last snapshot: then the next one is likely to be, too.
        self._was_little = False
        self._data_has_ended = False
        self._is_finished = False
        # The first checkpoint after the end of data, and the savepoint to end with.
        self._final_id: int | None = None
        self._savepoint_id: int | None = None
        self._is_final_complete = Availability()

    @property
    def may_overtake(self) -> bool:
        """Whether barriers may overtake data."""
        return self._inputs is not None

    def attach(self, gate: int, rest: Rest) -> None:
        """Learn what an input has in hand, to ask for it when barriers overtake."""
        if self._inputs is not None:
            self._inputs.attach(gate, rest)

    def on_data(self, gate: int, channel: int, buffer: ObjectBuffer) -> None:
        """Hear of a buffer of data that was read, before it is processed."""
        assert self._handler is not None, "the task reads a gate"
        self._handler.on_data(buffer.size_bytes)
        if self._inputs is not None:
            self._inputs.on_data(ChannelInfo(gate, channel), buffer.elements)

    def on_event(self, gate: int, channel: int, event: RuntimeEvent) -> Pending:
        """Take an event that belongs to checkpoints, or the end of a channel."""
        info = ChannelInfo(gate, channel)
        handler = self._handler
        assert handler is not None, "the task reads a gate"
        if isinstance(event, CheckpointBarrier):
            if self._inputs is not None:
                self._inputs.on_barrier(info, event.checkpoint_id)
            return self._do(handler.on_barrier(info, event))
        if isinstance(event, CancelCheckpoint):
            return self._do(handler.on_cancel(info, event.checkpoint_id))
        if isinstance(event, EndOfPartition):
            return self._do(handler.on_end_of_partition(info))
        assert isinstance(event, EventAnnouncement), "the input passes on no others"
        barrier = event.announced
        if not isinstance(barrier, CheckpointBarrier):
            return None
        number = event.sequence_number
        return self._do(handler.on_announcement(info, barrier, number))

    def execute(self, read: Callable[[], Pending]) -> None:
        """Read priority events as urgent mail."""
        send_urgent(self._mailbox, read, description="priority events")

    def disregard_mail(self) -> None:
        """Say that the mail that runs now changes nothing that a snapshot holds."""
        self._mailbox.disregard()

    async def trigger(self, barrier: CheckpointBarrier) -> None:
        """Take the coordinator's barrier where nothing upstream runs any more.

        It stands for those of the channels that have not ended: their last events may
        still be queued.
        """
        open_channels = [
            ChannelInfo(index, channel)
            for index, gate in enumerate(self._gates)
            for channel in gate.unfinished_channels
        ]
        if self._handler is None or not open_channels:
            await self.perform(barrier)
            return
        for info in open_channels:
            await self._carry_out(self._handler.on_barrier(info, barrier, is_rpc=True))

    async def perform(self, barrier: CheckpointBarrier) -> bool:
        """Take a checkpoint now.

        Returns:
            Whether a snapshot was taken; False for one that is late or was aborted.

        Raises whatever an operator raises before the barrier has left; the task cannot
        go on then. A snapshot that fails is declined.

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
        if checkpoint_id <= self.last_id:
            return False
        self.last_id = checkpoint_id
        self._steps_then = None
        was_aborted = checkpoint_id in self._aborted
        self._forget_aborted()
        if was_aborted:
            # A reader of this output may have the barriers of others already.
            self._broadcast(CancelCheckpoint(checkpoint_id))
            return False
        alignment = None if self._handler is None else self._handler.statistics
        # What operators emit here belongs to this checkpoint: it leaves before the barrier.
        await self._chain.prepare_snapshot_pre_barrier(checkpoint_id)
        # No await from the barrier to the capture: no record comes between the two. The
        # barrier is first, so that consumers need not wait for the capture.
        if self._outputs is None:
            self._broadcast(barrier)
        else:
            self._outputs.broadcast(barrier.with_wish_restored())
        started_s = self._clock.monotonic()
        self._steps_then = self._steps()
        try:
            captured = self._capture()
            snapshot = TaskSnapshot(
                captured.operators,
                captured.inputs,
                self._prepared.capture(checkpoint_id),
                # A job that is stopped resumes from the savepoint, wherever it stood.
                is_finished=self._is_finished
                and not barrier.snapshot_type.is_synchronous,
            )
        except Exception as error:  # noqa: BLE001 -- the coordinator decides
            self._decline(checkpoint_id, error)
            return False
        sync_ms = (self._clock.monotonic() - started_s) * 1000
        statistics = _statistics(barrier, alignment, sync_ms)
        # A savepoint has files of its own.
        is_own = barrier.location is None
        if self._was_little and self._outputs is None and is_own:
            # Another thread would need longer to begin.
            try:
                little = self._settings.write_little(checkpoint_id, snapshot)
            except Exception as error:  # noqa: BLE001 -- the coordinator decides
                self._decline(checkpoint_id, error)
                return False
            if little is not None:
                # Nobody reads it any more, so it costs no later access anything.
                del captured, snapshot
                self._chain.settle_snapshots()
                self._report(
                    Acknowledged(self._subtask, checkpoint_id, little, statistics)
                )
                return True
        # The coroutine may be done before its canceller is known here.
        self._writing[checkpoint_id] = _nothing
        cancel = self._spawn(self._write(barrier, snapshot, statistics))
        self._chain.settle_snapshots()
        if checkpoint_id in self._writing:
            self._writing[checkpoint_id] = cancel
        return True

    @property
    def unchanged_id(self) -> int:
        """The complete checkpoint since which the task has done nothing, -1 for none."""
        is_unchanged = (
            self.last_id == self.completed_id and self._steps_then == self._steps()
        )
        return self.last_id if is_unchanged else -1

    def decline(self, checkpoint_id: int, error: BaseException) -> None:
        """Refuse a checkpoint, so that no task downstream waits for its barrier."""
        if checkpoint_id > self.last_id:
            self.last_id = checkpoint_id
            self._steps_then = None
            self._forget_aborted()
            self._broadcast(CancelCheckpoint(checkpoint_id))
        # Its data in flight will not be complete.
        cancel = self._end_writing(checkpoint_id)
        if cancel is not None:
            cancel()
        self._decline(checkpoint_id, error)

    def notify_complete(self, checkpoint_id: int) -> Pending:
        """Be notified that a checkpoint is complete; one older than known is ignored."""
        self._prepared.on_complete(checkpoint_id)
        return then(self._complete(checkpoint_id), self._on_complete, checkpoint_id)

    async def notify_aborted(
        self, checkpoint_id: int, latest_completed_id: int
    ) -> None:
        """Be notified that a checkpoint will not complete, and which one did before.

        Raises:
            CheckpointFailedError: If it is the savepoint that was to end the job.
        """
        if latest_completed_id > 0:
            self._prepared.on_complete(latest_completed_id)
        if checkpoint_id > self.completed_id:
            cancel = self._end_writing(checkpoint_id)
            if cancel is not None:
                cancel()
                self._drop_in_flight(checkpoint_id)
            elif checkpoint_id > self.last_id:
                # Others need no mark: what is not newer than `last_id` is refused by
                # its number.
                self._aborted[checkpoint_id] = None
                while len(self._aborted) > _ABORTED_MAX:
                    del self._aborted[next(iter(self._aborted))]
            # The notification of that one may have been lost; an abort makes up for it,
            # as in Flink.
            if latest_completed_id > 0:
                await finished(self._complete(latest_completed_id))
            if checkpoint_id > self.completed_id:
                await self._chain.notify_checkpoint_aborted(checkpoint_id)
        if checkpoint_id == self._savepoint_id:
            raise CheckpointFailedError(
                f"savepoint {checkpoint_id} was to end the job, and was aborted"
            )
        self._on_complete(latest_completed_id)

    def end_data(self, *, is_finished: bool) -> None:
        """Be notified that no more records come out of the task."""
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
        when_all_available(waited, lambda: self._when_written(callback))

    def close(self) -> None:
        """Take no checkpoints any more, and cancel what is being written."""
        self._alignment_timer.cancel()
        for cancel in self._writing.values():
            cancel()
        self._writing.clear()
        if self._outputs is not None:
            self._outputs.close()

    def _when_written(self, callback: Callable[[], None]) -> None:
        if self._writing:
            self._idle.append(callback)
        else:
            callback()

    def _do(self, actions: list[Action]) -> Pending:
        return self._carry_out(actions) if actions else None

    async def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case TakeSnapshot(barrier=barrier):
                    await self.perform(barrier)
                case Abort(checkpoint_id=checkpoint_id, reason=reason):
                    error = CheckpointDeclinedError(checkpoint_id, reason.value)
                    self.decline(checkpoint_id, error)
                case ResumeChannel(channel=info):
                    gate = self._gates[info.gate_index]
                    gate.resume_consumption(info.channel_index)
                case Prioritize(channel=info, sequence_number=number):
                    gate = self._gates[info.gate_index]
                    gate.prioritize(info.channel_index, number)
                case SetAlignmentTimer(checkpoint_id=checkpoint_id, delay_ms=delay_ms):
                    self._alignment_timer.set(checkpoint_id, delay_ms)
                case CancelAlignmentTimer():
                    self._alignment_timer.cancel()
                case StartPersisting(barrier=barrier):
                    if self._inputs is not None:
                        self._inputs.start(barrier)
                case StopPersisting(checkpoint_id=checkpoint_id):
                    if self._inputs is not None:
                        self._inputs.stop(checkpoint_id)

    def _on_timeout(self, checkpoint_id: int) -> Pending:
        assert self._handler is not None, "it has set the timer"
        return self._do(self._handler.on_timeout(checkpoint_id))

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
            location = None if barrier.location is None else barrier.location.decode()
            handle = await self._settings.write(checkpoint_id, snapshot, location)
            self._was_little = handle.size <= LITTLE_BYTES
        except asyncio.CancelledError:
            # The canceller has taken it out of `_writing` already.
            raise
        except Exception as error:  # noqa: BLE001 -- the coordinator decides
            if self._end_writing(checkpoint_id) is not None:
                self._report(Declined(self._subtask, checkpoint_id, error))
            return
        # One that was aborted in the meantime is not acknowledged.
        if self._end_writing(checkpoint_id) is not None:
            async_ms = (self._clock.monotonic() - started_s) * 1000
            statistics = replace(statistics, async_ms=async_ms)
            self._report(Acknowledged(self._subtask, checkpoint_id, handle, statistics))

    def _end_writing(self, checkpoint_id: int) -> Callable[[], object] | None:
        cancel = self._writing.pop(checkpoint_id, None)
        if not self._writing:
            idle, self._idle = self._idle, []
            for callback in idle:
                callback()
        return cancel

    def _decline(self, checkpoint_id: int, error: BaseException) -> None:
        self._drop_in_flight(checkpoint_id)
        self._report(Declined(self._subtask, checkpoint_id, error))

    def _complete(self, checkpoint_id: int) -> Pending:
        """Tell the operators of a completion, once."""
        if checkpoint_id <= self.completed_id:
            return None
        self.completed_id = checkpoint_id
        return self._chain.notify_checkpoint_complete(checkpoint_id)

    def _on_complete(self, checkpoint_id: int) -> Pending:
        if self._savepoint_id is not None:
            is_final = checkpoint_id == self._savepoint_id
        else:
            is_final = self._final_id is not None and checkpoint_id >= self._final_id
        if is_final:
            self._is_final_complete.set_available()
        return None

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
