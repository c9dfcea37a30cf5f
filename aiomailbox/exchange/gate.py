"""An input gate: several channels read fairly, buffer by buffer.

Theory of operation: a channel with something to take is queued once; the gate takes one
buffer of the first channel and queues it again, behind the others, if more is there.
Channels with a priority event stand before all others. The gate is available exactly
while a channel is queued, and for ever once it is finished or closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from aiomailbox.availability import Availability
from aiomailbox.errors import (
    CorruptStreamError,
    GateClosedError,
    IllegalStateError,
    InvalidArgumentError,
    PartitionNotFoundError,
    StopTask,
)
from aiomailbox.exchange.core.contract import (
    SEQUENCE_MODULUS,
    BytesView,
    ChannelCredit,
    ChannelStatistics,
    DataListener,
    ObjectBuffer,
    ObjectView,
    OutputPartition,
    PolledBuffer,
)
from aiomailbox.exchange.core.subpartition import PrioritizedDeque
from aiomailbox.ids import PartitionId, SubtaskId
from aiomailbox.memory.local_pool import LocalBufferPool, PoolStatistics
from aiomailbox.records.events import EndOfData, EndOfPartition, RuntimeEvent, StopMode

# Where consumers find the partitions of this process.


class PartitionRegistry:
    """Partitions by id; the id names the producer's attempt.

    A partition leaves when its producer and all its consumers have released it.

    Concept:
        Flink, ``ResultPartitionManager``.

    Example:
        >>> len(PartitionRegistry())
        0
    """

    def __init__(self) -> None:
        self._partitions: dict[PartitionId, OutputPartition] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, partition_id: PartitionId) -> bool:
        return partition_id in self._partitions

    def register(self, partition: OutputPartition) -> None:
        """Make a partition findable until it is consumed.

        Raises:
            IllegalStateError: If its id is taken.
        """
        partition_id = partition.partition_id
        if partition_id in self._partitions:
            raise IllegalStateError(
                f"partition {partition_id} is registered already; every attempt of a "
                "task has partitions of its own"
            )
        self._partitions[partition_id] = partition
        partition.on_consumed(lambda: self._forget(partition))

    def find(self, partition_id: PartitionId) -> OutputPartition:
        """Return a partition.

        Raises:
            PartitionNotFoundError: If it is not there (yet, or any more).
        """
        partition = self._partitions.get(partition_id)
        if partition is None:
            raise PartitionNotFoundError(
                f"partition {partition_id} is not registered: its producer has not "
                "started, or is gone"
            )
        return partition

    def create_bytes_view(
        self,
        partition_id: PartitionId,
        subpartition_index: int,
        listener: DataListener,
        *,
        receiver_exclusive_buffers: int,
    ) -> BytesView:
        """Return the one view of a subpartition for a remote reader.

        Args:
            partition_id: Which partition.
            subpartition_index: Which of its channels.
            listener: Notified from now on; not about what is queued.
            receiver_exclusive_buffers: How many the reader has of its own.

        Raises:
            PartitionNotFoundError: If the partition is not there (yet).
            InvalidArgumentError: If no remote reader was declared for it.
            IllegalStateError: If the subpartition has a view already.
        """
        return self.find(partition_id).create_bytes_view(
            subpartition_index,
            listener,
            receiver_exclusive_buffers=receiver_exclusive_buffers,
        )

    def release(
        self, partition_id: PartitionId, failure: BaseException | None = None
    ) -> None:
        """Release a partition and forget it; a no-op if it is not there."""
        partition = self._partitions.pop(partition_id, None)
        if partition is not None:
            partition.release(failure)

    def release_outputs(self, tasks: Collection[SubtaskId]) -> None:
        """Release the partitions that any attempt of some tasks has made."""
        for partition_id in list(self._partitions):
            producer = partition_id.producer
            if SubtaskId(producer.vertex, producer.subtask_index) in tasks:
                self.release(partition_id)

    def release_all(self) -> None:
        """Release every partition."""
        for partition_id in list(self._partitions):
            self.release(partition_id)

    def _forget(self, partition: OutputPartition) -> None:
        if self._partitions.get(partition.partition_id) is partition:
            del self._partitions[partition.partition_id]


# Input channels: one per subpartition that a gate reads.


class InputChannel:
    """Base of channels: their place in the gate, and their first error.

    Concept:
        Flink, ``InputChannel``.
    """

    index: int
    error: BaseException | None
    is_released: bool
    _gate: InputGate

    def __init__(self) -> None:
        self.index = 0
        self.error = None
        self.is_released = False

    def attach(self, gate: InputGate, index: int) -> None:
        """Take a place in a gate; called once, by the gate."""
        self._gate = gate
        self.index = index

    def request_subpartition(self) -> None:
        """Connect to the producer. An error surfaces at the next `poll`."""
        raise TypeError(f"{type(self).__name__} does not define request_subpartition")

    def poll(self) -> PolledBuffer | None:
        """Take the next buffer, or None; raises the channel's error if it has one."""
        raise TypeError(f"{type(self).__name__} does not define poll")

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event."""
        return False

    def resume_consumption(self) -> None:
        """Go on after an event that blocked upstream."""
        raise TypeError(f"{type(self).__name__} does not define resume_consumption")

    def prioritize(self, sequence_number: int) -> None:
        """Let the barrier of that number overtake what is queued before it.

        Only barriers of other processes are announced before they can be read.
        """

    def in_flight(self, checkpoint_id: int) -> list[bytes]:
        """Return what has arrived here before a checkpoint's barrier, to be kept.

        On one loop nothing is on its way: buffers not yet taken are the producer's.
        """
        return []

    def acknowledge_all_data_processed(self) -> None:
        """Tell the producer that all its records have been processed."""

    def release(self) -> None:
        """Release the producer; recycles what is queued. Idempotent."""
        self.is_released = True

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot for metrics."""
        return ChannelStatistics()

    def credit(self) -> ChannelCredit | None:
        """Return the credit of the channel for metrics; None if it needs none.

        On one loop buffers are handed over: the producer's permits are the bound.
        """
        return None

    def floating_pool(self) -> LocalBufferPool | None:
        """Return the pool that the channel borrows from with others of its gate."""
        return None

    def on_data_available(self) -> None:
        """Pass on to the gate that something can be taken."""
        self._gate.on_channel_data(self)

    def on_priority_event(self, sequence_number: int) -> None:
        """Pass on to the gate that the next buffer has priority."""
        self._gate.on_channel_priority(self, sequence_number)

    def set_error(self, error: BaseException) -> None:
        """Let the task trip over an error at its next poll; the first one wins."""
        # The first is the cause; what follows is usually its echo.
        if self.error is None:
            self.error = error
        # As if it had data: the task trips over it where it may raise.
        self._gate.on_channel_data(self)


class LocalInputChannel(InputChannel):
    """Reads a subpartition of the same loop: buffers are handed over, not copied.

    Args:
        registry: Where the partition is found.
        partition_id: Which partition.
        subpartition_index: Which of its subpartitions.
        retry_initial_ms: First wait if the partition is not there yet; 0 never waits.
        retry_max_ms: Longest wait; after it the partition counts as missing.

    Concept:
        Flink, ``LocalInputChannel``.
    """

    def __init__(
        self,
        registry: PartitionRegistry,
        partition_id: PartitionId,
        subpartition_index: int,
        *,
        retry_initial_ms: int = 100,
        retry_max_ms: int = 10_000,
    ) -> None:
        super().__init__()
        self.partition_id = partition_id
        self.subpartition_index = subpartition_index
        self._registry = registry
        self._delays_ms = retry_delays_ms(retry_initial_ms, retry_max_ms)
        self._retry: asyncio.TimerHandle | None = None
        self._view: ObjectView | None = None

    def __repr__(self) -> str:
        return (
            f"<LocalInputChannel {self.index}: "
            f"{self.partition_id}[{self.subpartition_index}]>"
        )

    def request_subpartition(self) -> None:
        """Connect to the producer, again and again until it is there.

        A partition that never appears makes the next `poll` raise.
        """
        self._retry = None
        if self.is_released or self._view is not None:
            return
        try:
            partition = self._registry.find(self.partition_id)
            self._view = partition.create_view(self.subpartition_index, self)
        except PartitionNotFoundError as error:
            delay_ms = next(self._delays_ms, None)
            if delay_ms is None:
                self.set_error(error)
                return
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(delay_ms / 1000, self.request_subpartition)
            return
        except Exception as error:  # noqa: BLE001 -- in a timer it would vanish
            self.set_error(error)
            return
        # Of what was queued before the view existed, nothing was notified.
        self._view.tell_again()

    def poll(self) -> PolledBuffer | None:
        """Take the next buffer.

        Returns:
            The buffer that was taken, or None if there is none now.

        Raises:
            StopTask: If the producer has released its partition before the end.
            BaseException: The channel's own error, if it has one.
        """
        if self.error is not None:
            raise self.error
        view = self._view
        if view is None:
            return None
        polled = view.poll()
        if polled is None and view.is_released and not self.is_released:
            # No failure of this task's: the failed task reports it itself, and the job
            # names that one.
            raise StopTask(
                f"the producer of {self.partition_id} released it before its end"
            ) from view.failure
        return polled

    @property
    def has_priority(self) -> bool:
        view = self._view
        return view is not None and not view.is_released and view.has_priority

    def resume_consumption(self) -> None:
        """Go on after an event that blocked upstream.

        Raises:
            IllegalStateError: If nothing blocks.
        """
        view = self._view
        if view is not None and not view.is_released:
            view.resume_consumption()

    def acknowledge_all_data_processed(self) -> None:
        if self._view is not None:
            self._view.acknowledge_all_data_processed()

    def release(self) -> None:
        self.is_released = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._view is not None:
            self._view.release()

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot for metrics; counting what is queued takes a walk."""
        if self._view is None:
            return ChannelStatistics()
        return self._view.statistics()


def retry_delays_ms(initial_ms: int, maximum_ms: int) -> Iterator[int]:
    """Yield waits that double up to a maximum, which is the last one.

    Concept:
        Flink, ``InputChannel.increaseBackoff``.

    Example:
        >>> list(retry_delays_ms(500, 3000))
        [500, 1000, 2000, 3000]
        >>> list(retry_delays_ms(0, 3000))
        []
    """
    delay_ms = min(initial_ms, maximum_ms)
    while 0 < delay_ms < maximum_ms:
        yield delay_ms
        delay_ms = min(2 * delay_ms, maximum_ms)
    if delay_ms > 0:
        yield delay_ms


class GateActivity(Protocol):
    """Is notified when a gate has something to read, and when it has nothing."""

    def on_data(self) -> None:
        """Be notified that there is something to read now."""

    def on_idle(self) -> None:
        """Be notified that there is nothing to read any more."""


class InputGate:
    """The channels of one input of a task: polled without waiting, awaited, iterated.

    Loop-local and, but for `available` and iteration, synchronous.

    Args:
        channels: At least one; each is given its index, from 0.
        name: Used in messages.

    Attributes:
        is_closed: Whether `close` was called.
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
        self.is_closed: bool = False
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
        if self.is_closed and self._unfinished:
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
        if self.is_closed:
            return
        self.is_closed = True
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
        if self._is_queued[index] or self._partition_ended[index] or self.is_closed:
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
        if not self._partition_ended[index] and not self.is_closed:
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
            if self._unfinished and not self.is_closed:
                self.availability.reset()
                if self.activity is not None:
                    self.activity.on_idle()
        elif not self._unfinished and not self.availability.available:
            self.availability.set_available()
        if (
            not self._with_data.priority_count
            and self.priority_availability.available
            and not self.is_closed
        ):
            self.priority_availability.reset()


def _is_after(sequence_number: int, reference: int) -> bool:
    """Compare numbers that wrap around: after means less than half a turn ahead."""
    # Numbers are unsigned 32-bit: a distance below half the circle is "after".
    distance = (sequence_number - reference) % SEQUENCE_MODULUS
    return 0 < distance < SEQUENCE_MODULUS // 2
