"""Events in buffers of bytes: which kind of buffer carries one, and the buffer."""

from __future__ import annotations

from aiomailbox.memory.buffer import NetworkBuffer
from aiomailbox.memory.builder import BufferConsumer
from aiomailbox.memory.data_type import DataType
from aiomailbox.memory.segment import MemorySegment
from aiomailbox.records.event_codec import encode_event
from aiomailbox.records.events import (
    CheckpointBarrier,
    EndOfData,
    EndOfOutputChannelState,
    EndOfPartition,
    RuntimeEvent,
    WatermarkEvent,
)

__all__ = ["event_buffer", "event_consumer", "event_data_type"]

_BY_CLASS: dict[type[RuntimeEvent], DataType] = {
    EndOfData: DataType.END_OF_DATA,
    EndOfPartition: DataType.END_OF_PARTITION,
    EndOfOutputChannelState: DataType.RECOVERY_COMPLETION,
}


def event_data_type(event: RuntimeEvent, *, has_priority: bool = False) -> DataType:
    """Return the kind of buffer that carries an event.

    Args:
        event: The event.
        has_priority: Whether it is to overtake what is queued.

    Example:
        >>> event_data_type(CheckpointBarrier(1, 0)).name
        'ALIGNED_CHECKPOINT_BARRIER'
    """
    if has_priority:
        return DataType.PRIORITIZED_EVENT_BUFFER
    if isinstance(event, CheckpointBarrier):
        return _barrier_data_type(event)
    if isinstance(event, WatermarkEvent):
        if event.is_aligned:
            return DataType.ALIGNED_WATERMARK_EVENT
        return DataType.UNALIGNED_WATERMARK_EVENT
    return _BY_CLASS.get(type(event), DataType.EVENT_BUFFER)


def event_buffer(event: RuntimeEvent, *, has_priority: bool = False) -> NetworkBuffer:
    """Return an event in a buffer of its own, outside of any pool.

    Args:
        event: The event; padded as Flink's partitions pad it.
        has_priority: Whether it is to overtake what is queued.
    """
    encoded = encode_event(event, padded=True)
    segment = MemorySegment(len(encoded))
    segment.put(0, encoded)
    data_type = event_data_type(event, has_priority=has_priority)
    return NetworkBuffer(
        segment, MemorySegment.free, data_type, size_bytes=len(encoded)
    )


def event_consumer(
    event: RuntimeEvent, *, has_priority: bool = False
) -> BufferConsumer:
    """Return a finished consumer of an event; each copy reads all of it."""
    return BufferConsumer.of_finished(event_buffer(event, has_priority=has_priority))


def _barrier_data_type(barrier: CheckpointBarrier) -> DataType:
    if not barrier.needs_alignment:
        return DataType.EVENT_BUFFER
    if barrier.is_timeoutable:
        return DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER
    return DataType.ALIGNED_CHECKPOINT_BARRIER
