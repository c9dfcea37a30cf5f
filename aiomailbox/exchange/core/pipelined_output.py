"""What partitions have in common, whatever their buffers hold.

Theory of operation: a partition is its subpartitions, the pool that bounds them together,
and a count of who uses it. It is there until its producer and all readers have let go.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from aiomailbox.availability import Availability
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.exchange.core.partition_users import PartitionUsers
from aiomailbox.exchange.core.subpartition import ResultSubpartition
from aiomailbox.ids import PartitionId
from aiomailbox.memory import LocalBufferPool
from aiomailbox.records import EndOfData, RuntimeEvent, StopMode

__all__ = ["PipelinedOutput", "check_count"]

S = TypeVar("S", bound=ResultSubpartition[Any])


class PipelinedOutput(abc.ABC, Generic[S]):
    """Base of partitions that are read while they are written.

    Args:
        partition_id: Whose output, and towards which edge.
        pool: Owned, and destroyed in the end.
        subpartitions: Shape ``(subpartition_count,)``.

    Concept:
        Flink, ``PipelinedResultPartition``.
    """

    __slots__ = (
        "_end_of_data",
        "_is_closed",
        "_pool",
        "_users",
        "availability",
        "is_released",
        "partition_id",
        "subpartitions",
    )

    def __init__(
        self,
        partition_id: PartitionId,
        pool: LocalBufferPool,
        subpartitions: Sequence[S],
    ) -> None:
        self.partition_id = partition_id
        self.availability: Availability = pool.availability
        self.subpartitions = list(subpartitions)
        self.is_released = False
        self._pool = pool
        self._users = PartitionUsers(partition_id, len(subpartitions))
        self._is_closed = False
        self._end_of_data = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.partition_id}: {self.subpartitions!r}>"

    @property
    def subpartition_count(self) -> int:
        """Number of consumers."""
        return len(self.subpartitions)

    @property
    def all_data_processed(self) -> Availability:
        """Turns true when each consumer has acknowledged the end of data."""
        return self._users.all_data_processed

    @property
    def has_unflushed_data(self) -> bool:
        """Whether anything is queued that its consumer cannot take yet."""
        return any(each.has_unflushed_data for each in self.subpartitions)

    @abc.abstractmethod
    def broadcast_event(self, event: RuntimeEvent) -> None:
        """Queue an event for every consumer, in a buffer of its own."""

    @abc.abstractmethod
    def _stop_writing(self) -> None:
        """Let go of the buffers that are written to."""

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
        """Take note that a consumer has processed all records; repeats are ignored."""
        self._users.acknowledge(channel)

    def on_consumed(self, callback: Callable[[], None]) -> None:
        """Call back once: all have let go, or everything was released."""
        self._users.on_consumed(callback)

    def drop_user(self) -> None:
        """Take note that one consumer, or the producer, has let go.

        Raises:
            IllegalStateError: If that happens more often than there are users.
        """
        if self._users.drop():
            self.is_released = True

    def close(self) -> None:
        """End the producer's part; what is queued stays for the consumers. Idempotent.

        The pool lends nothing more; what is out returns as buffers are recycled.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._stop_writing()
        self._pool.lazy_destroy()
        self.drop_user()

    def release(self, failure: BaseException | None = None) -> None:
        """Let go of everything that is queued, and end what reads it. Idempotent.

        Args:
            failure: Why, when the producer failed: consumers chain it to their error.
        """
        if self.is_released:
            return
        self.is_released = True
        for subpartition in self.subpartitions:
            subpartition.release(failure)
        self.close()
        self._users.leave()

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
