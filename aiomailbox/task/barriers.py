"""The barriers that a task's channels bring, and what is done about them.

Theory of operation: each event goes to a handler, which decides, and what it decides is
done at once, in its order, before anything else is read. It all happens on the mailbox:
in the default action for what a gate has brought, in mail for triggers and timers.

Concept:
    Flink, ``CheckpointedInputGate``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from aiomailbox.barriers.actions import (
    Abort,
    Action,
    CancelAlignmentTimer,
    ChannelInfo,
    Prioritize,
    ResumeChannel,
    SetAlignmentTimer,
    StartPersisting,
    StopPersisting,
    Trigger,
)
from aiomailbox.barriers.handler import CheckpointBarrierHandler
from aiomailbox.barriers.statistics import AlignmentStatistics
from aiomailbox.barriers.tracker import CheckpointBarrierTracker
from aiomailbox.errors import CheckpointDeclinedError, RejectedMailError
from aiomailbox.exchange.core.buffer import ObjectBuffer
from aiomailbox.exchange.input.gate import InputGate
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.mailbox.mail import MailOptions
from aiomailbox.operators.core.contract import Pending
from aiomailbox.records.events import (
    CancelCheckpoint,
    CheckpointBarrier,
    EndOfPartition,
    EventAnnouncement,
    RuntimeEvent,
)
from aiomailbox.task.input_state import InputState, Rest

__all__ = ["BarrierHandler", "CheckpointTarget", "InputBarriers"]

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
            if isinstance(action, Trigger):
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
