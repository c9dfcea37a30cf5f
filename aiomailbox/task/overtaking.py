"""Barriers that leave a task, on edges where they may overtake and on others.

Theory of operation: on each edge a barrier goes as it is wished, or forced to align:
where no barrier may overtake, and where one would overtake records that cannot be kept.
The receiver restores the wish there. A barrier that waits in the queue for its
alignment overtakes when its time is over.

Concept:
    Flink, ``CheckpointOptions.forceAligned`` and the output timer of
    ``SubtaskCheckpointCoordinatorImpl``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from aiomailbox.clock import Clock
from aiomailbox.errors import (
    CheckpointDeclinedError,
    InvalidArgumentError,
    RejectedMailError,
    WrongTypeError,
)
from aiomailbox.exchange.writer import RecordWriter
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.mailbox.mail import MailOptions
from aiomailbox.records.events import CheckpointBarrier
from aiomailbox.task.channel_state import (
    ChannelState,
    ChannelStates,
    OutputState,
    TaskChannels,
)

__all__ = ["OutputBarriers"]

# What a record that has no form as bytes makes of its encoding.
_NOT_KEPT = (WrongTypeError, InvalidArgumentError)


class OutputBarriers:
    """Sends barriers to all outputs of a task, and keeps what they overtake.

    Args:
        channels: The names of the channels, and which barriers may overtake on.
        writers: The outputs.
        states: Where the data is collected.
        mailbox: Where the end of a barrier's time is mail.
        clock: Measures that time.
        log: Gets one warning per edge whose records cannot be kept.
    """

    def __init__(
        self,
        channels: TaskChannels,
        writers: Sequence[RecordWriter],
        states: ChannelStates,
        mailbox: MailboxExecutor,
        clock: Clock,
        log: Any,
    ) -> None:
        self._states = states
        self._mailbox = mailbox
        self._clock = clock
        self._log = log
        self._timer: asyncio.TimerHandle | None = None
        self._outputs = [
            OutputState(
                states, writer, names, channels.codec, may_overtake=may_overtake
            )
            for writer, names, may_overtake in zip(
                writers, channels.outputs, channels.may_overtake, strict=True
            )
        ]

    def broadcast(self, barrier: CheckpointBarrier) -> None:
        """Send a barrier to every output."""
        if barrier.needs_channel_state:
            self._states.begin(barrier.checkpoint_id)
        for output in self._outputs:
            self._send(output, barrier)
        if barrier.is_timeoutable and self._outputs:
            self._set_timer(barrier)

    async def collected(self, checkpoint_id: int) -> ChannelState:
        """Wait until the data of a checkpoint is complete, and return it."""
        return await self._states.collected(checkpoint_id)

    def abort(self, checkpoint_id: int) -> None:
        """Keep nothing for a checkpoint any more."""
        cause = CheckpointDeclinedError(checkpoint_id, "it was aborted")
        for output in self._outputs:
            output.abort_checkpoint(checkpoint_id, cause)
        self._states.drop(checkpoint_id)

    def close(self) -> None:
        """Let no barrier time out any more."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _send(self, output: OutputState, barrier: CheckpointBarrier) -> None:
        if not barrier.needs_channel_state:
            output.writer.broadcast_event(barrier)
            return
        if output.may_overtake:
            try:
                output.writer.broadcast_event(barrier)
            except _NOT_KEPT as error:
                self._align_from_now_on(output, error)
            else:
                return
        output.writer.broadcast_event(barrier.as_forced_aligned())

    def _align_from_now_on(self, output: OutputState, error: BaseException) -> None:
        output.may_overtake = False
        self._log.warning(
            "barriers do not overtake on an edge: its records cannot be serialized",
            edge=output.writer.partitioner.name,
            partition=str(output.writer.partition.partition_id),
            error=str(error),
        )

    def _set_timer(self, barrier: CheckpointBarrier) -> None:
        self.close()
        due_ms = barrier.timestamp_ms + barrier.aligned_timeout_ms
        delay_ms = max(0, due_ms - self._clock.now_ms())
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(
            delay_ms / 1000, self._send_timeout, barrier.checkpoint_id
        )

    def _send_timeout(self, checkpoint_id: int) -> None:
        self._timer = None
        # A mailbox that takes no more mail needs no timeout.
        try:
            self._mailbox.execute(
                self._on_timeout,
                checkpoint_id,
                description="end of a barrier's time",
                options=MailOptions.URGENT,
            )
        except RejectedMailError:
            return

    def _on_timeout(self, checkpoint_id: int) -> None:
        for output in self._outputs:
            try:
                output.time_out_barrier(checkpoint_id)
            except _NOT_KEPT as error:
                self._align_from_now_on(output, error)
