"""What a task, its writers and the registry use of a partition, of whichever kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aiomailbox.availability import Availability
from aiomailbox.exchange.core.contract import ChannelStatistics, DataListener
from aiomailbox.exchange.core.views import ObjectView
from aiomailbox.ids import PartitionId
from aiomailbox.records import Control
from aiomailbox.records.events import RuntimeEvent, StopMode
from aiomailbox.records.run import Run

__all__ = ["OutputPartition"]


class OutputPartition(Protocol):
    """A task's output towards one edge: one channel per consumer.

    `ResultPartition` where all consumers are on this loop, `MixedResultPartition`
    where some are not.

    Attributes:
        partition_id: Whose output, and towards which edge.
        availability: True while another buffer fits.
    """

    partition_id: PartitionId
    availability: Availability

    @property
    def is_released(self) -> bool:
        """Whether nothing is kept for consumers any more."""
        ...

    @property
    def all_data_processed(self) -> Availability:
        """Turns true when each consumer has acknowledged the end of data."""
        ...

    @property
    def subpartition_count(self) -> int:
        """Number of consumers."""
        ...

    @property
    def queued_buffers(self) -> int:
        """Buffers queued for all consumers, events included."""
        ...

    @property
    def has_unflushed_data(self) -> bool:
        """Whether anything is queued that its consumer cannot take yet."""
        ...

    def statistics(self) -> list[ChannelStatistics]:
        """Return a snapshot per channel, in order."""
        ...

    def emit_run(self, run: Run, channel: int) -> bool:
        """Queue records for one consumer; says whether something awaits a flush."""
        ...

    def broadcast_run(self, run: Run) -> bool:
        """Queue records for every consumer; returns as `emit_run`."""
        ...

    def emit_control(self, element: Control, channel: int) -> bool:
        """Queue a control element for one consumer; returns as `emit_run`."""
        ...

    def broadcast_control(self, element: Control) -> bool:
        """Queue a control element for every consumer; returns as `emit_run`."""
        ...

    def broadcast_event(self, event: RuntimeEvent) -> None:
        """Queue an event for every consumer, in a buffer of its own."""
        ...

    async def writable(self) -> None:
        """Suspend until another buffer fits; flushes before it does."""
        ...

    def flush(self, channel: int) -> None:
        """Let one consumer take what is queued."""
        ...

    def flush_all(self) -> None:
        """Let every consumer take what is queued."""
        ...

    def notify_end_of_data(self, mode: StopMode) -> None:
        """Tell every consumer that no more records follow. Idempotent."""
        ...

    def acknowledge_all_data_processed(self, channel: int) -> None:
        """Be notified that a consumer has processed all records."""
        ...

    def finish(self) -> None:
        """Tell every consumer that nothing at all follows, and close. Idempotent."""
        ...

    async def settle(self) -> None:
        """Suspend until what was emitted outlives its task, if that is its nature."""
        ...

    def create_view(
        self, subpartition_index: int, listener: DataListener
    ) -> ObjectView:
        """Return the one view of a channel for a consumer on this loop."""
        ...

    def on_consumed(self, callback: Callable[[], None]) -> None:
        """Call back once: all have released it, or everything was released."""
        ...

    def close(self) -> None:
        """End the producer's part; what is queued stays. Idempotent."""
        ...

    def release(self, failure: BaseException | None = None) -> None:
        """Recycle everything that is queued, and end what reads it. Idempotent."""
        ...
