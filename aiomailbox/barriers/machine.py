"""How the barriers of one checkpoint meet: aligned, or aligned until it takes too long.

Theory of operation: there are four states. ::

    WAITING_ALIGNED       no barrier was read, but some may be announced
    COLLECTING_ALIGNED    some channels are blocked by their barrier
    WAITING_UNALIGNED     time was over before the first barrier was read
    COLLECTING_UNALIGNED  the snapshot was triggered; data before the missing barriers
                          is being kept

A machine whose barriers may not overtake stays in the first two. An aligned barrier
blocks its channel at the producer: whatever becomes of the checkpoint, the channel must
be resumed once.

Concept:
    Flink, ``BarrierHandlerState`` and its implementations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from aiomailbox.records.events import Alignment, CheckpointBarrier

# What a barrier handler decides: values, carried out in their order by its gate.
#
# Theory of operation: a handler is pure. Each event of a channel, and the end of an
# alignment's time, gives a list of actions; the owner of the handler carries them out
# before it reads on. Nothing here touches a channel, a task or a timer.


class ChannelInfo(NamedTuple):
    """A channel of a task: the index of its gate, and its own in there.

    Concept:
        Flink, ``InputChannelInfo``.
    """

    gate_index: int
    channel_index: int


class DeclineReason(Enum):
    """Why a task will not take part in a checkpoint.

    Concept:
        Flink, ``CheckpointFailureReason``.
    """

    SUBSUMED = "a newer barrier overtook it"
    CANCELLED = "a task upstream cancelled it"
    END_OF_STREAM = "an input ended during the alignment"


@dataclass(frozen=True, slots=True)
class ResumeChannel:
    """Go on reading a channel that its barrier blocked."""

    channel: ChannelInfo


@dataclass(frozen=True, slots=True)
class Prioritize:
    """Let a queued barrier that was announced overtake what is before it.

    Attributes:
        channel: Where it is queued.
        sequence_number: The buffer that carries it.
    """

    channel: ChannelInfo
    sequence_number: int


@dataclass(frozen=True, slots=True)
class StartPersisting:
    """Let every channel keep its data in flight until its barrier arrives."""

    barrier: CheckpointBarrier


@dataclass(frozen=True, slots=True)
class StopPersisting:
    """Let no channel keep data any longer for the checkpoint, or for an older one."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Take the task's snapshot now.

    Attributes:
        barrier: With the alignment that was used in the end.
    """

    barrier: CheckpointBarrier


@dataclass(frozen=True, slots=True)
class Abort:
    """Tell the task that a checkpoint will not happen."""

    checkpoint_id: int
    reason: DeclineReason


@dataclass(frozen=True, slots=True)
class SetAlignmentTimer:
    """Call ``on_timeout`` of the handler with this checkpoint after ``delay_ms``."""

    checkpoint_id: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class CancelAlignmentTimer:
    """Forget the timer, if one is set."""


Action: TypeAlias = (
    Abort
    | CancelAlignmentTimer
    | Prioritize
    | ResumeChannel
    | SetAlignmentTimer
    | StartPersisting
    | StopPersisting
    | TakeSnapshot
)


class AlignmentState(Enum):
    """Where an alignment is."""

    WAITING_ALIGNED = "waiting aligned"
    COLLECTING_ALIGNED = "collecting aligned"
    WAITING_UNALIGNED = "waiting unaligned"
    COLLECTING_UNALIGNED = "collecting unaligned"

    @property
    def is_unaligned(self) -> bool:
        """Whether barriers overtake data from now on."""
        return self in _UNALIGNED


_UNALIGNED: Final = frozenset(
    {AlignmentState.WAITING_UNALIGNED, AlignmentState.COLLECTING_UNALIGNED}
)


class AlignmentMachine:
    """The states of one task's alignments, one checkpoint after the other.

    Args:
        may_overtake: Whether an alignment may turn into an unaligned checkpoint.

    Attributes:
        state: Where the present alignment is.

    Concept:
        Flink, ``ChannelState`` for what it keeps.
    """

    def __init__(self, *, may_overtake: bool) -> None:
        self.state: AlignmentState = AlignmentState.WAITING_ALIGNED
        self._may_overtake = may_overtake
        # Both in the order of arrival: channels are resumed as they were blocked.
        self._blocked: dict[ChannelInfo, None] = {}
        self._announced: dict[ChannelInfo, int] = {}

    @property
    def blocked_channels(self) -> list[ChannelInfo]:
        """The channels that wait to be resumed, in the order of their barriers."""
        return list(self._blocked)

    def on_barrier(
        self,
        channel: ChannelInfo,
        barrier: CheckpointBarrier,
        *,
        blocks: bool,
        is_last: bool,
        is_late: bool,
    ) -> list[Action]:
        """Take a channel's barrier.

        Args:
            channel: Where it came from.
            barrier: The barrier.
            blocks: Whether it stands in the channel, and not for a channel's end.
            is_last: Whether all other barriers have arrived.
            is_late: Whether the time for alignment is over.
        """
        if self.state.is_unaligned:
            return self._on_overtaking(channel, barrier, blocks=blocks, is_last=is_last)
        if barrier.alignment is Alignment.UNALIGNED:
            assert self._may_overtake, "an unaligned barrier where none can be"
            return self._overtake(channel, barrier, is_last=is_last)
        # Read in time: it need not overtake any more.
        self._announced.pop(channel, None)
        if blocks:
            self._blocked[channel] = None
        if is_last:
            return self._complete_aligned(barrier)
        if self._may_overtake and is_late:
            return self._overtake(channel, barrier.as_unaligned(), is_last=is_last)
        self.state = AlignmentState.COLLECTING_ALIGNED
        return []

    def on_announcement(
        self, channel: ChannelInfo, sequence_number: int
    ) -> list[Action]:
        """Take the announcement of a barrier that is still behind data."""
        if self.state.is_unaligned:
            return [Prioritize(channel, sequence_number)]
        self._announced[channel] = sequence_number
        return []

    def on_timeout(self, barrier: CheckpointBarrier) -> list[Action]:
        """Let the barriers overtake from now on; nothing if they do already."""
        if self.state.is_unaligned:
            return []
        actions: list[Action] = [
            Prioritize(channel, number) for channel, number in self._announced.items()
        ]
        self._announced.clear()
        if self.state is AlignmentState.WAITING_ALIGNED:
            # Nothing to trigger yet: the first barrier that comes does it.
            self.state = AlignmentState.WAITING_UNALIGNED
            return actions
        return [*actions, *self._start_unaligned(barrier)]

    def on_end_of_partition(
        self,
        channel: ChannelInfo,
        barrier: CheckpointBarrier,
        *,
        is_last: bool,
        is_late: bool,
    ) -> list[Action]:
        """Take the end of a channel during the checkpoint of ``barrier``."""
        self.forget(channel)
        actions: list[Action] = []
        if self.state is AlignmentState.COLLECTING_ALIGNED:
            if is_last:
                return self._complete_aligned(barrier)
            if self._may_overtake and is_late:
                actions = self.on_timeout(barrier)
        if self.state is AlignmentState.COLLECTING_UNALIGNED and is_last:
            actions += self._complete_unaligned(barrier)
        return actions

    def forget(self, channel: ChannelInfo) -> None:
        """Keep nothing of a channel that has ended: it cannot be resumed."""
        self._blocked.pop(channel, None)
        self._announced.pop(channel, None)

    def abort(self, checkpoint_id: int) -> list[Action]:
        """Give up the present alignment."""
        stopped: list[Action] = []
        if self.state is AlignmentState.COLLECTING_UNALIGNED:
            stopped.append(StopPersisting(checkpoint_id))
        return [*stopped, *self._resume_all()]

    def _overtake(
        self, channel: ChannelInfo, barrier: CheckpointBarrier, *, is_last: bool
    ) -> list[Action]:
        actions = self.on_timeout(barrier)
        # It blocks nothing: the data before the others is read on, and kept.
        return actions + self._on_overtaking(
            channel, barrier, blocks=False, is_last=is_last
        )

    def _on_overtaking(
        self,
        channel: ChannelInfo,
        barrier: CheckpointBarrier,
        *,
        blocks: bool,
        is_last: bool,
    ) -> list[Action]:
        # One that was on its way when time was over still blocks its channel.
        if blocks and barrier.alignment is not Alignment.UNALIGNED:
            self._blocked[channel] = None
        actions: list[Action] = []
        if self.state is AlignmentState.WAITING_UNALIGNED:
            actions = self._start_unaligned(barrier)
        if is_last:
            actions += self._complete_unaligned(barrier)
        return actions

    def _start_unaligned(self, barrier: CheckpointBarrier) -> list[Action]:
        self.state = AlignmentState.COLLECTING_UNALIGNED
        unaligned = barrier.as_unaligned()
        return [StartPersisting(unaligned), TakeSnapshot(unaligned)]

    def _complete_aligned(self, barrier: CheckpointBarrier) -> list[Action]:
        # The snapshot first: what a resumed channel brings is not part of it.
        return [TakeSnapshot(barrier), *self._resume_all()]

    def _complete_unaligned(self, barrier: CheckpointBarrier) -> list[Action]:
        return [StopPersisting(barrier.checkpoint_id), *self._resume_all()]

    def _resume_all(self) -> list[Action]:
        actions: list[Action] = [ResumeChannel(channel) for channel in self._blocked]
        self._blocked.clear()
        self._announced.clear()
        self.state = AlignmentState.WAITING_ALIGNED
        return actions
