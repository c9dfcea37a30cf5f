"""How the records of a stream are spread over the subtasks of what comes next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from aiomailbox.api.broadcast import BroadcastStream
from aiomailbox.exchange import (
    BroadcastPartitioner,
    CustomPartitioner,
    ForwardPartitioner,
    GlobalPartitioner,
    Partitioner,
    RebalancePartitioner,
    RescalePartitioner,
    ShufflePartitioner,
)
from aiomailbox.operators import check_function, field_or_function
from aiomailbox.state import MapStateDescriptor

StreamT = TypeVar("StreamT")


class Partitioning(Generic[StreamT]):
    """Methods that return the same records, spread in another way."""

    def _partitioned(self, partitioner: Partitioner) -> StreamT:
        raise TypeError(f"{type(self).__name__} does not define _partitioned")

    def forward(self) -> StreamT:
        """Keep records in their subtask; the parallelism must be equal."""
        return self._partitioned(ForwardPartitioner())

    def rebalance(self) -> StreamT:
        """Deal records out to all subtasks in turn."""
        return self._partitioned(RebalancePartitioner())

    def rescale(self) -> StreamT:
        """Deal records out to the subtasks nearby in turn."""
        return self._partitioned(RescalePartitioner())

    def shuffle(self) -> StreamT:
        """Give each record to a subtask chosen at random."""
        return self._partitioned(ShufflePartitioner())

    @overload
    def broadcast(self) -> StreamT: ...

    @overload
    def broadcast(self, *descriptors: MapStateDescriptor) -> BroadcastStream: ...

    def broadcast(self, *descriptors: MapStateDescriptor) -> StreamT | BroadcastStream:
        """Give every record to every subtask.

        Args:
            *descriptors: Broadcast state, to keep what the records say: rules, prices.

        Returns:
            Without descriptors a stream; with them what `DataStream.connect` takes for
            a `BroadcastProcessFunction`.
        """
        stream = self._partitioned(BroadcastPartitioner())
        return BroadcastStream(stream, descriptors) if descriptors else stream

    def global_(self) -> StreamT:
        """Give every record to the first subtask."""
        return self._partitioned(GlobalPartitioner())

    def partition_custom(
        self, partitioner: Callable[[Any, int], int], key: str | Callable[[Any], Any]
    ) -> StreamT:
        """Give each record to the subtask that ``partitioner(key, count)`` names."""
        check_function(partitioner, "partitioner", arity=2)
        return self._partitioned(
            CustomPartitioner(partitioner, field_or_function(key, "key"))
        )
