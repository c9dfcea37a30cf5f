"""The data in flight at a task's inputs that belongs to an unaligned checkpoint.

Theory of operation: once the task's state has been captured, what its channels still
bring before their barriers is processed as ever, and kept for the checkpoint as well: the
rest of the buffer in hand first, then every buffer that is read, and when the barrier of
a channel overtakes, what has arrived there before it. Nothing of a channel is kept after
its barrier.

Concept:
    Flink, ``ChannelStatePersister`` of each input channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from aiomailbox.barriers.actions import ChannelInfo
from aiomailbox.errors import (
    CheckpointDeclinedError,
    IllegalStateError,
    InFlightRecordsError,
    InvalidArgumentError,
    WrongTypeError,
)
from aiomailbox.exchange.core.channel_state import encode_in_flight
from aiomailbox.exchange.input.gate import InputGate
from aiomailbox.records import Element
from aiomailbox.records.events import CheckpointBarrier
from aiomailbox.task.channel_state import ChannelStates, TaskChannels

__all__ = ["InputState", "Rest"]

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
