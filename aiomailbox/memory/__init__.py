"""Bytes and permits: segments, and the pools that bound how many are out."""

from __future__ import annotations

from aiomailbox.memory.buffer import (
    DEFAULT_SEGMENT_SIZE_BYTES,
    Buffer,
    BufferBuilder,
    BufferConsumer,
    DataType,
    MemoryArena,
    MemorySegment,
    NetworkBuffer,
    ReadOnlySlice,
)
from aiomailbox.memory.debloat import (
    BufferDebloater,
    BufferSizeEma,
    DebloatOptions,
    ThroughputMeter,
)
from aiomailbox.memory.local_pool import (
    DEFAULT_OVERDRAFT_CEILING,
    BufferListener,
    Demand,
    LocalBufferPool,
    LocalPoolOptions,
    NetworkBufferPool,
    PoolLeak,
    PoolStatistics,
    redistribute,
)

__all__ = [
    "DEFAULT_OVERDRAFT_CEILING",
    "DEFAULT_SEGMENT_SIZE_BYTES",
    "Buffer",
    "BufferBuilder",
    "BufferConsumer",
    "BufferDebloater",
    "BufferListener",
    "BufferSizeEma",
    "DataType",
    "DebloatOptions",
    "Demand",
    "LocalBufferPool",
    "LocalPoolOptions",
    "MemoryArena",
    "MemorySegment",
    "NetworkBuffer",
    "NetworkBufferPool",
    "PoolLeak",
    "PoolStatistics",
    "ReadOnlySlice",
    "ThroughputMeter",
    "redistribute",
]
