"""One checkpoint at a time: which barrier counts, and when all have arrived.

Theory of operation: a checkpoint is pending from its first barrier, or announcement,
until it was triggered by the last channel or aborted. A newer one subsumes it. Which
channels have arrived is a set, and how many must is fixed when the checkpoint begins, so
that a barrier and the end of the same channel count once.

Concept:
    Flink, ``SingleCheckpointBarrierHandler``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from aiomailbox.barriers.machine import (
    Abort,
    Action,
    AlignmentMachine,
    CancelAlignmentTimer,
    ChannelInfo,
    DeclineReason,
    ResumeChannel,
    SetAlignmentTimer,
    TakeSnapshot,
)
from aiomailbox.clock import Clock
from aiomailbox.records.events import Alignment, CheckpointBarrier

# How long the barriers of a checkpoint took to meet, and what was read meanwhile.


@dataclass(slots=True)
class AlignmentStatistics:
    """The cost of one checkpoint's alignment at one task.

    Attributes:
        checkpoint_id: Number of the checkpoint.
        start_delay_ms: From the trigger at the coordinator to the first barrier.
        duration_ms: From the first barrier to the last; None while some are missing.
        processed_bytes: Read in that time; None while barriers are missing.

    Concept:
        Flink, ``CheckpointMetrics``.
    """

    checkpoint_id: int
    start_delay_ms: int
    duration_ms: float | None = None
    processed_bytes: int | None = None


class AlignmentMeter:
    """Measures one alignment after the other.

    Args:
        clock: Wall-clock time for the start delay, monotonic time for the duration.

    Attributes:
        latest: The alignment that was begun last, None before the first.
    """

    def __init__(self, clock: Clock) -> None:
        self.latest: AlignmentStatistics | None = None
        self._clock = clock
        self._started_s: float | None = None
        self._bytes = 0

    def start(self, checkpoint_id: int, timestamp_ms: int) -> None:
        """Begin with the first barrier, which was made at ``timestamp_ms``."""
        delay_ms = max(0, self._clock.now_ms() - timestamp_ms)
        self.latest = AlignmentStatistics(checkpoint_id, delay_ms)
        self._started_s = self._clock.monotonic()
        self._bytes = 0

    def add_bytes(self, count: int) -> None:
        """Count what was read; nothing is counted outside of an alignment."""
        if self._started_s is not None:
            self._bytes += count

    def stop(self) -> None:
        """End with the last barrier."""
        if self._started_s is None or self.latest is None:
            return
        self.latest.duration_ms = (self._clock.monotonic() - self._started_s) * 1000
        self.latest.processed_bytes = self._bytes
        self._started_s = None

    def reset(self) -> None:
        """Forget an alignment that was aborted."""
        self._started_s = None


class _BarrierHandler:
    """The part that both kinds of handlers share.

    Args:
        channels: How many channels the task reads, over all its gates; at least 1.
        clock: For the statistics.
        after_end: Whether there are checkpoints once some channels have ended.

    Attributes:
        latest_checkpoint_id: The newest checkpoint that was heard of, -1 before the
            first.
        open_channels: How many channels have not come to their end.
    """

    def __init__(self, channels: int, clock: Clock, *, after_end: bool) -> None:
        self.latest_checkpoint_id: int = -1
        self.open_channels: int = channels
        self._after_end = after_end
        self._meter = AlignmentMeter(clock)

    @property
    def statistics(self) -> AlignmentStatistics | None:
        """Of the checkpoint that began last."""
        return self._meter.latest

    def on_data(self, size_bytes: int) -> None:
        """Count a buffer of data that was read."""
        self._meter.add_bytes(size_bytes)


class CheckpointBarrierHandler(_BarrierHandler):
    """Decides what the barriers of all channels of a task mean; exactly once.

    Each ``on_`` method returns what is to be done, in order. The owner carries it out
    before anything else is read.

    Args:
        channels: How many channels the task reads, over all its gates; at least 1.
        clock: For start delays, the duration and the timeout of alignments.
        may_overtake: Whether alignment may be given up for unaligned barriers.
        after_end: Whether there are checkpoints once some channels have ended; if not,
            the end of a channel aborts the pending one.

    Invariants:
        A checkpoint is pending exactly while ``latest_checkpoint_id != last done``.
    """

    def __init__(
        self,
        channels: int,
        clock: Clock,
        *,
        may_overtake: bool = False,
        after_end: bool = True,
    ) -> None:
        super().__init__(channels, clock, after_end=after_end)
        self._machine = AlignmentMachine(may_overtake=may_overtake)
        self._clock = clock
        self._last_done_id = -1
        self._pending: CheckpointBarrier | None = None
        self._arrived: set[ChannelInfo] = set()
        self._target = 0

    @property
    def is_pending(self) -> bool:
        """Whether a checkpoint has begun here and was neither completed nor aborted."""
        return self.latest_checkpoint_id != self._last_done_id

    @property
    def blocked_channels(self) -> list[ChannelInfo]:
        """The channels that are not read because their barrier has arrived."""
        return self._machine.blocked_channels

    def on_barrier(
        self, channel: ChannelInfo, barrier: CheckpointBarrier, *, is_rpc: bool = False
    ) -> list[Action]:
        """Take a barrier.

        Args:
            channel: Where it came from.
            barrier: The barrier.
            is_rpc: Whether the coordinator triggers the task directly: the barrier
                stands for an open channel, and blocks nothing.
        """
        checkpoint_id = barrier.checkpoint_id
        if self._is_obsolete(checkpoint_id):
            # Neither has blocked a channel: there is nothing to resume.
            if is_rpc or barrier.alignment is Alignment.UNALIGNED:
                return []
            # Its producer waits, whether we care for the barrier or not.
            return [ResumeChannel(channel)]
        actions = self._begin(barrier)
        is_last = self._arrive(channel)
        actions += self._machine.on_barrier(
            channel,
            barrier,
            blocks=not is_rpc,
            is_last=is_last,
            is_late=self._is_late(barrier),
        )
        return actions + self._settle(is_last=is_last)

    def on_announcement(
        self, channel: ChannelInfo, barrier: CheckpointBarrier, sequence_number: int
    ) -> list[Action]:
        """Take the announcement of a barrier that is queued behind data."""
        if self._is_obsolete(barrier.checkpoint_id):
            return []
        actions = self._begin(barrier)
        return actions + self._machine.on_announcement(channel, sequence_number)

    def on_cancel(self, channel: ChannelInfo, checkpoint_id: int) -> list[Action]:
        """Take an event that says that a checkpoint will not happen upstream."""
        is_newer = checkpoint_id > self.latest_checkpoint_id
        if is_newer or (checkpoint_id == self.latest_checkpoint_id and self._arrived):
            return self.abort(checkpoint_id, DeclineReason.CANCELLED)
        return []

    def on_end_of_partition(self, channel: ChannelInfo) -> list[Action]:
        """Take the end of a channel."""
        self.open_channels -= 1
        barrier = self._pending
        # No checkpoint is pending: the end of the channel counts for none.
        if barrier is None:
            self._machine.forget(channel)
            return []
        if not self._after_end:
            self._machine.forget(channel)
            return self.abort(self.latest_checkpoint_id, DeclineReason.END_OF_STREAM)
        is_last = self._arrive(channel)
        actions = self._machine.on_end_of_partition(
            channel, barrier, is_last=is_last, is_late=self._is_late(barrier)
        )
        return actions + self._settle(is_last=is_last)

    def on_timeout(self, checkpoint_id: int) -> list[Action]:
        """Take the end of the time for alignment; harmless when it comes too late."""
        barrier = self._pending
        if barrier is None or checkpoint_id != self.latest_checkpoint_id:
            return []
        return self._machine.on_timeout(barrier)

    def abort(self, checkpoint_id: int, reason: DeclineReason) -> list[Action]:
        """Give up a checkpoint, and the pending one if that is older."""
        # A cancel may be newer than what is pending: that one goes with it, in silence.
        self.latest_checkpoint_id = max(self.latest_checkpoint_id, checkpoint_id)
        self._last_done_id = max(self._last_done_id, checkpoint_id)
        self._target = 0
        actions = [*self._end_alignment(), *self._machine.abort(checkpoint_id)]
        if checkpoint_id == self.latest_checkpoint_id:
            self._meter.reset()
        return [*actions, Abort(checkpoint_id, reason)]

    def _is_obsolete(self, checkpoint_id: int) -> bool:
        if checkpoint_id == self.latest_checkpoint_id:
            return not self.is_pending
        return checkpoint_id < self.latest_checkpoint_id

    def _begin(self, barrier: CheckpointBarrier) -> list[Action]:
        """Make a checkpoint the pending one, if it is not yet."""
        checkpoint_id = barrier.checkpoint_id
        if self.latest_checkpoint_id >= checkpoint_id:
            return []
        actions: list[Action] = []
        if self.is_pending:
            actions += self.abort(self.latest_checkpoint_id, DeclineReason.SUBSUMED)
        self.latest_checkpoint_id = checkpoint_id
        self._pending = barrier
        # Fixed now: a channel that ends later is counted by its end.
        self._target = self.open_channels
        if barrier.is_timeoutable:
            due_ms = barrier.timestamp_ms + barrier.aligned_timeout_ms
            delay_ms = max(0, due_ms - self._clock.now_ms())
            actions.append(SetAlignmentTimer(checkpoint_id, delay_ms))
        return actions

    def _arrive(self, channel: ChannelInfo) -> bool:
        """Count a channel, and say whether it was the last one."""
        before = len(self._arrived)
        self._arrived.add(channel)
        count = len(self._arrived)
        # A set: a barrier and then the end of its channel count once.
        if count > before:
            if count == 1:
                assert self._pending is not None
                self._meter.start(self.latest_checkpoint_id, self._pending.timestamp_ms)
            if count == self._target:
                # Before the transition: a snapshot it triggers sees the final figures.
                self._meter.stop()
        return count == self._target

    def _settle(self, *, is_last: bool) -> list[Action]:
        if not is_last:
            return []
        self._last_done_id = self.latest_checkpoint_id
        return self._end_alignment()

    def _end_alignment(self) -> list[Action]:
        """Let nothing be pending, and end its timer if it has one."""
        barrier, self._pending = self._pending, None
        self._arrived.clear()
        has_timer = barrier is not None and barrier.is_timeoutable
        return [CancelAlignmentTimer()] if has_timer else []

    def _is_late(self, barrier: CheckpointBarrier) -> bool:
        return (
            barrier.is_timeoutable
            and self._clock.now_ms() - barrier.timestamp_ms > barrier.aligned_timeout_ms
        )


# At least once: barriers are counted, and no channel ever waits.
#
# Concept:
#     Flink, ``CheckpointBarrierTracker``.


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


class CheckpointBarrierTracker(_BarrierHandler):
    """Triggers a snapshot when the barriers of all channels have been seen.

    Several checkpoints may be pending at once; the one that is complete first drops the
    older ones. Its methods return the same as those of `CheckpointBarrierHandler`.

    Args:
        channels: How many channels the task reads, over all its gates; at least 1.
        clock: For the statistics.
        after_end: Whether there are checkpoints once some channels have ended.
    """

    def __init__(self, channels: int, clock: Clock, *, after_end: bool = True) -> None:
        super().__init__(channels, clock, after_end=after_end)
        # In the order of their numbers.
        self._pending: deque[_Count] = deque()

    @property
    def is_pending(self) -> bool:
        """Whether some barriers of a checkpoint are missing."""
        return bool(self._pending)

    @property
    def blocked_channels(self) -> list[ChannelInfo]:
        """None, ever."""
        return []

    def on_barrier(
        self, channel: ChannelInfo, barrier: CheckpointBarrier, *, is_rpc: bool = False
    ) -> list[Action]:
        """Take a barrier; see `CheckpointBarrierHandler.on_barrier`."""
        checkpoint_id = barrier.checkpoint_id
        is_new = checkpoint_id > self.latest_checkpoint_id
        # Only for a new one: one that began with two channels waits for both.
        if is_new and self.open_channels == 1:
            self.latest_checkpoint_id = checkpoint_id
            self._pending.clear()
            self._meter.start(checkpoint_id, barrier.timestamp_ms)
            self._meter.stop()
            return [TakeSnapshot(barrier)]
        if is_new:
            self.latest_checkpoint_id = checkpoint_id
            self._meter.start(checkpoint_id, barrier.timestamp_ms)
            count = _Count(checkpoint_id, self.open_channels, barrier)
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
        elif checkpoint_id > self.latest_checkpoint_id:
            self.latest_checkpoint_id = checkpoint_id
            count = _Count(checkpoint_id, self.open_channels, None)
            actions += _abort(count, DeclineReason.CANCELLED)
            # Barriers that still come are counted, so that they do not revive it.
            if not count.add(channel):
                self._pending.append(count)
        return actions

    def on_end_of_partition(self, channel: ChannelInfo) -> list[Action]:
        """Take the end of a channel: it counts for every pending checkpoint."""
        self.open_channels -= 1
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

    def _complete(self, count: _Count) -> list[Action]:
        # Up to and with it: they are in the order of their numbers.
        """Trigger a checkpoint and drop the older ones: it subsumes them."""
        while self._pending.popleft() is not count:
            pass
        if count.is_aborted or count.barrier is None:
            return []
        if count.checkpoint_id == self.latest_checkpoint_id:
            self._meter.stop()
        return [TakeSnapshot(count.barrier)]


def _abort(count: _Count, reason: DeclineReason) -> list[Action]:
    """Abort a checkpoint, and tell so once."""
    if count.is_aborted:
        return []
    count.is_aborted = True
    return [Abort(count.checkpoint_id, reason)]
