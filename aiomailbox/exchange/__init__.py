"""How records get from task to task: partitions, channels, gates, and who goes where."""

from __future__ import annotations

from aiomailbox.exchange.awaitable_gate import Gate
from aiomailbox.exchange.blocking_partition import BlockingResultPartition
from aiomailbox.exchange.blocking_view import BlockingView
from aiomailbox.exchange.buffer import BUFFER_SIZE_BYTES, ObjectBuffer
from aiomailbox.exchange.channel import (
    ChannelListener,
    InputChannel,
    LocalInputChannel,
    retry_delays_ms,
)
from aiomailbox.exchange.contract import (
    SEQUENCE_MODULUS,
    ChannelCredit,
    ChannelStatistics,
    DataListener,
    PolledBuffer,
)
from aiomailbox.exchange.gate import InputGate
from aiomailbox.exchange.mixed_partition import MixedResultPartition
from aiomailbox.exchange.output_partition import OutputPartition
from aiomailbox.exchange.partition import ResultPartition
from aiomailbox.exchange.partitioner import (
    BroadcastPartitioner,
    CustomPartitioner,
    ForwardPartitioner,
    GlobalPartitioner,
    KeyGroupPartitioner,
    Partitioner,
    RebalancePartitioner,
    RescalePartitioner,
    SelectableRun,
    ShufflePartitioner,
)
from aiomailbox.exchange.priority_deque import PrioritizedDeque
from aiomailbox.exchange.registry import PartitionRegistry
from aiomailbox.exchange.subpartition import PipelinedSubpartition
from aiomailbox.exchange.union_gate import UnionInputGate
from aiomailbox.exchange.view import SubpartitionView
from aiomailbox.exchange.writer import DEFAULT_FLUSH_INTERVAL_MS, RecordWriter

__all__ = [
    "BUFFER_SIZE_BYTES",
    "DEFAULT_FLUSH_INTERVAL_MS",
    "SEQUENCE_MODULUS",
    "BlockingResultPartition",
    "BlockingView",
    "BroadcastPartitioner",
    "ChannelCredit",
    "ChannelListener",
    "ChannelStatistics",
    "CustomPartitioner",
    "DataListener",
    "ForwardPartitioner",
    "Gate",
    "GlobalPartitioner",
    "InputChannel",
    "InputGate",
    "KeyGroupPartitioner",
    "LocalInputChannel",
    "MixedResultPartition",
    "ObjectBuffer",
    "OutputPartition",
    "PartitionRegistry",
    "Partitioner",
    "PipelinedSubpartition",
    "PolledBuffer",
    "PrioritizedDeque",
    "RebalancePartitioner",
    "RecordWriter",
    "RescalePartitioner",
    "ResultPartition",
    "SelectableRun",
    "ShufflePartitioner",
    "SubpartitionView",
    "UnionInputGate",
    "retry_delays_ms",
]
