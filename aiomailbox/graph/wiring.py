"""Which subtask talks to which (pure)."""

from __future__ import annotations

from aiomailbox.exchange.partitioner import ForwardPartitioner, Partitioner


def consumers_of(
    partitioner: Partitioner, producer_index: int, producers: int, consumers: int
) -> list[int]:
    """Return the consumer subtasks that one producer subtask sends to, in order.

    Forward joins equal indexes. Other pointwise exchanges (rescale) join each
    producer to its share of the consumers; all-to-all joins each to all of them.

    Args:
        partitioner: The exchange's partitioner.
        producer_index: From 0 to ``producers - 1``.
        producers: Subtasks that send, at least 1.
        consumers: Subtasks that receive, at least 1.

    Concept:
        Flink, ``VertexInputInfoComputationUtils`` (POINTWISE, ALL_TO_ALL).

    Example:
        >>> from aiomailbox.exchange import RescalePartitioner
        >>> [consumers_of(RescalePartitioner(), index, 2, 4) for index in range(2)]
        [[0, 1], [2, 3]]
    """
    if isinstance(partitioner, ForwardPartitioner):
        return [producer_index]
    if not partitioner.is_pointwise:
        return list(range(consumers))
    if producers >= consumers:
        return [_ceil_share(producer_index, consumers, producers)]
    return [
        consumer
        for consumer in range(consumers)
        if consumer * producers // consumers == producer_index
    ]


def _ceil_share(producer_index: int, consumers: int, producers: int) -> int:
    """Return the consumer whose range of producers holds this one."""
    for consumer in range(consumers):
        start = -(-consumer * producers // consumers)
        end = -(-(consumer + 1) * producers // consumers)
        if start <= producer_index < end:
            return consumer
    return consumers - 1
