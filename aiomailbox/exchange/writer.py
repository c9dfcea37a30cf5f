"""From an operator's results to the channels of a partition."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from aiomailbox.availability import Availability
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.exchange.core.contract import OutputPartition
from aiomailbox.exchange.partitioner import Partitioner
from aiomailbox.records.events import (
    LatencyMarker,
    RuntimeEvent,
    StopMode,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.run import Run

# Flink's default buffer timeout.
DEFAULT_FLUSH_INTERVAL_MS: Final = 100


class RecordWriter:
    """Writes runs, control elements and events to a partition. Synchronous.

    What is left in unfinished buffers is flushed: at once if the interval is 0; never
    by time if it is None or -1; else by a timer that is armed only while something
    waits for it. A task also calls `flush_all` before it suspends. What the timer's flush
    fails with, the next call here raises.

    Args:
        partition: Where to; the writer does not own it.
        partitioner: A description; the writer takes a fresh one.
        flush_interval_ms: See above.
        random: For the start of a rebalance, a shuffle, and latency markers.

    Attributes:
        availability: True while another buffer fits. What one record emits always
            fits; look at it between buffers.
        partition: The partition.
        partitioner: The writer's own partitioner.

    Concept:
        Flink, ``RecordWriter``, ``ChannelSelectorRecordWriter``.
    """

    __slots__ = (
        "_broadcasts",
        "_channel_count",
        "_failure",
        "_flush_interval_s",
        "_flushes_always",
        "_random",
        "_split",
        "_timer",
        "availability",
        "partition",
        "partitioner",
    )

    def __init__(
        self,
        partition: OutputPartition,
        partitioner: Partitioner,
        *,
        flush_interval_ms: int | None = DEFAULT_FLUSH_INTERVAL_MS,
        random: Random | None = None,
    ) -> None:
        if flush_interval_ms is not None and flush_interval_ms < -1:
            raise InvalidArgumentError(
                "flush_interval_ms",
                f"{flush_interval_ms} is negative",
                "Use None to flush never by time.",
            )
        self.partition: OutputPartition = partition
        self._random = random or Random()
        self.partitioner: Partitioner = partitioner.fresh(self._random)
        self.availability: Availability = partition.availability
        self._split = self.partitioner.split_run
        self._broadcasts = self.partitioner.is_broadcast
        self._channel_count = partition.subpartition_count
        self._flushes_always = flush_interval_ms == 0
        self._flush_interval_s = (
            flush_interval_ms / 1000
            if flush_interval_ms is not None and flush_interval_ms > 0
            else None
        )
        self._timer: asyncio.TimerHandle | None = None
        self._failure: BaseException | None = None

    def __repr__(self) -> str:
        return f"<RecordWriter {self.partitioner.name} to {self.partition!r}>"

    def emit_run(self, run: Run) -> None:
        """Send records where the partitioner says; an empty run is ignored.

        Raises:
            OverdraftCeilingError: If the pool's ceiling is reached.
            BaseException: What a user's key or partitioning function raised, or what
                the timer's flush failed with.
        """
        if self._failure is not None:
            raise self._failure
        if not len(run):
            return
        if self._broadcasts:
            if self.partition.broadcast_run(run):
                self._on_all_unfinished()
            return
        # Bound once per run, not looked up per channel.
        emit = self.partition.emit_run
        for channel, part in self._split(run, self._channel_count):
            if emit(part, channel):
                self._on_unfinished(channel)

    def emit_control(self, element: Watermark | WatermarkStatus) -> None:
        """Send a watermark or a status to every channel, in order with the records."""
        if self._failure is not None:
            raise self._failure
        if self.partition.broadcast_control(element):
            self._on_all_unfinished()

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Send a latency marker to one channel, chosen at random."""
        if self._failure is not None:
            raise self._failure
        # To one channel only: as Flink's, a marker measures one way through the job.
        channel = self._random.randrange(self._channel_count)
        if self.partition.emit_control(marker, channel):
            self._on_unfinished(channel)

    def broadcast_event(self, event: RuntimeEvent) -> None:
        """Send an event to every channel; a priority event overtakes."""
        if self._failure is not None:
            raise self._failure
        self.partition.broadcast_event(event)

    def notify_end_of_data(self, mode: StopMode) -> None:
        """Tell every consumer that no more records follow. Idempotent."""
        self.partition.notify_end_of_data(mode)

    def finish(self) -> None:
        """Tell every consumer that nothing at all follows. Idempotent."""
        self.partition.finish()

    async def settle(self) -> None:
        """Suspend until what was emitted outlives its task, if that is its nature."""
        await self.partition.settle()

    def flush_all(self) -> None:
        """Let every consumer take what is queued."""
        if self._failure is not None:
            raise self._failure
        self.partition.flush_all()

    def close(self) -> None:
        """Disarm the timer; the partition stays. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flush_interval_s = None

    def _on_unfinished(self, channel: int) -> None:
        if self._flushes_always:
            self.partition.flush(channel)
        else:
            self._arm_timer()

    def _on_all_unfinished(self) -> None:
        if self._flushes_always:
            self.partition.flush_all()
        else:
            self._arm_timer()

    def _arm_timer(self) -> None:
        # Armed by the first one that waits: nothing ticks in a job that is idle or
        # busy.
        if self._timer is None and self._flush_interval_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._flush_interval_s, self._flush_on_time)

    def _flush_on_time(self) -> None:
        self._timer = None
        # An exception in a timer would vanish into the loop's handler.
        try:
            self.partition.flush_all()
        except Exception as error:  # noqa: BLE001 -- the task trips over it
            self._failure = error
