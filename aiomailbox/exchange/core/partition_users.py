"""What still uses a partition: its producer, and each of its consumers."""

from __future__ import annotations

from collections.abc import Callable

from aiomailbox.availability import Availability
from aiomailbox.errors import IllegalStateError
from aiomailbox.ids import PartitionId

__all__ = ["PartitionUsers"]


class PartitionUsers:
    """Counts the releases of a partition, and the consumers that have processed it all.

    Args:
        partition_id: Used in messages.
        consumers: How many there are.
        producers: How many parts the partition is written in.

    Attributes:
        all_data_processed: Turns true when each consumer has acknowledged the end of
            data.

    Concept:
        Flink, ``PipelinedResultPartition.numberOfUsers``.

    Example:
        >>> from aiomailbox.ids import PartitionId, TaskId, VertexId
        >>> users = PartitionUsers(PartitionId(TaskId(VertexId(0), 0, 0), 0), 1)
        >>> users.on_consumed(lambda: print("all have released it"))
        >>> users.drop()
        >>> users.have_left
        False
        >>> users.drop()
        all have released it
    """

    __slots__ = (
        "_acknowledged",
        "_consumers",
        "_on_consumed",
        "_partition_id",
        "_users",
        "all_data_processed",
    )

    def __init__(
        self, partition_id: PartitionId, consumers: int, *, producers: int = 1
    ) -> None:
        self.all_data_processed: Availability = Availability()
        self._partition_id = partition_id
        self._consumers = consumers
        # The last one to leave drops the partition.
        self._users = consumers + producers
        self._acknowledged: set[int] = set()
        self._on_consumed: Callable[[], None] | None = None

    @property
    def have_left(self) -> bool:
        """Whether the partition is not used any more."""
        return not self._users

    def acknowledge(self, consumer: int) -> None:
        """Be notified that a consumer has processed all records; repeats are ignored."""
        self._acknowledged.add(consumer)
        if len(self._acknowledged) == self._consumers:
            self.all_data_processed.set_available()

    def drop(self) -> None:
        """Be notified that one consumer, or producer, has released the partition.

        Raises:
            IllegalStateError: If that happens more often than there are users.
        """
        self._users -= 1
        if self._users < 0:
            raise IllegalStateError(
                f"partition {self._partition_id} was released more often than it was used"
            )
        if not self._users:
            self.leave()

    def on_consumed(self, callback: Callable[[], None]) -> None:
        """Call back once: all have released it, or everything was released."""
        self._on_consumed = callback

    def leave(self) -> None:
        """Call back now, if that did not happen before."""
        callback, self._on_consumed = self._on_consumed, None
        if callback is not None:
            callback()
