"""What partitions have in common, whatever their buffers hold.

Theory of operation: a partition is its subpartitions, the pool that bounds them together,
and a count of its users. It is there until its producer and all readers have released
it. Where a partition has two parts, each with some of its channels, they share the pool
and the count.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from aiomailbox.availability import Availability
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.exchange.core.contract import (
    ChannelStatistics,
    DataListener,
    PartitionUsers,
)
from aiomailbox.exchange.core.subpartition import ObjectView, ResultSubpartition
from aiomailbox.ids import PartitionId
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records import Control
from aiomailbox.records.events import EndOfData, RuntimeEvent, StopMode
from aiomailbox.records.run import Run

S = TypeVar("S", bound=ResultSubpartition[Any])


class PartitionOutput(abc.ABC):
    """What a whole partition and one of its parts have in common.

    Args:
        partition_id: Whose output, and towards which edge.
        pool: Says whether another buffer fits.
        users: Counts its releases, and the consumers that have processed it all.

    Attributes:
        partition_id: As given.
        availability: True while another buffer fits: the pool's own latch.
    """

    __slots__ = ("_is_released", "_users", "availability", "partition_id")

    def __init__(
        self, partition_id: PartitionId, pool: LocalBufferPool, users: PartitionUsers
    ) -> None:
        self.partition_id: PartitionId = partition_id
        self.availability: Availability = pool.availability
        self._is_released = False
        self._users = users

    @property
    def is_released(self) -> bool:
        """Whether nothing is kept for consumers any more."""
        return self._is_released or self._users.have_left

    @property
    def all_data_processed(self) -> Availability:
        """Turns true when each consumer has acknowledged the end of data."""
        return self._users.all_data_processed

    @abc.abstractmethod
    def flush_all(self) -> None:
        """Let every consumer take what is queued."""

    async def writable(self) -> None:
        """Suspend until another buffer fits; returns at once if one does.

        Flushes before it suspends: a permit that an unfinished buffer holds would
        never come back.
        """
        while not self.availability.available:
            self.flush_all()
            await self.availability.waiter()

    async def settle(self) -> None:
        """Return at once: consumers take what is queued while they run."""
        return

    def on_consumed(self, callback: Callable[[], None]) -> None:
        """Call back once: all have released it, or everything was released."""
        self._users.on_consumed(callback)


class PipelinedOutput(PartitionOutput, Generic[S]):
    """Base of partitions that are read while they are written, and of their parts.

    Args:
        partition_id: Whose output, and towards which edge.
        pool: Owned, and destroyed in the end.
        subpartitions: Shape ``(subpartition_count,)``.
        channels: Which of the output's channels these are; None for all, in order.
        users: Counts the users of the whole partition; None if this is the whole.

    Concept:
        Flink, ``PipelinedResultPartition``.
    """

    __slots__ = ("_channels", "_end_of_data", "_is_closed", "_pool", "subpartitions")

    def __init__(
        self,
        partition_id: PartitionId,
        pool: LocalBufferPool,
        subpartitions: Sequence[S],
        *,
        channels: Sequence[int] | None = None,
        users: PartitionUsers | None = None,
    ) -> None:
        count = len(subpartitions)
        super().__init__(
            partition_id, pool, users or PartitionUsers(partition_id, count)
        )
        self.subpartitions: list[S] = list(subpartitions)
        self._channels = range(count) if channels is None else channels
        self._pool = pool
        self._is_closed = False
        self._end_of_data = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.partition_id}: {self.subpartitions!r}>"

    @property
    def subpartition_count(self) -> int:
        """Number of consumers."""
        return len(self.subpartitions)

    @property
    def queued_buffers(self) -> int:
        """Buffers queued in all subpartitions, events included."""
        return sum(each.queued_buffers for each in self.subpartitions)

    @property
    def has_unflushed_data(self) -> bool:
        """Whether anything is queued that its consumer cannot take yet."""
        return any(each.has_unflushed_data for each in self.subpartitions)

    @abc.abstractmethod
    def broadcast_event(self, event: RuntimeEvent) -> None:
        """Queue an event for every consumer, in a buffer of its own."""

    @abc.abstractmethod
    def _stop_writing(self) -> None:
        """Release the buffers that are written to."""

    def flush(self, channel: int) -> None:
        """Let one consumer take what is queued, the unfinished buffer included."""
        self.subpartitions[channel].flush()

    def flush_all(self) -> None:
        """Let every consumer take what is queued."""
        for subpartition in self.subpartitions:
            subpartition.flush()

    def notify_end_of_data(self, mode: StopMode) -> None:
        """Tell every consumer that no more records follow. Idempotent."""
        if not self._end_of_data:
            self._end_of_data = True
            self.broadcast_event(EndOfData(mode))

    def acknowledge_all_data_processed(self, channel: int) -> None:
        """Be notified that a consumer has processed all records; repeats are ignored."""
        self._users.acknowledge(self._channels[channel])

    def drop_user(self) -> None:
        """Be notified that one consumer, or the producer, has released it.

        Raises:
            IllegalStateError: If that happens more often than there are users.
        """
        self._users.drop()

    def close(self) -> None:
        """End the producer's part; what is queued stays for the consumers. Idempotent.

        The pool lends nothing more; what is out returns as buffers are recycled.
        """
        if self._is_closed:
            return
        self._is_closed = True
        # Before the pool goes: a buffer that is written to holds a permit.
        self._stop_writing()
        self._pool.lazy_destroy()
        self.drop_user()

    def release(self, failure: BaseException | None = None) -> None:
        """Release everything that is queued, and end what reads it. Idempotent.

        Args:
            failure: Why, when the producer failed: consumers chain it to their error.
        """
        self.release_part(failure)
        self._users.leave()

    def release_part(self, failure: BaseException | None = None) -> None:
        """Do as `release`, but call nothing back: other parts are still to follow."""
        if self.is_released:
            return
        # First: releasing subpartitions recycles, which may wake a task that emits.
        self._is_released = True
        for subpartition in self.subpartitions:
            subpartition.release(failure)
        self.close()

    def _subpartition(self, index: int) -> S:
        if not 0 <= index < len(self.subpartitions):
            raise InvalidArgumentError(
                "subpartition_index",
                f"{index} is not among the {len(self.subpartitions)} of partition "
                f"{self.partition_id}",
            )
        return self.subpartitions[index]


def check_count(subpartition_count: int) -> None:
    """Check a number of subpartitions.

    Raises:
        InvalidArgumentError: If there is none.
    """
    if subpartition_count < 1:
        raise InvalidArgumentError(
            "subpartition_count", f"{subpartition_count} is less than 1"
        )


# What a task, its writers and the registry use of a partition, of whichever kind.


class OutputPartition(Protocol):
    """A task's output towards one edge: one channel per consumer.

    `ResultPartition` where all consumers are on this loop, `MixedResultPartition`
    where some are not.

    Attributes:
        partition_id: Whose output, and towards which edge.
        availability: True while another buffer fits.
    """

    partition_id: PartitionId
    availability: Availability

    @property
    def is_released(self) -> bool:
        """Whether nothing is kept for consumers any more."""
        ...

    @property
    def all_data_processed(self) -> Availability:
        """Turns true when each consumer has acknowledged the end of data."""
        ...

    @property
    def subpartition_count(self) -> int:
        """Number of consumers."""
        ...

    @property
    def queued_buffers(self) -> int:
        """Buffers queued for all consumers, events included."""
        ...

    @property
    def has_unflushed_data(self) -> bool:
        """Whether anything is queued that its consumer cannot take yet."""
        ...

    def statistics(self) -> list[ChannelStatistics]:
        """Return a snapshot per channel, in order."""
        ...

    def emit_run(self, run: Run, channel: int) -> bool:
        """Queue records for one consumer; says whether something awaits a flush."""
        ...

    def broadcast_run(self, run: Run) -> bool:
        """Queue records for every consumer; returns as `emit_run`."""
        ...

    def emit_control(self, element: Control, channel: int) -> bool:
        """Queue a control element for one consumer; returns as `emit_run`."""
        ...

    def broadcast_control(self, element: Control) -> bool:
        """Queue a control element for every consumer; returns as `emit_run`."""
        ...

    def broadcast_event(self, event: RuntimeEvent) -> None:
        """Queue an event for every consumer, in a buffer of its own."""
        ...

    async def writable(self) -> None:
        """Suspend until another buffer fits; flushes before it does."""
        ...

    def flush(self, channel: int) -> None:
        """Let one consumer take what is queued."""
        ...

    def flush_all(self) -> None:
        """Let every consumer take what is queued."""
        ...

    def notify_end_of_data(self, mode: StopMode) -> None:
        """Tell every consumer that no more records follow. Idempotent."""
        ...

    def acknowledge_all_data_processed(self, channel: int) -> None:
        """Be notified that a consumer has processed all records."""
        ...

    def finish(self) -> None:
        """Tell every consumer that nothing at all follows, and close. Idempotent."""
        ...

    async def settle(self) -> None:
        """Suspend until what was emitted outlives its task, if that is its nature."""
        ...

    def create_view(
        self, subpartition_index: int, listener: DataListener
    ) -> ObjectView:
        """Return the one view of a channel for a consumer on this loop."""
        ...

    def on_consumed(self, callback: Callable[[], None]) -> None:
        """Call back once: all have released it, or everything was released."""
        ...

    def close(self) -> None:
        """End the producer's part; what is queued stays. Idempotent."""
        ...

    def release(self, failure: BaseException | None = None) -> None:
        """Recycle everything that is queued, and end what reads it. Idempotent."""
        ...
