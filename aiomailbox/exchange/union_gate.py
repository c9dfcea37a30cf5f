"""Several gates read as one."""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Sequence

from aiomailbox.availability import Availability
from aiomailbox.errors import GateClosedError, InvalidArgumentError
from aiomailbox.exchange.awaitable_gate import Gate
from aiomailbox.exchange.buffer import ObjectBuffer
from aiomailbox.exchange.channel import ChannelStatistics
from aiomailbox.exchange.priority_deque import PrioritizedDeque
from aiomailbox.records import StopMode

__all__ = ["UnionInputGate"]


class UnionInputGate(Gate):
    """Reads several gates fairly; channels are numbered through.

    Args:
        gates: At least two gates, no unions among them. Only the union polls them.

    Concept:
        Flink, ``UnionInputGate``.
    """

    def __init__(self, gates: Sequence[Gate]) -> None:
        if len(gates) < 2:
            raise InvalidArgumentError(
                "gates", f"a union of {len(gates)} gates is no union"
            )
        if any(isinstance(gate, UnionInputGate) for gate in gates):
            raise InvalidArgumentError(
                "gates", "a union cannot contain a union", "List its gates instead."
            )
        self.availability = Availability()
        self.priority_availability = Availability()
        self.gates = list(gates)
        self.offsets = [
            sum(gate.channel_count for gate in gates[:index])
            for index in range(len(gates))
        ]
        self._with_data: PrioritizedDeque[int] = PrioritizedDeque()
        self._is_queued = [False] * len(gates)
        self._is_armed = [False] * len(gates)
        self._is_priority_armed = [False] * len(gates)
        self._is_closed = False
        self._on_data = [
            functools.partial(self._on_gate_data, index) for index in range(len(gates))
        ]
        self._on_priority = [
            functools.partial(self._on_gate_priority, index)
            for index in range(len(gates))
        ]
        for index in range(len(gates)):
            self._arm(index)

    def __repr__(self) -> str:
        return f"<UnionInputGate of {self.gates!r}>"

    @property
    def channel_count(self) -> int:
        """Number of channels of all gates."""
        return sum(gate.channel_count for gate in self.gates)

    @property
    def is_finished(self) -> bool:
        """Whether every gate is finished."""
        return all(gate.is_finished for gate in self.gates)

    @property
    def end_of_data(self) -> StopMode | None:
        """How data ended, or None while some channel still has data to come."""
        modes = [gate.end_of_data for gate in self.gates]
        if None in modes:
            return None
        return StopMode.NO_DRAIN if StopMode.NO_DRAIN in modes else StopMode.DRAIN

    def request_partitions(self) -> None:
        """Connect every channel to its producer; an error surfaces at a poll."""
        for gate in self.gates:
            gate.request_partitions()

    def poll_next(self) -> tuple[int, ObjectBuffer] | None:
        """Take the next buffer, fairly among the gates.

        Returns:
            The channel's index over all gates and the buffer, which the caller
            recycles; None if nothing can be taken now.

        Raises:
            GateClosedError: If the gate was closed before its end.
            BaseException: The error of a channel.
        """
        queue = self._with_data
        while queue:
            index = queue.popleft()
            self._is_queued[index] = False
            gate = self.gates[index]
            try:
                item = gate.poll_next()
            finally:
                self._requeue(index)
            if item is not None:
                self._settle()
                return self.offsets[index] + item[0], item[1]
        if self._is_closed and not self.is_finished:
            raise GateClosedError(f"{self!r} was closed; stop polling it")
        self._settle()
        return None

    def gate_of(self, channel_index: int) -> tuple[Gate, int]:
        """Return the gate of a channel, and the channel's index in it.

        Raises:
            InvalidArgumentError: If there is no such channel.
        """
        if not 0 <= channel_index < self.channel_count:
            raise InvalidArgumentError(
                "channel_index",
                f"{channel_index} is not among {self.channel_count} channels",
            )
        index = bisect_right(self.offsets, channel_index) - 1
        return self.gates[index], channel_index - self.offsets[index]

    def resume_consumption(self, channel_index: int) -> None:
        """Go on reading a channel after an event that blocked upstream.

        Raises:
            IllegalStateError: If nothing blocks.
        """
        gate, index = self.gate_of(channel_index)
        gate.resume_consumption(index)

    def acknowledge_all_data_processed(self, channel_index: int) -> None:
        """Tell a channel's producer that all its records have been processed."""
        gate, index = self.gate_of(channel_index)
        gate.acknowledge_all_data_processed(index)

    def statistics(self) -> list[ChannelStatistics]:
        """Return a snapshot per channel, in order."""
        return [each for gate in self.gates for each in gate.statistics()]

    def close(self) -> None:
        """Close every gate and wake whoever waits. Idempotent."""
        self._is_closed = True
        for gate in self.gates:
            gate.close()
        self._with_data.clear()
        self._is_queued = [False] * len(self.gates)
        self.availability.set_available()
        self.priority_availability.set_available()

    def _requeue(self, index: int) -> None:
        """Queue a gate again while it has more; else ask to be told once."""
        gate = self.gates[index]
        if gate.is_finished:
            return
        if gate.availability.available:
            self._enqueue(index, has_priority=gate.priority_availability.available)
        self._arm(index)

    def _arm(self, index: int) -> None:
        # One callback at a time: a gate keeps a callback until it becomes available.
        gate = self.gates[index]
        if not self._is_armed[index] and not self._is_queued[index]:
            self._is_armed[index] = True
            gate.availability.on_available(self._on_data[index])
        if (
            not self._is_priority_armed[index]
            and not gate.priority_availability.available
        ):
            self._is_priority_armed[index] = True
            gate.priority_availability.on_available(self._on_priority[index])

    def _on_gate_data(self, index: int) -> None:
        self._is_armed[index] = False
        gate = self.gates[index]
        if not self._is_closed and not gate.is_finished:
            self._enqueue(index, has_priority=gate.priority_availability.available)

    def _on_gate_priority(self, index: int) -> None:
        self._is_priority_armed[index] = False
        if not self._is_closed and not self.gates[index].is_finished:
            self._enqueue(index, has_priority=True)

    def _enqueue(self, index: int, *, has_priority: bool) -> None:
        queue = self._with_data
        if not self._is_queued[index]:
            self._is_queued[index] = True
            if has_priority:
                queue.append_priority(index)
            else:
                queue.append(index)
        elif has_priority:
            queue.prioritize(index)
        if has_priority and not self.priority_availability.available:
            self.priority_availability.set_available()
        if not self.availability.available:
            self.availability.set_available()

    def _settle(self) -> None:
        """Make both latches true to the queue."""
        if self._is_closed:
            return
        if not self._with_data:
            if self.is_finished:
                self.availability.set_available()
            else:
                self.availability.reset()
        if not self._with_data.priority_count:
            self.priority_availability.reset()
