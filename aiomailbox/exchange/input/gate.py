"""An input gate: several channels read fairly, buffer by buffer.

Theory of operation: a channel with something to take is queued once; the gate takes one
buffer of the first channel and queues it again, behind the others, if more is there.
Channels with a priority event stand before all others. The gate is available exactly
while a channel is queued, and for ever once it is finished or closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from aiomailbox.availability import Availability
from aiomailbox.errors import CorruptStreamError, GateClosedError, InvalidArgumentError
from aiomailbox.exchange.core.buffer import ObjectBuffer
from aiomailbox.exchange.core.contract import (
    SEQUENCE_MODULUS,
    ChannelCredit,
    ChannelStatistics,
    PolledBuffer,
)
from aiomailbox.exchange.core.priority_deque import PrioritizedDeque
from aiomailbox.exchange.input.channel import InputChannel
from aiomailbox.memory.options import PoolStatistics
from aiomailbox.records.events import EndOfData, EndOfPartition, RuntimeEvent, StopMode

__all__ = ["GateActivity", "InputGate"]


class GateActivity(Protocol):
    """Is notified when a gate has something to read, and when it has nothing."""

    def on_data(self) -> None:
        """Be notified that there is something to read now."""
        ...

    def on_idle(self) -> None:
        """Be notified that there is nothing to read any more."""
        ...


class InputGate:
    """The channels of one input of a task: polled without waiting, awaited, iterated.

    Loop-local and, but for `available` and iteration, synchronous.

    Args:
        channels: At least one; each is given its index, from 0.
        name: Used in messages.

    Attributes:
        activity: Notified when there is something to read, and when there is nothing.
        availability: True while `poll_next` is worth calling, and for ever once the
            gate is finished or closed.
        priority_availability: True while a priority event is the next buffer.
        debloated_buffer_size_bytes: The size of buffers that producers were asked for,
            None if they were asked for none.

    Concept:
        Flink, ``SingleInputGate``.
    """

    # Only a gate whose buffers are bytes has them made smaller.
    debloated_buffer_size_bytes: int | None = None

    def __init__(self, channels: Sequence[InputChannel], *, name: str = "gate") -> None:
        if not channels:
            raise InvalidArgumentError("channels", "a gate needs at least one channel")
        self.availability: Availability = Availability()
        self.priority_availability: Availability = Availability()
        self.channels: list[InputChannel] = list(channels)
        self.name = name
        self.activity: GateActivity | None = None
        self._with_data: PrioritizedDeque[InputChannel] = PrioritizedDeque()
        self._is_queued = [False] * len(channels)
        self._priority_polled: list[int | None] = [None] * len(channels)
        self._data_ends: dict[int, StopMode] = {}
        self._partition_ended = [False] * len(channels)
        self._unfinished = len(channels)
        self._is_closed = False
        for index, channel in enumerate(self.channels):
            channel.attach(self, index)

    def __repr__(self) -> str:
        return (
            f"<InputGate {self.name!r}: {len(self._with_data)} of "
            f"{len(self.channels)} channels have data, {self._unfinished} unfinished>"
        )

    @property
    def channel_count(self) -> int:
        """Number of channels."""
        return len(self.channels)

    @property
    def is_finished(self) -> bool:
        """Whether every channel has come to the end of its partition."""
        return self._unfinished == 0

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    @property
    def end_of_data(self) -> StopMode | None:
        """How data ended, or None while some channel still has data to come.

        It ended with `StopMode.DRAIN` only if it did so on every channel.
        """
        if len(self._data_ends) < len(self.channels):
            return None
        drained = all(mode is StopMode.DRAIN for mode in self._data_ends.values())
        return StopMode.DRAIN if drained else StopMode.NO_DRAIN

    @property
    def unfinished_channels(self) -> list[int]:
        """Indices of the channels that have not come to their end."""
        return [index for index, ended in enumerate(self._partition_ended) if not ended]

    def request_partitions(self) -> None:
        """Connect every channel to its producer; an error surfaces at a poll."""
        for channel in self.channels:
            channel.request_subpartition()

    def poll_next(self) -> tuple[int, ObjectBuffer] | None:
        """Take the next buffer, fairly among the channels.

        Returns:
            The channel's index and the buffer, which the caller recycles; None if
            nothing can be taken now, and always once the gate is finished.

        Raises:
            GateClosedError: If the gate was closed before its end.
            BaseException: The error of a channel.
        """
        queue = self._with_data
        while queue:
            taken = self._take(queue.popleft())
            if taken is not None:
                return taken
        if self._is_closed and self._unfinished:
            raise GateClosedError(f"{self!r} was closed; stop polling it")
        self._settle()
        return None

    def poll_priority(self) -> tuple[int, ObjectBuffer] | None:
        """Take the next priority event.

        Returns:
            As `poll_next`; None if there is none, or none any more.
        """
        queue = self._with_data
        while queue.priority_count:
            channel = queue.popleft()
            # The notice and the queue are not one step: the default action may have
            # taken it (FLINK-20654).
            if channel.has_priority:
                taken = self._take(channel)
                if taken is not None:
                    return taken
            else:
                # Its event was taken meanwhile: it is a channel like the others again.
                self._is_queued[channel.index] = False
                self._enqueue(channel, has_priority=False)
        self._settle()
        return None

    def available(self) -> asyncio.Future[None]:
        """Return a fresh future that completes when polling is worth it.

        Cancelling it affects no other waiter. The caller checks again when it resumes.
        """
        return self.availability.waiter()

    def __aiter__(self) -> InputGate:
        return self

    async def __anext__(self) -> tuple[int, ObjectBuffer]:
        """Wait for the next buffer; the caller recycles it.

        Ends when the gate is finished.
        """
        while (item := self.poll_next()) is None:
            if self.is_finished:
                raise StopAsyncIteration
            await self.availability.wait()
        return item

    def resume_consumption(self, channel_index: int) -> None:
        """Go on reading a channel after an event that blocked upstream.

        Raises:
            IllegalStateError: If nothing blocks.
        """
        self.channels[channel_index].resume_consumption()

    def prioritize(self, channel_index: int, sequence_number: int) -> None:
        """Let a queued barrier that was announced overtake what is before it."""
        self.channels[channel_index].prioritize(sequence_number)

    def in_flight(self, channel_index: int, checkpoint_id: int) -> list[bytes]:
        """Return what has arrived on a channel before a checkpoint's barrier."""
        return self.channels[channel_index].in_flight(checkpoint_id)

    def acknowledge_all_data_processed(self, channel_index: int) -> None:
        """Tell a channel's producer that all its records have been processed."""
        self.channels[channel_index].acknowledge_all_data_processed()

    def statistics(self) -> list[ChannelStatistics]:
        """Return a snapshot per channel, in order."""
        return [channel.statistics() for channel in self.channels]

    def credits(self) -> list[ChannelCredit | None]:
        """Return each channel's credit for metrics, None for one that needs none."""
        return [channel.credit() for channel in self.channels]

    def pools(self) -> list[PoolStatistics]:
        """Return the pools that channels share, each once."""
        shared = [channel.floating_pool() for channel in self.channels]
        # By identity, in the order of the channels: a pool has no equality of its own.
        return [pool.statistics() for pool in dict.fromkeys(shared) if pool is not None]

    def close(self) -> None:
        """Release every channel and wake all waiters. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._with_data.clear()
        self._is_queued = [False] * len(self.channels)
        for channel in self.channels:
            channel.release()
        self.availability.set_available()
        self.priority_availability.set_available()

    def on_channel_data(self, channel: InputChannel) -> None:
        """Be notified that a channel has something to take, an error included."""
        index = channel.index
        # A notice that crosses the end of its partition is stale.
        if self._is_queued[index] or self._partition_ended[index] or self._is_closed:
            return
        self._enqueue(channel, has_priority=False)

    def on_channel_priority(self, channel: InputChannel, sequence_number: int) -> None:
        """Be notified that a channel's next buffer has priority.

        A number that is not after the last priority event taken is stale: ignored.
        """
        index = channel.index
        polled = self._priority_polled[index]
        if polled is not None and not _is_after(sequence_number, polled):
            return
        if not self._partition_ended[index] and not self._is_closed:
            self._enqueue(channel, has_priority=True)

    def _take(self, channel: InputChannel) -> tuple[int, ObjectBuffer] | None:
        """Poll a channel that was taken out of the queue."""
        # Before the poll, for what it wakes may queue the channel again.
        self._is_queued[channel.index] = False
        try:
            polled = channel.poll()
        except BaseException:
            # The error stays where the next poll finds it again.
            self._enqueue(channel, has_priority=False)
            raise
        return None if polled is None else self._accept(channel, polled)

    def _enqueue(self, channel: InputChannel, *, has_priority: bool) -> None:
        queue = self._with_data
        index = channel.index
        if not self._is_queued[index]:
            self._is_queued[index] = True
            if has_priority:
                queue.append_priority(channel)
            else:
                queue.append(channel)
        elif has_priority:
            queue.prioritize(channel)
        if has_priority and not self.priority_availability.available:
            self.priority_availability.set_available()
        # Before the latch turns: the measurement of throughput starts with the data.
        if not self.availability.available:
            if self.activity is not None:
                self.activity.on_data()
            self.availability.set_available()

    def _accept(
        self, channel: InputChannel, polled: PolledBuffer
    ) -> tuple[int, ObjectBuffer]:
        index = channel.index
        buffer = polled.buffer
        event = buffer.event
        if event is not None:
            if event.is_priority:
                # Notices of events up to this one are stale from now on.
                self._priority_polled[index] = polled.sequence_number
            self._on_event(channel, event)
        # At the tail: channels take turns, one buffer each.
        if polled.more_available and not self._partition_ended[index]:
            self._enqueue(channel, has_priority=polled.next_is_priority)
        self._settle()
        return index, buffer

    def _on_event(self, channel: InputChannel, event: RuntimeEvent) -> None:
        index = channel.index
        if isinstance(event, EndOfData):
            if index in self._data_ends:
                raise CorruptStreamError(
                    f"channel {index} of {self!r} ended its data twice"
                )
            self._data_ends[index] = event.mode
        elif isinstance(event, EndOfPartition):
            self._partition_ended[index] = True
            self._unfinished -= 1
            channel.release()

    def _settle(self) -> None:
        """Make both latches true to the queue."""
        if not self._with_data and self.availability.available:
            # A finished gate stays available, so that waiters see its end.
            if self._unfinished and not self._is_closed:
                self.availability.reset()
                if self.activity is not None:
                    self.activity.on_idle()
        elif not self._unfinished and not self.availability.available:
            self.availability.set_available()
        if (
            not self._with_data.priority_count
            and self.priority_availability.available
            and not self._is_closed
        ):
            self.priority_availability.reset()


def _is_after(sequence_number: int, reference: int) -> bool:
    """Compare numbers that wrap around: after means less than half a turn ahead."""
    # Numbers are unsigned 32-bit: a distance below half the circle is "after".
    distance = (sequence_number - reference) % SEQUENCE_MODULUS
    return 0 < distance < SEQUENCE_MODULUS // 2
