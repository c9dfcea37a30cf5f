"""A task's part in checkpoints: the barriers, and what is done about them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

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
    RejectedMailError,
)
from aiomailbox.exchange.core.buffer import ObjectBuffer
from aiomailbox.exchange.input.gate import InputGate
from aiomailbox.exchange.writer import RecordWriter
from aiomailbox.ids import OperatorId
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.mailbox.mail import MailOptions
from aiomailbox.operators.core.operator import Pending, then
from aiomailbox.records.events import (
    CancelCheckpoint,
    CheckpointBarrier,
    EndOfPartition,
    EventAnnouncement,
    RuntimeEvent,
)
from aiomailbox.task.environment import TaskCheckpointing
from aiomailbox.task.in_flight import (
    ChannelStates,
    CheckpointedChain,
    InputState,
    OutputBarriers,
    Prepared,
    Rest,
    SubtaskCheckpoints,
    TaskChannels,
    TaskSnapshot,
)

# The barriers that a task's channels bring, and what is done about them.
#
# Theory of operation: each event goes to a handler, which decides, and what it decides
# is done at once, in its order, before anything else is read. It all happens on the
# mailbox: in the default action for what a gate has brought, in mail for triggers and
# timers.
#
# Concept:
#     Flink, ``CheckpointedInputGate``.


BarrierHandler: TypeAlias = CheckpointBarrierHandler | CheckpointBarrierTracker


class CheckpointTarget(Protocol):
    """What the barriers of all channels lead to."""

    async def perform(self, barrier: CheckpointBarrier) -> bool:
        """Take a checkpoint now."""
        ...

    def decline(self, checkpoint_id: int, error: BaseException) -> None:
        """Refuse a checkpoint."""
        ...


class InputBarriers:
    """Gives the events of all gates of a task to its handler, and obeys it.

    Args:
        handler: Decides; for as many channels as the gates have.
        gates: What the task reads, in order.
        target: The task's checkpoints.
        mailbox: Where the end of an alignment's time is mail.
        in_flight: Keeps what barriers overtake; None where none ever does.
    """

    def __init__(
        self,
        handler: BarrierHandler,
        gates: Sequence[InputGate],
        target: CheckpointTarget,
        mailbox: MailboxExecutor,
        in_flight: InputState | None = None,
    ) -> None:
        self._handler = handler
        self._gates = gates
        self._target = target
        self._mailbox = mailbox
        self._in_flight = in_flight
        self._timer: asyncio.TimerHandle | None = None

    def of_gate(self, index: int) -> GateBarriers:
        """Return what takes the events of one gate."""
        return GateBarriers(self, index)

    @property
    def statistics(self) -> AlignmentStatistics | None:
        """Of the alignment that began last."""
        return self._handler.statistics

    def on_event(self, gate: int, channel: int, event: RuntimeEvent) -> Pending:
        """Take an event that belongs to checkpoints, or the end of a channel."""
        info = ChannelInfo(gate, channel)
        handler = self._handler
        if isinstance(event, CheckpointBarrier):
            if self._in_flight is not None:
                self._in_flight.on_barrier(info, event.checkpoint_id)
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

    def on_data(self, gate: int, channel: int, buffer: ObjectBuffer) -> None:
        """Hear of a buffer of data that was read, before it is processed."""
        self._handler.on_data(buffer.size_bytes)
        if self._in_flight is not None:
            self._in_flight.on_data(ChannelInfo(gate, channel), buffer.elements)

    @property
    def may_overtake(self) -> bool:
        """Whether barriers may overtake data."""
        return self._in_flight is not None

    def attach(self, gate: int, rest: Rest) -> None:
        """Learn what an input has in hand, to ask for it when barriers overtake."""
        if self._in_flight is not None:
            self._in_flight.attach(gate, rest)

    def execute(self, read: Callable[[], Pending]) -> None:
        """Read priority events as urgent mail."""
        self._send(read, description="priority events")

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
        if not open_channels:
            await self._target.perform(barrier)
        for info in open_channels:
            await self._carry_out(self._handler.on_barrier(info, barrier, is_rpc=True))

    def close(self) -> None:
        """Expect no barriers any more."""
        self._handler.close()
        self._end_timer()

    def _do(self, actions: list[Action]) -> Pending:
        return self._carry_out(actions) if actions else None

    async def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, TakeSnapshot):
                await self._target.perform(action.barrier)
            elif isinstance(action, Abort):
                error = CheckpointDeclinedError(
                    action.checkpoint_id, action.reason.value
                )
                self._target.decline(action.checkpoint_id, error)
            elif isinstance(action, ResumeChannel):
                gate = self._gates[action.channel.gate_index]
                gate.resume_consumption(action.channel.channel_index)
            elif isinstance(action, SetAlignmentTimer):
                self._set_timer(action)
            elif isinstance(action, CancelAlignmentTimer):
                self._end_timer()
            else:
                self._keep(action)

    def _keep(self, action: Action) -> None:
        """Do what belongs to data in flight."""
        if isinstance(action, Prioritize):
            gate = self._gates[action.channel.gate_index]
            gate.prioritize(action.channel.channel_index, action.sequence_number)
        elif self._in_flight is None:
            return
        elif isinstance(action, StartPersisting):
            self._in_flight.start(action.barrier)
        elif isinstance(action, StopPersisting):
            self._in_flight.stop(action.checkpoint_id)

    def _set_timer(self, action: SetAlignmentTimer) -> None:
        self._end_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(
            action.delay_ms / 1000, self._send_timeout, action.checkpoint_id
        )

    def _send_timeout(self, checkpoint_id: int) -> None:
        self._send(
            self._on_timeout, checkpoint_id, description="end of an alignment's time"
        )

    def _send(
        self, function: Callable[..., Pending], *args: Any, description: str
    ) -> None:
        # A mailbox that takes no more mail needs neither timeouts nor barriers.
        try:
            self._mailbox.execute(
                function, *args, description=description, options=MailOptions.URGENT
            )
        except RejectedMailError:
            return

    def _on_timeout(self, checkpoint_id: int) -> Pending:
        return self._do(self._handler.on_timeout(checkpoint_id))

    def _end_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


class GateBarriers:
    """Takes the events of one gate.

    Args:
        barriers: Those of the task.
        index: The gate.
    """

    __slots__ = ("_barriers", "_index")

    def __init__(self, barriers: InputBarriers, index: int) -> None:
        self._barriers = barriers
        self._index = index

    def on_event(self, channel: int, event: RuntimeEvent) -> Pending:
        """Take an event that belongs to checkpoints, or the end of a channel."""
        return self._barriers.on_event(self._index, channel, event)

    def on_data(self, channel: int, buffer: ObjectBuffer) -> None:
        """Hear of a buffer of data that was read, before it is processed."""
        self._barriers.on_data(self._index, channel, buffer)

    @property
    def may_overtake(self) -> bool:
        """Whether barriers may overtake data."""
        return self._barriers.may_overtake

    def attach(self, rest: Rest) -> None:
        """Learn what the input has in hand, to ask for it when barriers overtake."""
        self._barriers.attach(self._index, rest)

    def execute(self, read: Callable[[], Pending]) -> None:
        """Read priority events as urgent mail."""
        self._barriers.execute(read)


# A task's part in checkpoints: from the first barrier to the one that lets it end.
#
# Theory of operation: a task whose data has ended goes on to take checkpoints until one
# that began after that is complete: only then is what it has done committed. A
# savepoint that stops the job ends it instead, and nothing else does.
#
# Concept:
#     Flink, ``StreamTask.triggerCheckpointAsync`` and FLIP-147.


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
