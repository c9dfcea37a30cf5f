"""Channels, a clock and a task around a barrier handler, as lists of what happened."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from aiomailbox.barriers.handler import (
    CheckpointBarrierHandler,
    CheckpointBarrierTracker,
)
from aiomailbox.barriers.machine import (
    Abort,
    Action,
    CancelAlignmentTimer,
    ChannelInfo,
    Prioritize,
    ResumeChannel,
    SetAlignmentTimer,
    StartPersisting,
    StopPersisting,
    TakeSnapshot,
)
from aiomailbox.records.events import (
    NO_ALIGNED_TIMEOUT,
    Alignment,
    CheckpointBarrier,
    SnapshotType,
)
from aiomailbox.testing import ManualClock


def channel(index: int) -> ChannelInfo:
    """Return a channel of the only gate."""
    return ChannelInfo(0, index)


@dataclass
class Inputs:
    """A handler, and a task that does what it says.

    ``b`` is a barrier, ``a`` its announcement, ``x`` a cancellation, ``e`` the end of
    a channel, ``d`` data.
    """

    handler: CheckpointBarrierHandler | CheckpointBarrierTracker
    clock: ManualClock
    alignment: Alignment = Alignment.ALIGNED
    timeout_ms: int = NO_ALIGNED_TIMEOUT
    triggered: list[int] = field(default_factory=list)
    barriers: list[CheckpointBarrier] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    prioritized: list[tuple[int, int]] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    persisted: list[str] = field(default_factory=list)
    timer: SetAlignmentTimer | None = None
    _keeping: int | None = None
    _arrived: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    @property
    def blocked(self) -> set[int]:
        return {info.channel_index for info in self.handler.blocked_channels}

    def barrier(
        self,
        checkpoint_id: int,
        *,
        savepoint: bool = False,
        alignment: Alignment | None = None,
        timestamp_ms: int | None = None,
    ) -> CheckpointBarrier:
        alignment = alignment or (Alignment.ALIGNED if savepoint else self.alignment)
        is_unaligned = alignment is Alignment.UNALIGNED
        return CheckpointBarrier(
            checkpoint_id,
            self.clock.now_ms() if timestamp_ms is None else timestamp_ms,
            alignment,
            SnapshotType.SAVEPOINT_CANONICAL if savepoint else SnapshotType.CHECKPOINT,
            NO_ALIGNED_TIMEOUT if savepoint or is_unaligned else self.timeout_ms,
        )

    def b(
        self,
        checkpoint_id: int,
        index: int = 0,
        *,
        barrier: CheckpointBarrier | None = None,
        is_rpc: bool = False,
        savepoint: bool = False,
    ) -> None:
        barrier = barrier or self.barrier(checkpoint_id, savepoint=savepoint)
        self._arrived[checkpoint_id].add(index)
        self.do(self.handler.on_barrier(channel(index), barrier, is_rpc=is_rpc))

    def a(self, barrier: CheckpointBarrier, index: int, number: int) -> None:
        self.do(self.handler.on_announcement(channel(index), barrier, number))

    def x(self, checkpoint_id: int, index: int = 0) -> None:
        self.do(self.handler.on_cancel(channel(index), checkpoint_id))

    def e(self, index: int) -> None:
        self.do(self.handler.on_end_of_partition(channel(index)))

    def d(self, index: int = 0, name: str = "", size: int = 100) -> None:
        if self._keeping is not None and index not in self._arrived[self._keeping]:
            self.persisted.append(name)
        self.handler.on_data(size)

    def fire_timer(self, checkpoint_id: int) -> None:
        self.do(self.handler.on_timeout(checkpoint_id))

    def do(self, actions: list[Action]) -> None:
        self.actions += actions
        for action in actions:
            match action:
                case TakeSnapshot(barrier):
                    self.triggered.append(barrier.checkpoint_id)
                    self.barriers.append(barrier)
                case Abort(checkpoint_id, reason):
                    self.aborted.append(checkpoint_id)
                    self.reasons.append(reason.name)
                case ResumeChannel(info):
                    self.resumed.append(info.channel_index)
                case Prioritize(info, number):
                    self.prioritized.append((info.channel_index, number))
                case StartPersisting(barrier):
                    self._keeping = barrier.checkpoint_id
                case StopPersisting(checkpoint_id):
                    assert self._keeping is not None
                    assert checkpoint_id >= self._keeping
                    self._keeping = None
                case SetAlignmentTimer():
                    self.timer = action
                case CancelAlignmentTimer():
                    self.timer = None


def aligned(channels: int, *, after_end: bool = True) -> Inputs:
    clock = ManualClock()
    handler = CheckpointBarrierHandler(channels, clock, after_end=after_end)
    return Inputs(handler, clock)


def unaligned(channels: int) -> Inputs:
    clock = ManualClock()
    handler = CheckpointBarrierHandler(channels, clock, may_overtake=True)
    return Inputs(handler, clock, Alignment.UNALIGNED)


def alternating(channels: int, timeout_ms: int = 100) -> Inputs:
    clock = ManualClock()
    handler = CheckpointBarrierHandler(channels, clock, may_overtake=True)
    return Inputs(handler, clock, timeout_ms=timeout_ms)


def tracker(channels: int, *, after_end: bool = True) -> Inputs:
    clock = ManualClock()
    handler = CheckpointBarrierTracker(channels, clock, after_end=after_end)
    return Inputs(handler, clock, Alignment.AT_LEAST_ONCE)
