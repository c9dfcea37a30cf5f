"""The watermark and status of a task input, out of those of its channels.

Theory of operation: the output is the minimum over the aligned channels. A channel is
aligned while it is active and not behind the output; one that wakes up behind it is
left out until it has caught up, so that it cannot hold the others back. Waking up by
itself never advances the output (Flink 2.3.0); the next watermark does. A channel that
carries several subpartitions counts as several.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.eventtime.generators import (
    CombinedWatermark,
    PartialWatermark,
    WatermarkOutput,
)
from aiomailbox.records.events import MIN_TIMESTAMP, Watermark, WatermarkStatus

ValveOutput = Watermark | WatermarkStatus

_NOTHING: tuple[ValveOutput, ...] = ()


@dataclass(frozen=True, slots=True)
class ValveSnapshot:
    """How far event time had come at an input.

    Attributes:
        watermark: The last watermark passed on.
        is_idle: Whether the last status passed on was idle.
        channels: Per channel its watermark, whether it is active, and whether aligned;
            empty where channels are others now.
    """

    watermark: int
    is_idle: bool = False
    channels: tuple[tuple[int, bool, bool], ...] = ()


class _Slot:
    """The state of one subpartition of one channel."""

    __slots__ = ("active", "aligned", "watermark")

    def __init__(self) -> None:
        self.watermark = MIN_TIMESTAMP
        self.active = True
        self.aligned = True


_watermark_of = attrgetter("watermark")


class StatusWatermarkValve:
    """Joins the watermarks and statuses of channels into those of one input.

    Each method returns what is to be passed on, in order; mostly nothing.

    Args:
        channels: How many channels; each carries one subpartition, 0.

    Raises:
        InvalidArgumentError: If there is no channel.

    Attributes:
        last_watermark: The last watermark passed on.
        status: The last status passed on, at first active.

    Invariants:
        The watermarks passed on only grow. While the output is idle none is passed on.

    Concept:
        Flink, ``StatusWatermarkValve``.

    Example:
        >>> valve = StatusWatermarkValve(2)
        >>> valve.input_watermark(5, 0)
        ()
        >>> valve.input_watermark(3, 1)
        (Watermark(timestamp_ms=3),)
    """

    def __init__(self, channels: int) -> None:
        if channels < 1:
            raise InvalidArgumentError(
                "channels", f"{channels} channels have no watermark", "Use 1 or more."
            )
        self._connect([[0]] * channels)

    @classmethod
    def shared(cls, subpartitions: Sequence[Iterable[int]]) -> StatusWatermarkValve:
        """Return a valve for channels that carry several subpartitions.

        Args:
            subpartitions: Per channel the indices of the subpartitions it carries.
        """
        valve = cls(len(subpartitions))
        valve._connect(subpartitions)
        return valve

    def _connect(self, subpartitions: Sequence[Iterable[int]]) -> None:
        self._slots_of = [
            {index: _Slot() for index in indices} for indices in subpartitions
        ]
        self._slots = [slot for slots in self._slots_of for slot in slots.values()]
        self._holder = self._slots[0]
        self.last_watermark: int = MIN_TIMESTAMP
        self.status: WatermarkStatus = WatermarkStatus.ACTIVE

    def input_watermark(
        self, timestamp_ms: int, channel: int, subpartition: int = 0
    ) -> Sequence[ValveOutput]:
        """Take a watermark from a channel."""
        slot = self._slots_of[channel][subpartition]
        if (
            not slot.active
            or timestamp_ms <= slot.watermark
            # Not even remembered: while a channel is idle it says nothing about its
            # time.
            or self.status is WatermarkStatus.IDLE
        ):
            return _NOTHING
        slot.watermark = timestamp_ms
        if timestamp_ms >= self.last_watermark:
            slot.aligned = True
        holder = self._holder
        # The usual case, without checking all channels.
        if holder.watermark == self.last_watermark and holder.aligned:
            return _NOTHING  # the one that holds the output back is another one
        return self._minimum()

    def input_status(
        self, status: WatermarkStatus, channel: int
    ) -> Sequence[ValveOutput]:
        """Take a status from a channel."""
        outputs: list[ValveOutput] = []
        for slot in self._slots_of[channel].values():
            if status is WatermarkStatus.IDLE and slot.active:
                outputs += self._mark_idle(slot)
            elif status is WatermarkStatus.ACTIVE and not slot.active:
                outputs += self._mark_active(slot)
        return outputs

    def snapshot(self) -> ValveSnapshot:
        """Return how far the input and its channels are."""
        channels = tuple(
            (slot.watermark, slot.active, slot.aligned) for slot in self._slots
        )
        is_idle = self.status is WatermarkStatus.IDLE
        return ValveSnapshot(self.last_watermark, is_idle, channels)

    def restore(self, snapshot: ValveSnapshot) -> None:
        """Go on from a snapshot; where channels are others now, all at its watermark."""
        self.last_watermark = snapshot.watermark
        channels = snapshot.channels
        if len(channels) != len(self._slots):
            channels = ((snapshot.watermark, True, True),) * len(self._slots)
        elif snapshot.is_idle:
            self.status = WatermarkStatus.IDLE
        for slot, (watermark, active, aligned) in zip(
            self._slots, channels, strict=True
        ):
            slot.watermark, slot.active, slot.aligned = watermark, active, aligned
        self._holder = min(self._slots, key=_watermark_of)

    def _mark_idle(self, slot: _Slot) -> Sequence[ValveOutput]:
        slot.active = slot.aligned = False
        # Only a channel that held the output back can free it by leaving.
        held_back = slot.watermark == self.last_watermark
        if any(other.active for other in self._slots):
            return self._minimum() if held_back else _NOTHING
        outputs: list[ValveOutput] = []
        # Flink 2.3.0 flushes only then; a channel ahead of the output leaves it where
        # it is.
        if held_back:
            outputs += self._flush()
        self.status = WatermarkStatus.IDLE
        outputs.append(WatermarkStatus.IDLE)
        return outputs

    def _mark_active(self, slot: _Slot) -> Sequence[ValveOutput]:
        slot.active = True
        slot.aligned = slot.watermark >= self.last_watermark
        if self.status is WatermarkStatus.ACTIVE:
            return _NOTHING
        self.status = WatermarkStatus.ACTIVE
        return (WatermarkStatus.ACTIVE,)

    def _flush(self) -> Sequence[ValveOutput]:
        """Advance the output to the maximum of all: no record will be late any more."""
        highest = max(slot.watermark for slot in self._slots)
        if highest <= self.last_watermark:
            return _NOTHING
        self.last_watermark = highest
        return (Watermark(highest),)

    def _minimum(self) -> Sequence[ValveOutput]:
        """Advance the output to the minimum of the aligned channels."""
        aligned = [slot for slot in self._slots if slot.aligned]
        if not aligned:
            return _NOTHING
        self._holder = min(aligned, key=_watermark_of)
        lowest = self._holder.watermark
        if lowest <= self.last_watermark:
            return _NOTHING
        self.last_watermark = lowest
        return (Watermark(lowest),)


# One watermark of a source out of those of its splits.


class WatermarkOutputMultiplexer:
    """Combines the watermarks of splits into the output of their source.

    A split starts at `MIN_TIMESTAMP` and holds the others back until it has a
    watermark or is idle. Releasing a split emits nothing by itself; the next update
    of another one does. What the output of a split is given is combined at once.

    Args:
        output: Where the combined watermarks and statuses go.

    Concept:
        Flink, ``WatermarkOutputMultiplexer``.

    Example:
        >>> from aiomailbox.eventtime.generators import OutputGuard
        >>> guard = OutputGuard()
        >>> splits = WatermarkOutputMultiplexer(guard)
        >>> a, b = splits.register_split("a"), splits.register_split("b")
        >>> a.emit_watermark(5)
        >>> b.emit_watermark(3)
        >>> guard.watermark
        3
    """

    def __init__(self, output: WatermarkOutput) -> None:
        self._output = output
        self._combined = CombinedWatermark()
        self._splits: dict[str, PartialWatermark] = {}

    @property
    def is_idle(self) -> bool:
        """Whether there are splits, and all of them are idle now."""
        return self._combined.are_all_idle

    def register_split(self, split_id: str) -> WatermarkOutput:
        """Add a split, without a watermark and not idle; return its output."""
        part = self._splits[split_id] = PartialWatermark()
        self._combined.parts.append(part)
        return _SplitOutput(part, self)

    def release_split(self, split_id: str) -> None:
        """Remove a split that has ended, if there is one of this name."""
        part = self._splits.pop(split_id, None)
        if part is not None:
            self._combined.parts.remove(part)

    def split_watermarks(self) -> dict[str, int]:
        """Return the watermark of each split, milliseconds."""
        return {split_id: part.watermark for split_id, part in self._splits.items()}

    def snapshot(self) -> dict[str, tuple[int, bool]]:
        """Return per split its watermark and whether it is idle."""
        return {
            split_id: (part.watermark, part.is_idle)
            for split_id, part in self._splits.items()
        }

    def restore_split(self, split_id: str, watermark: int, *, is_idle: bool) -> None:
        """Let a registered split be where `snapshot` said; emits nothing."""
        part = self._splits[split_id]
        part.watermark = watermark
        part.is_idle = is_idle

    def restore(self, watermark: int) -> None:
        """Let the combined watermark be where it was; emits nothing."""
        self._combined.watermark = watermark
        self._combined.is_idle = self._combined.are_all_idle

    def on_periodic_emit(self) -> None:
        """Combine the splits and emit what follows from them."""
        combined = self._combined
        if combined.update():
            # Before the status: downstream ignores watermarks of an idle stream.
            self._output.emit_watermark(combined.watermark)
        if combined.is_idle:
            self._output.mark_idle()

    def mark_active(self) -> None:
        """Pass on that a split is no longer quiet."""
        self.on_periodic_emit()
        self._output.mark_active()


class _SplitOutput:
    """Combines what a split says at once."""

    def __init__(
        self, part: PartialWatermark, multiplexer: WatermarkOutputMultiplexer
    ) -> None:
        self._part = part
        self._multiplexer = multiplexer

    def emit_watermark(self, timestamp_ms: int) -> None:
        if self._part.advance(timestamp_ms):
            self._multiplexer.on_periodic_emit()

    def mark_idle(self) -> None:
        self._part.is_idle = True
        self._multiplexer.on_periodic_emit()

    def mark_active(self) -> None:
        self._part.is_idle = False
        self._multiplexer.mark_active()
