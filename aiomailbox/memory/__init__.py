"""Bytes and permits: segments, and the pools that bound how many are out."""

from __future__ import annotations

from aiomailbox.memory.buffer import Buffer, NetworkBuffer, ReadOnlySlice
from aiomailbox.memory.builder import BufferBuilder, BufferConsumer
from aiomailbox.memory.data_type import DataType
from aiomailbox.memory.debloat import (
    BufferDebloater,
    BufferSizeEma,
    DebloatOptions,
    ThroughputMeter,
)
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.memory.network_pool import NetworkBufferPool, PoolLeak
from aiomailbox.memory.options import (
    DEFAULT_OVERDRAFT_CEILING,
    LocalPoolOptions,
    PoolStatistics,
)
from aiomailbox.memory.redistribution import Demand, redistribute
from aiomailbox.memory.segment import (
    DEFAULT_SEGMENT_SIZE_BYTES,
    MemoryArena,
    MemorySegment,
)
from aiomailbox.memory.waiting import BufferListener

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
