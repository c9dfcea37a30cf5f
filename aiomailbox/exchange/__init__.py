"""How records get from task to task: partitions, channels, gates, and partitioners."""

from __future__ import annotations

from aiomailbox.exchange.blocking.partition import (
    BlockingResultPartition,
    BlockingView,
)
from aiomailbox.exchange.core.contract import (
    BUFFER_SIZE_BYTES,
    SEQUENCE_MODULUS,
    ChannelCredit,
    ChannelStateWriter,
    ChannelStatistics,
    DataListener,
    ObjectBuffer,
    OutputPartition,
    PolledBuffer,
    decode_in_flight,
    encode_in_flight,
)
from aiomailbox.exchange.core.subpartition import PrioritizedDeque, SubpartitionView
from aiomailbox.exchange.gate import (
    InputChannel,
    InputGate,
    LocalInputChannel,
    PartitionRegistry,
    retry_delays_ms,
)
from aiomailbox.exchange.partition import PipelinedSubpartition, ResultPartition
from aiomailbox.exchange.writer import (
    DEFAULT_FLUSH_INTERVAL_MS,
    BroadcastPartitioner,
    CustomPartitioner,
    ForwardPartitioner,
    GlobalPartitioner,
    KeyGroupPartitioner,
    Partitioner,
    RebalancePartitioner,
    RecordWriter,
    RescalePartitioner,
    ShufflePartitioner,
)

__all__ = [
    "BUFFER_SIZE_BYTES",
    "DEFAULT_FLUSH_INTERVAL_MS",
    "SEQUENCE_MODULUS",
    "BlockingResultPartition",
    "BlockingView",
    "BroadcastPartitioner",
    "ChannelCredit",
    "ChannelStateWriter",
    "ChannelStatistics",
    "CustomPartitioner",
    "DataListener",
    "ForwardPartitioner",
    "GlobalPartitioner",
    "InputChannel",
    "InputGate",
    "KeyGroupPartitioner",
    "LocalInputChannel",
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
    "ShufflePartitioner",
    "SubpartitionView",
    "decode_in_flight",
    "encode_in_flight",
    "retry_delays_ms",
]
