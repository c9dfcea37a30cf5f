"""At least once: barriers are counted, and no channel ever waits.

Concept:
    Flink, ``CheckpointBarrierTracker``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from aiomailbox.barriers.actions import (
    Abort,
    Action,
    ChannelInfo,
    DeclineReason,
    Trigger,
)
from aiomailbox.barriers.statistics import AlignmentMeter, AlignmentStatistics
from aiomailbox.clock import Clock
from aiomailbox.records.events import CheckpointBarrier

__all__ = ["CheckpointBarrierTracker"]

# Those that lose barriers would be kept for ever. Flink's number.
_TRACKED_MAX: Final = 50


@dataclass(slots=True)
class _Count:
    """The channels whose barrier of one checkpoint has arrived."""

    checkpoint_id: int
    target: int
    # None if it was cancelled before any barrier of it came.
    barrier: CheckpointBarrier | None
    arrived: set[ChannelInfo] = field(default_factory=set)
    is_aborted: bool = False

    def add(self, channel: ChannelInfo) -> bool:
        """Count a channel and say whether all have arrived."""
        self.arrived.add(channel)
        return len(self.arrived) == self.target


class CheckpointBarrierTracker:
    """Triggers a snapshot when the barriers of all channels have been seen.

    Several checkpoints may be pending at once; the one that is complete first drops the
    older ones. What its methods return is as in `CheckpointBarrierHandler`.

    Args:
        channels: How many channels the task reads, over all its gates; at least 1.
        clock: For the statistics.
        after_end: Whether there are checkpoints once some channels have ended.
    """

    __slots__ = ("_after_end", "_latest_id", "_meter", "_open_channels", "_pending")

    def __init__(self, channels: int, clock: Clock, *, after_end: bool = True) -> None:
        self._meter = AlignmentMeter(clock)
        self._after_end = after_end
        self._open_channels = channels
        self._latest_id = -1
        # In the order of their numbers.
        self._pending: deque[_Count] = deque()

    @property
    def latest_checkpoint_id(self) -> int:
        """The newest checkpoint that was heard of, -1 before the first."""
        return self._latest_id

    @property
    def pending_checkpoint_ids(self) -> list[int]:
        """The checkpoints some of whose barriers are missing, oldest first."""
        return [count.checkpoint_id for count in self._pending]

    @property
    def is_pending(self) -> bool:
        """Whether some barriers of a checkpoint are missing."""
        return bool(self._pending)

    @property
    def open_channels(self) -> int:
        """How many channels have not come to their end."""
        return self._open_channels

    @property
    def blocked_channels(self) -> list[ChannelInfo]:
        """None, ever."""
        return []

    @property
    def statistics(self) -> AlignmentStatistics | None:
        """Of the checkpoint that began last."""
        return self._meter.latest

    def on_barrier(
        self, channel: ChannelInfo, barrier: CheckpointBarrier, *, is_rpc: bool = False
    ) -> list[Action]:
        """Take a barrier; see `CheckpointBarrierHandler.on_barrier`."""
        checkpoint_id = barrier.checkpoint_id
        is_new = checkpoint_id > self._latest_id
        # Only for a new one: one that began with two channels waits for both.
        if is_new and self._open_channels == 1:
            self._latest_id = checkpoint_id
            self._pending.clear()
            self._meter.start(checkpoint_id, barrier.timestamp_ms)
            self._meter.stop()
            return [Trigger(barrier)]
        if is_new:
            self._latest_id = checkpoint_id
            self._meter.start(checkpoint_id, barrier.timestamp_ms)
            count = _Count(checkpoint_id, self._open_channels, barrier)
            count.add(channel)
            self._pending.append(count)
            if len(self._pending) > _TRACKED_MAX:
                self._pending.popleft()
            return []
        for count in self._pending:
            if count.checkpoint_id == checkpoint_id:
                return self._complete(count) if count.add(channel) else []
        return []

    def on_announcement(
        self, channel: ChannelInfo, barrier: CheckpointBarrier, sequence_number: int
    ) -> list[Action]:
        """Ignore what only barriers that may overtake have."""
        return []

    def on_cancel(self, channel: ChannelInfo, checkpoint_id: int) -> list[Action]:
        """Take an event that says that a checkpoint will not happen upstream."""
        actions: list[Action] = []
        # Older ones cannot complete any more: their barriers were before this event.
        while self._pending and self._pending[0].checkpoint_id < checkpoint_id:
            actions += _abort(self._pending.popleft(), DeclineReason.CANCELLED)
        if self._pending and self._pending[0].checkpoint_id == checkpoint_id:
            count = self._pending[0]
            actions += _abort(count, DeclineReason.CANCELLED)
            if count.add(channel):
                self._pending.popleft()
        elif checkpoint_id > self._latest_id:
            self._latest_id = checkpoint_id
            count = _Count(checkpoint_id, self._open_channels, None)
            actions += _abort(count, DeclineReason.CANCELLED)
            # Barriers that still come are counted, so that they do not revive it.
            if not count.add(channel):
                self._pending.append(count)
        return actions

    def on_end_of_partition(self, channel: ChannelInfo) -> list[Action]:
        """Take the end of a channel: it counts for every pending checkpoint."""
        self._open_channels -= 1
        if not self._after_end:
            actions: list[Action] = []
            while self._pending:
                actions += _abort(self._pending.popleft(), DeclineReason.END_OF_STREAM)
            return actions
        complete = [count for count in self._pending if count.add(channel)]
        return self._complete(complete[-1]) if complete else []

    def on_timeout(self, checkpoint_id: int) -> list[Action]:
        """Ignore what only barriers that may overtake have."""
        return []

    def on_data(self, size_bytes: int) -> None:
        """Count a buffer of data that was read."""
        self._meter.add_bytes(size_bytes)

    def close(self) -> list[Action]:
        """Expect nothing more."""
        self._pending.clear()
        return []

    def _complete(self, count: _Count) -> list[Action]:
        # Up to and with it: they are in the order of their numbers.
        """Trigger a checkpoint and drop the older ones: it subsumes them."""
        while self._pending.popleft() is not count:
            pass
        if count.is_aborted or count.barrier is None:
            return []
        if count.checkpoint_id == self._latest_id:
            self._meter.stop()
        return [Trigger(count.barrier)]


def _abort(count: _Count, reason: DeclineReason) -> list[Action]:
    """Abort a checkpoint, and tell so once."""
    if count.is_aborted:
        return []
    count.is_aborted = True
    return [Abort(count.checkpoint_id, reason)]
