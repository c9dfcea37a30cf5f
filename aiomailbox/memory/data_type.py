"""What a buffer carries, and how the exchange has to treat it."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["DataType"]


class DataType(IntEnum):
    """The kinds of buffers; the value is the byte that travels, so only append.

    Invariants:
        No type both has priority and requires an announcement.

    Concept:
        Flink 2.3, ``Buffer.DataType``; same order.

    Example:
        >>> DataType.ALIGNED_CHECKPOINT_BARRIER.is_blocking_upstream
        True
    """

    NONE = 0
    DATA_BUFFER = 1
    EVENT_BUFFER = 2
    PRIORITIZED_EVENT_BUFFER = 3
    ALIGNED_CHECKPOINT_BARRIER = 4
    TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER = 5
    RECOVERY_COMPLETION = 6
    END_OF_SEGMENT = 7
    DATA_BUFFER_WITH_CLEAR_END = 8
    END_OF_DATA = 9
    END_OF_PARTITION = 10
    RECOVERY_METADATA = 11
    ALIGNED_WATERMARK_EVENT = 12
    UNALIGNED_WATERMARK_EVENT = 13

    @property
    def is_buffer(self) -> bool:
        """Whether it carries records."""
        return self in _BUFFERS

    @property
    def is_event(self) -> bool:
        """Whether it carries a runtime event."""
        return self is not DataType.NONE and self not in _BUFFERS

    @property
    def has_priority(self) -> bool:
        """Whether it overtakes what is queued."""
        return self is DataType.PRIORITIZED_EVENT_BUFFER

    @property
    def is_blocking_upstream(self) -> bool:
        """Whether the sender stops after it until consumption is resumed."""
        return self in _BLOCKING_UPSTREAM

    @property
    def requires_announcement(self) -> bool:
        """Whether its arrival is announced ahead of what is queued."""
        return self is DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER


_BUFFERS = frozenset({DataType.DATA_BUFFER, DataType.DATA_BUFFER_WITH_CLEAR_END})
_BLOCKING_UPSTREAM = frozenset(
    {
        DataType.ALIGNED_CHECKPOINT_BARRIER,
        DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER,
        DataType.RECOVERY_COMPLETION,
        DataType.ALIGNED_WATERMARK_EVENT,
    }
)
