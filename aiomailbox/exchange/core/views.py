"""What the two kinds of readers may do with a subpartition, without its stack.

Theory of operation: channels, the registry and connections use a reader's end; which
buffers it reads, and from what kind of partition, is nothing they import.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from aiomailbox.exchange.core.contract import (
    ChannelStatistics,
    DataListener,
    PolledBuffer,
    PolledBytes,
)

__all__ = ["BytesView", "ObjectView", "ServesBytes"]


class _View(Protocol):
    @property
    def is_released(self) -> bool:
        """Whether either side has released it."""
        ...

    @property
    def failure(self) -> BaseException | None:
        """Why the producer released it, if it failed."""
        ...

    @property
    def backlog(self) -> int:
        """Data buffers that can be taken."""
        ...

    def is_available(self, *, has_credit: bool = True) -> bool:
        """Say whether something can be taken; without credit only an event can."""
        ...

    def resume_consumption(self) -> None:
        """Lift the block of an event; raises IllegalStateError if nothing blocks.

        The caller looks for data again: the listener is notified as well.
        """
        ...

    def release(self) -> None:
        """Recycle what is queued, and drop what is still added. Idempotent."""
        ...


class ObjectView(_View, Protocol):
    """The end of a subpartition that a consumer on this loop reads."""

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event."""
        ...

    def poll(self) -> PolledBuffer | None:
        """Take the next buffer, or None; the caller recycles it."""
        ...

    def tell_again(self) -> None:
        """Tell the listener if something can be taken now."""
        ...

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot for metrics; counting what is queued takes a walk."""
        ...


class BytesView(_View, Protocol):
    """The end of a subpartition that a connection reads, at the producer."""

    def poll(self) -> PolledBytes | None:
        """Take the next buffer, or None; the caller recycles it."""
        ...

    def acknowledge_all_data_processed(self) -> None:
        """Be notified that the reader has processed all records."""
        ...

    def set_buffer_bytes(self, size_bytes: int) -> None:
        """Be notified of the reader's wish for the size of buffers."""
        ...


@runtime_checkable
class ServesBytes(Protocol):
    """A partition with consumers on other loops, which read bytes."""

    def create_bytes_view(
        self,
        subpartition_index: int,
        listener: DataListener,
        *,
        receiver_exclusive_buffers: int,
    ) -> BytesView:
        """Return the one view of a channel for a remote consumer.

        Raises:
            InvalidArgumentError: If there is no such channel, or it stays on this loop.
            IllegalStateError: If it has a view already, or was released.
        """
        ...
