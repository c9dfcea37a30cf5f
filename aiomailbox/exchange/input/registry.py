"""Where consumers find the partitions of this process."""

from __future__ import annotations

from collections.abc import Collection

from aiomailbox.errors import (
    IllegalStateError,
    InvalidArgumentError,
    PartitionNotFoundError,
)
from aiomailbox.exchange.core.contract import DataListener
from aiomailbox.exchange.core.output import OutputPartition
from aiomailbox.exchange.core.views import BytesView, ObjectView, ServesBytes
from aiomailbox.ids import PartitionId, SubtaskId

__all__ = ["PartitionRegistry"]


class PartitionRegistry:
    """Partitions by id; the id names the producer's attempt.

    A partition leaves when its producer and all its consumers have released it.

    Concept:
        Flink, ``ResultPartitionManager``.

    Example:
        >>> len(PartitionRegistry())
        0
    """

    __slots__ = ("_partitions",)

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

    def create_view(
        self, partition_id: PartitionId, subpartition_index: int, listener: DataListener
    ) -> ObjectView:
        """Return the one view of a subpartition.

        Raises:
            PartitionNotFoundError: If the partition is not there.
            IllegalStateError: If the subpartition has a view already.
        """
        return self.find(partition_id).create_view(subpartition_index, listener)

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
        partition = self.find(partition_id)
        if not isinstance(partition, ServesBytes):
            raise InvalidArgumentError(
                "partition_id",
                f"all consumers of partition {partition_id} are on its own loop",
            )
        return partition.create_bytes_view(
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

    def release_all(self, failure: BaseException | None = None) -> None:
        """Release every partition."""
        for partition_id in list(self._partitions):
            self.release(partition_id, failure)

    def _forget(self, partition: OutputPartition) -> None:
        if self._partitions.get(partition.partition_id) is partition:
            del self._partitions[partition.partition_id]
