"""What the channels of a job are called, whatever its attempts and its chaining."""

from __future__ import annotations

import re
from typing import Final

from aiomailbox.exchange.partitioner import (
    CustomPartitioner,
    GlobalPartitioner,
    KeyGroupPartitioner,
    RebalancePartitioner,
    ShufflePartitioner,
)
from aiomailbox.graph.job_graph import Edge

__all__ = [
    "channel_name",
    "is_channel_of",
    "producer_of_channel",
    "why_never_unaligned",
]

# At the end of a channel's two halves.
_SUBTASKS: Final = re.compile(r"\[(\d+)/\d+\](?= to |$)")
_OVERTAKING: Final = (
    CustomPartitioner,
    GlobalPartitioner,
    KeyGroupPartitioner,
    RebalancePartitioner,
    ShufflePartitioner,
)


def channel_name(edge: Edge, producer: int, consumer: int) -> str:
    """Return the name of a channel: equal for its two ends, and for equal programs.

    With other numbers of subtasks it is another one, for records go to other subtasks then.

    Args:
        edge: The exchange.
        producer: The subtask that sends.
        consumer: The subtask that receives.
    """
    source, target = edge.source, edge.target
    number = source.out_edges.index(edge)
    return (
        f"{source.operator_id}.{number}[{producer}/{source.parallelism}] to "
        f"{target.operator_id}.{edge.input_index}[{consumer}/{target.parallelism}]"
    )


def is_channel_of(name: str, edge: Edge) -> bool:
    """Say whether a name is of a channel of an exchange, with any numbers of subtasks."""
    return _without_subtasks(name) == _without_subtasks(channel_name(edge, 0, 0))


def producer_of_channel(name: str) -> int:
    """Return the subtask that sends on a channel.

    Example:
        >>> producer_of_channel("a.0[1/2] to b.0[0/3]")
        1
    """
    found = _SUBTASKS.search(name)
    return 0 if found is None else int(found.group(1))


def _without_subtasks(name: str) -> str:
    return _SUBTASKS.sub("", name)


def why_never_unaligned(edge: Edge) -> str:
    """Return why no barrier overtakes on an exchange; "" if they may.

    Concept:
        Flink, ``StreamPartitioner.isSupportsUnalignedCheckpoint``.
    """
    if edge.target.transformation.sink is not None:
        return "it leads to a sink"
    if edge.partitioner.is_pointwise:
        return "a producer is connected with some of the consumers only"
    if edge.partitioner.is_broadcast:
        return "all consumers get the same records"
    return "" if isinstance(edge.partitioner, _OVERTAKING) else "of its partitioner"
