"""What the two ends of a subpartition agree on."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from aiomailbox.exchange.core.buffer import ObjectBuffer
from aiomailbox.memory.buffer import ReadOnlySlice
from aiomailbox.memory.data_type import DataType

__all__ = [
    "SEQUENCE_MODULUS",
    "ChannelCredit",
    "ChannelStatistics",
    "DataListener",
    "PolledBuffer",
    "PolledBytes",
]

# Sequence numbers are unsigned 32-bit integers, here as on the wire.
SEQUENCE_MODULUS: Final = 2**32


class PolledBuffer(NamedTuple):
    """What a poll took.

    Attributes:
        buffer: The buffer; its consumer recycles it.
        backlog: Data buffers that could be taken after this one.
        more_available: Whether another one can be taken now.
        next_is_priority: Whether that one overtook others.
        sequence_number: Number of this buffer on its channel, modulo 2**32.

    Concept:
        Flink, ``ResultSubpartition.BufferAndBacklog``.
    """

    buffer: ObjectBuffer
    backlog: int
    more_available: bool
    next_is_priority: bool
    sequence_number: int


class PolledBytes(NamedTuple):
    """What a poll of bytes took.

    Attributes:
        buffer: The bytes; their consumer recycles them.
        backlog: Data buffers that could be taken after this one.
        next_data_type: What could be taken next, ``NONE`` if nothing is ready.
        sequence_number: Number of this buffer on its channel, modulo 2**32.

    Concept:
        Flink, ``ResultSubpartition.BufferAndBacklog``.
    """

    buffer: ReadOnlySlice
    backlog: int
    next_data_type: DataType
    sequence_number: int


class ChannelStatistics(NamedTuple):
    """What waits in a channel now, and what has been taken from it so far.

    Sizes are estimates, as in `ObjectBuffer.size_bytes`; events count as buffers.
    """

    queued_buffers: int = 0
    queued_records: int = 0
    queued_bytes: int = 0
    buffers_total: int = 0
    records_total: int = 0
    bytes_total: int = 0


class ChannelCredit(NamedTuple):
    """The buffers that the reader of a channel has for what it is going to be sent.

    Attributes:
        available: Buffers that data can arrive in: the credit there is in all.
        unannounced: Of those, what was not announced to the producer yet.
        exclusive: Buffers of this channel alone, free or not.
        exclusive_free: Of those, the free ones.
        backlog: Data buffers that wait at the producer, as it said last.

    Concept:
        Flink, ``BufferManager`` and ``RemoteInputChannel``.
    """

    available: int
    unannounced: int
    exclusive: int
    exclusive_free: int
    backlog: int


class DataListener(Protocol):
    """Is notified that a subpartition has something to take.

    Concept:
        Flink, ``BufferAvailabilityListener``.
    """

    def on_data_available(self) -> None:
        """Be notified that a poll would give something."""
        ...

    def on_priority_event(self, sequence_number: int) -> None:
        """Be notified that the next poll, of that number, gives a priority event."""
        ...
