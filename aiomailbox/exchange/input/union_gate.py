"""Several gates read as one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from aiomailbox.availability import Availability
from aiomailbox.errors import GateClosedError, InvalidArgumentError
from aiomailbox.exchange.core.buffer import ObjectBuffer
from aiomailbox.exchange.core.contract import ChannelCredit, ChannelStatistics
from aiomailbox.exchange.core.priority_deque import PrioritizedDeque
from aiomailbox.exchange.input.awaitable_gate import Gate
from aiomailbox.memory import PoolStatistics
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
        self._members: list[_Member] = []
        self._with_data: PrioritizedDeque[_Member] = PrioritizedDeque()
        self._is_closed = False
        offset = 0
        for gate in self.gates:
            self._members.append(_Member(gate, offset, self._enqueue))
            offset += gate.channel_count
        self._offsets = [member.offset for member in self._members]
        for member in self._members:
            member.arm()

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
            member = queue.popleft()
            member.is_queued = False
            try:
                item = member.gate.poll_next()
            finally:
                member.arm()
            if item is not None:
                self._settle()
                return member.offset + item[0], item[1]
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
        member = self._members[bisect_right(self._offsets, channel_index) - 1]
        return member.gate, channel_index - member.offset

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

    def credits(self) -> list[ChannelCredit | None]:
        """Return each channel's credit for metrics, in order."""
        return [each for gate in self.gates for each in gate.credits()]

    def pools(self) -> list[PoolStatistics]:
        """Return the pools of all gates."""
        return [each for gate in self.gates for each in gate.pools()]

    def close(self) -> None:
        """Close every gate and wake whoever waits. Idempotent."""
        self._is_closed = True
        for gate in self.gates:
            gate.close()
        self._with_data.clear()
        self.availability.set_available()
        self.priority_availability.set_available()

    def _enqueue(self, member: _Member, has_priority: bool) -> None:
        if self._is_closed or member.gate.is_finished:
            return
        queue = self._with_data
        if not member.is_queued:
            member.is_queued = True
            if has_priority:
                queue.append_priority(member)
            else:
                queue.append(member)
        elif has_priority:
            queue.prioritize(member)
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


class _Member:
    """A gate of the union: where its channels start, and what it was asked to tell."""

    __slots__ = (
        "_enqueue",
        "_is_data_armed",
        "_is_priority_armed",
        "gate",
        "is_queued",
        "offset",
    )

    def __init__(
        self, gate: Gate, offset: int, enqueue: Callable[[_Member, bool], None]
    ) -> None:
        self.gate = gate
        self.offset = offset
        self.is_queued = False
        self._enqueue = enqueue
        self._is_data_armed = False
        self._is_priority_armed = False

    def arm(self) -> None:
        """Queue the gate if it has data, else ask to be told, once."""
        # One callback at a time: a gate keeps each until it becomes available.
        gate = self.gate
        if not self._is_data_armed and not self.is_queued:
            self._is_data_armed = True
            gate.availability.on_available(self._on_data)
        if not self._is_priority_armed and not gate.priority_availability.available:
            self._is_priority_armed = True
            gate.priority_availability.on_available(self._on_priority)

    def _on_data(self) -> None:
        self._is_data_armed = False
        self._enqueue(self, self.gate.priority_availability.available)

    def _on_priority(self) -> None:
        self._is_priority_armed = False
        self._enqueue(self, True)
