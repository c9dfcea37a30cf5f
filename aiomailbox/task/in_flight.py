"""State and data in flight of a task, as one checkpoint holds them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from aiomailbox.availability import Availability
from aiomailbox.barriers.machine import ChannelInfo
from aiomailbox.clock import Clock
from aiomailbox.errors import (
    CheckpointDeclinedError,
    IllegalStateError,
    InFlightRecordsError,
    InvalidArgumentError,
    RejectedMailError,
    WrongTypeError,
)
from aiomailbox.eventtime.valve import ValveSnapshot
from aiomailbox.exchange.core.contract import encode_in_flight
from aiomailbox.exchange.gate import InputGate
from aiomailbox.exchange.partition import ResultPartition
from aiomailbox.exchange.writer import RecordWriter
from aiomailbox.ids import OperatorId
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.mailbox.mail import MailOptions
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records import Element
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import CheckpointBarrier

# The data in flight that belongs to a task's unaligned checkpoints.
#
# Theory of operation: a checkpoint's data is collected while its barriers overtake: at
# the outputs what a barrier jumped over, at the inputs what came before the barriers
# that are still missing. It is complete when every input has its barrier and no
# output's barrier can time out any more; the task acknowledges the checkpoint after
# that. Only one checkpoint collects at a time, for unaligned ones do not run
# concurrently.
#
# Concept:
#     Flink, ``ChannelStateWriter`` and ``ChannelStateCheckpointWriter``.


ChannelState: TypeAlias = dict[str, tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class TaskChannels:
    """The channels of a task, as far as it needs them to keep data in flight.

    Attributes:
        codec: For the elements of all its channels.
        inputs: The names of each gate's channels.
        outputs: The names of each writer's channels.
        may_overtake: Of each writer whether barriers may overtake there.
    """

    codec: ElementCodec
    inputs: Sequence[Sequence[str]]
    outputs: Sequence[Sequence[str]]
    may_overtake: Sequence[bool]


class _Collection:
    """The data of one checkpoint, and what of it is still to come."""

    def __init__(self) -> None:
        self.data: dict[str, list[bytes]] = {}
        self.missing: set[str] = set()
        self.error: BaseException | None = None
        self.complete = Availability(available=True)

    def settle(self) -> None:
        is_complete = not self.missing or self.error is not None
        if is_complete and not self.complete.available:
            self.complete.set_available()
        elif not is_complete and self.complete.available:
            self.complete.reset()


class ChannelStates:
    """Collects what a task keeps of its channels, checkpoint by checkpoint."""

    def __init__(self) -> None:
        self._current: tuple[int, _Collection] | None = None

    def add(self, checkpoint_id: int, channel: str, data: list[bytes]) -> None:
        """Keep data of a channel, behind what was kept of it."""
        found = self._collection(checkpoint_id)
        if found is not None:
            found.data.setdefault(channel, []).extend(data)

    def expect(self, checkpoint_id: int, what: str) -> None:
        """Wait for something before the data is complete."""
        found = self._collection(checkpoint_id)
        if found is not None:
            found.missing.add(what)
            found.settle()

    def settle(self, checkpoint_id: int, what: str) -> None:
        """Wait no more for something."""
        found = self._collection(checkpoint_id)
        if found is not None:
            found.missing.discard(what)
            found.settle()

    def fail(self, checkpoint_id: int, error: BaseException) -> None:
        """Give up a checkpoint's data; the first error counts."""
        found = self._collection(checkpoint_id)
        if found is not None:
            found.error = found.error or error
            found.data.clear()
            found.settle()

    async def collected(self, checkpoint_id: int) -> ChannelState:
        """Wait until a checkpoint's data is complete, and return and forget it.

        Raises whatever it was failed with.
        """
        found = self._collection(checkpoint_id)
        if found is None:
            return {}
        await found.complete.wait()
        self.drop(checkpoint_id)
        if found.error is not None:
            raise found.error
        return {name: tuple(data) for name, data in found.data.items() if data}

    def drop(self, checkpoint_id: int) -> None:
        """Forget a checkpoint's data: it was aborted."""
        if self._current is not None and self._current[0] == checkpoint_id:
            self._current = None

    def begin(self, checkpoint_id: int) -> None:
        """Collect for a checkpoint from now on, unless it is collected for already."""
        # Ids only grow; one that is older than what is collected was given up.
        if self._current is None or self._current[0] < checkpoint_id:
            self._current = (checkpoint_id, _Collection())

    def _collection(self, checkpoint_id: int) -> _Collection | None:
        current = self._current
        return current[1] if current and current[0] == checkpoint_id else None


class OutputState:
    """One writer's part of the data in flight: its partition gives it.

    Args:
        states: Where it is collected.
        writer: The writer.
        names: Of its channels, in order.
        codec: For its elements.
        may_overtake: Whether barriers may overtake here.

    Attributes:
        may_overtake: As given; False from the first record on that cannot be kept.
    """

    def __init__(
        self,
        states: ChannelStates,
        writer: RecordWriter,
        names: Sequence[str],
        codec: ElementCodec,
        *,
        may_overtake: bool,
    ) -> None:
        self.writer: RecordWriter = writer
        self._states = states
        self._names = names
        self._partition: ResultPartition | None = None
        partition = writer.partition
        if may_overtake and isinstance(partition, ResultPartition):
            self._partition = partition
            partition.keep_in_flight(self, codec)
        self.may_overtake: bool = self._partition is not None

    def time_out_barrier(self, checkpoint_id: int) -> None:
        """Let the barrier of a checkpoint overtake wherever it is still queued.

        Raises:
            WrongTypeError: If it would overtake a record that cannot be kept.
        """
        if self._partition is not None and self.may_overtake:
            self._partition.time_out_barrier(checkpoint_id)

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """Wait for the barrier of a checkpoint no more."""
        if self._partition is not None:
            self._partition.abort_checkpoint(checkpoint_id, cause)

    def add_output_data(
        self, checkpoint_id: int, subpartition_index: int, data: list[bytes]
    ) -> None:
        """Keep data that an unaligned barrier has overtaken."""
        self._states.add(checkpoint_id, self._names[subpartition_index], data)

    def expect_output_data(self, checkpoint_id: int, subpartition_index: int) -> None:
        """Wait: a queued barrier may still time out and overtake data."""
        self._states.expect(checkpoint_id, self._names[subpartition_index])

    def complete_output_data(
        self, checkpoint_id: int, subpartition_index: int, data: list[bytes]
    ) -> None:
        """Keep what the expected barrier has overtaken: nothing if it was in time."""
        name = self._names[subpartition_index]
        self._states.add(checkpoint_id, name, data)
        self._states.settle(checkpoint_id, name)

    def fail_output_data(
        self, checkpoint_id: int, subpartition_index: int, error: BaseException
    ) -> None:
        """Stop waiting: the barrier will neither be taken nor overtake."""
        self._states.fail(checkpoint_id, error)


# Barriers that leave a task, on edges where they may overtake and on others.
#
# Theory of operation: on each edge a barrier goes as it is wished, or forced to align:
# where no barrier may overtake, and where one would overtake records that cannot be
# kept. The receiver restores the wish there. A barrier that waits in the queue for its
# alignment overtakes when its time is over.
#
# Concept:
#     Flink, ``CheckpointOptions.forceAligned`` and the output timer of
#     ``SubtaskCheckpointCoordinatorImpl``.


# What a record that has no form as bytes makes of its encoding.
_NOT_KEPT = (WrongTypeError, InvalidArgumentError)


def send_urgent(
    mailbox: MailboxExecutor,
    function: Callable[..., Pending],
    *args: Any,
    description: str,
) -> None:
    """Send urgent mail about barriers; a mailbox that takes no more needs none."""
    with suppress(RejectedMailError):
        mailbox.execute(
            function, *args, description=description, options=MailOptions.URGENT
        )


class BarrierTimer:
    """Sends urgent mail when the time of the newest barrier is over.

    Args:
        mailbox: Where the mail goes.
        on_timeout: What it calls with the number of the checkpoint.
        description: What it is for.
    """

    def __init__(
        self,
        mailbox: MailboxExecutor,
        on_timeout: Callable[[int], Pending],
        description: str,
    ) -> None:
        self._send = partial(send_urgent, mailbox, on_timeout, description=description)
        self._handle: asyncio.TimerHandle | None = None

    def set(self, checkpoint_id: int, delay_ms: int) -> None:
        """Send the mail after a while, and none that was to be sent before."""
        self.cancel()
        loop = asyncio.get_running_loop()
        self._handle = loop.call_later(delay_ms / 1000, self._send, checkpoint_id)

    def cancel(self) -> None:
        """Send no mail; no-op if none is to be sent."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


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
        self._timer = BarrierTimer(mailbox, self._on_timeout, "end of a barrier's time")
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
            due_ms = barrier.timestamp_ms + barrier.aligned_timeout_ms
            delay_ms = max(0, due_ms - self._clock.now_ms())
            self._timer.set(barrier.checkpoint_id, delay_ms)

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
        self._timer.cancel()

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

    def _on_timeout(self, checkpoint_id: int) -> None:
        # Where the barrier is changes no state.
        self._mailbox.disregard()
        for output in self._outputs:
            try:
                output.time_out_barrier(checkpoint_id)
            except _NOT_KEPT as error:
                self._align_from_now_on(output, error)


# What one task resumes from: the snapshots of its operators, and its inputs' times.


# The number of a checkpoint, and what a sink's writer prepared for it.
Prepared = tuple[int, Any]


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """The state from which a subtask's operators resume, however they are chained.

    Attributes:
        operators: By the id of the operator. Those that a task does not have are left
            alone; an operator without a snapshot begins anew.
        inputs: For each input of an operator that was the head of its task, how far
            event time had come on its channels.
        committables: Per sink what its writer has prepared and is not committed yet,
            each with the number of the checkpoint that it was prepared for.
        is_finished: Whether the task had nothing more to do but to wait.
        channel_state: The buffers that the barrier of an unaligned checkpoint
            overtook, in order, by the name of their channel.

    Example:
        >>> TaskSnapshot().operators
        {}
    """

    operators: Mapping[OperatorId, OperatorSnapshot] = field(default_factory=dict)
    inputs: Mapping[OperatorId, tuple[ValveSnapshot, ...]] = field(default_factory=dict)
    committables: Mapping[OperatorId, tuple[Prepared, ...]] = field(
        default_factory=dict
    )
    is_finished: bool = False
    channel_state: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)


# The data in flight at a task's inputs that belongs to an unaligned checkpoint.
#
# Theory of operation: once the task's state has been captured, what its channels still
# bring before their barriers is processed as ever, and kept for the checkpoint as well:
# the rest of the buffer in hand first, then every buffer that is read, and when the
# barrier of a channel overtakes, what has arrived there before it. Nothing of a channel
# is kept after its barrier.
#
# Concept:
#     Flink, ``ChannelStatePersister`` of each input channel.


# What an input has taken from its gate and not processed, per channel and in order.
Rest = Callable[[], list[tuple[int, list[Element]]]]
_INPUTS = "all inputs"


class InputState:
    """Keeps the data in flight that barriers have overtaken at the inputs.

    Args:
        channels: The names of the channels.
        gates: What the task reads, in order.
        states: Where the data is collected.
    """

    def __init__(
        self,
        channels: TaskChannels,
        gates: Sequence[InputGate],
        states: ChannelStates,
    ) -> None:
        self._codec = channels.codec
        self._names = channels.inputs
        self._gates = gates
        self._states = states
        self._rests: dict[int, Rest] = {}
        self._checkpoint_id: int | None = None
        # Of the checkpoint that is being kept: the channels without their barrier.
        self._open: set[ChannelInfo] = set()
        # Of the newest checkpoint that was heard of: the channels with it.
        self._arrived_id = -1
        self._arrived: set[ChannelInfo] = set()

    def attach(self, gate: int, rest: Rest) -> None:
        """Ask an input for what it has in hand, from now on."""
        self._rests[gate] = rest

    def start(self, barrier: CheckpointBarrier) -> None:
        """Keep what every channel brings until its barrier arrives."""
        checkpoint_id = barrier.checkpoint_id
        self._checkpoint_id = checkpoint_id
        self._states.begin(checkpoint_id)
        self._states.expect(checkpoint_id, _INPUTS)
        if self._arrived_id != checkpoint_id:
            self._arrived.clear()
        self._open = {
            ChannelInfo(gate_index, channel)
            for gate_index, gate in enumerate(self._gates)
            for channel in gate.unfinished_channels
        } - self._arrived
        for gate_index, rest in self._rests.items():
            for channel, elements in rest():
                self._keep(ChannelInfo(gate_index, channel), elements)
        # Their barriers have been read, but not the data that those jumped over.
        for info in self._arrived:
            self._keep_queued(info)

    def on_data(self, info: ChannelInfo, elements: Iterable[Element]) -> None:
        """Keep a buffer that was read, if its channel's barrier is still to come."""
        if info in self._open:
            self._keep(info, elements)

    def on_barrier(self, info: ChannelInfo, checkpoint_id: int) -> None:
        """Hear that a channel's barrier was read, before anything is done about it."""
        if checkpoint_id > self._arrived_id:
            self._arrived_id = checkpoint_id
            self._arrived.clear()
        if checkpoint_id == self._arrived_id:
            self._arrived.add(info)
        if checkpoint_id == self._checkpoint_id and info in self._open:
            self._open.discard(info)
            self._keep_queued(info)

    def stop(self, checkpoint_id: int) -> None:
        """Keep nothing more for the checkpoint, or for an older one."""
        kept, self._checkpoint_id = self._checkpoint_id, None
        still_open, self._open = self._open, set()
        if kept is None:
            return
        if kept < checkpoint_id:
            error = CheckpointDeclinedError(kept, "a newer one was aborted")
            self._states.fail(kept, error)
            return
        self._checkpoint_id = kept
        for info in still_open:
            self._keep_queued(info)
        self._checkpoint_id = None
        self._states.settle(kept, _INPUTS)

    def _keep(self, info: ChannelInfo, elements: Iterable[Element]) -> None:
        checkpoint_id = self._checkpoint_id
        assert checkpoint_id is not None, "data is kept for a checkpoint"
        name = self._names[info.gate_index][info.channel_index]
        try:
            data = encode_in_flight(self._codec, elements)
        except (WrongTypeError, InvalidArgumentError) as error:
            self._states.fail(
                checkpoint_id, InFlightRecordsError(checkpoint_id, name, error)
            )
            # The checkpoint has failed: what still comes need not be encoded.
            self._open.clear()
        else:
            if data:
                self._states.add(checkpoint_id, name, [data])

    def _keep_queued(self, info: ChannelInfo) -> None:
        checkpoint_id = self._checkpoint_id
        assert checkpoint_id is not None, "data is kept for a checkpoint"
        gate = self._gates[info.gate_index]
        if gate.is_closed or info.channel_index not in gate.unfinished_channels:
            return
        try:
            data = gate.in_flight(info.channel_index, checkpoint_id)
        except IllegalStateError as error:
            # A newer barrier has arrived behind: this checkpoint is given up.
            self._states.fail(checkpoint_id, error)
        else:
            if data:
                name = self._names[info.gate_index][info.channel_index]
                self._states.add(checkpoint_id, name, data)
