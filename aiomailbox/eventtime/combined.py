"""One watermark and status out of several: of splits, or of an operator's inputs."""

from __future__ import annotations

from collections.abc import Sequence

from aiomailbox.records.elements import MIN_TIMESTAMP, Watermark, WatermarkStatus

__all__ = ["CombinedWatermark", "InputWatermarks", "PartialWatermark"]


class PartialWatermark:
    """The watermark and status of one part.

    Attributes:
        watermark: The highest so far, `MIN_TIMESTAMP` before the first.
        is_idle: Whether the part is left out of the minimum.
    """

    __slots__ = ("is_idle", "watermark")

    def __init__(self) -> None:
        self.watermark: int = MIN_TIMESTAMP
        self.is_idle: bool = False

    def advance(self, timestamp_ms: int) -> bool:
        """Take a watermark, which ends idleness; says whether it is higher."""
        self.is_idle = False
        if timestamp_ms <= self.watermark:
            return False
        self.watermark = timestamp_ms
        return True


class CombinedWatermark:
    """The minimum over the parts that are not idle; it never goes back.

    When all parts are idle it is the maximum, for none of them will be late any more.
    Without parts nothing changes.

    Attributes:
        parts: The parts; add and remove at will, nothing happens before `update`.
        watermark: The combined watermark as of the last `update`.
        is_idle: Whether all parts were idle then.

    Concept:
        Flink, ``CombinedWatermarkStatus``.
    """

    __slots__ = ("is_idle", "parts", "watermark")

    def __init__(self) -> None:
        self.parts: list[PartialWatermark] = []
        self.watermark: int = MIN_TIMESTAMP
        self.is_idle: bool = False

    @property
    def are_all_idle(self) -> bool:
        """Whether there are parts, and all of them are idle now."""
        return bool(self.parts) and all(part.is_idle for part in self.parts)

    def update(self) -> bool:
        """Look at all parts again; says whether the watermark has advanced."""
        active = [part.watermark for part in self.parts if not part.is_idle]
        self.is_idle = bool(self.parts) and not active
        if not self.parts:
            return False
        # All idle: the maximum, for the lowest would hold event time back for ever, for
        # records that are not coming (FLINK-38454).
        combined = min(active) if active else max(part.watermark for part in self.parts)
        if combined <= self.watermark:
            return False
        self.watermark = combined
        return True


class InputWatermarks:
    """The watermark and status of an operator with several inputs.

    Each method returns what the operator has to handle, in order; mostly nothing.

    Args:
        inputs: How many inputs, at least one.

    Attributes:
        watermark: The operator's watermark.

    Concept:
        Flink, ``IndexedCombinedWatermarkStatus``.

    Example:
        >>> inputs = InputWatermarks(2)
        >>> inputs.input_watermark(5, 0)
        ()
        >>> inputs.input_watermark(3, 1)
        (Watermark(timestamp_ms=3),)
    """

    __slots__ = ("_combined",)

    def __init__(self, inputs: int) -> None:
        self._combined = CombinedWatermark()
        self._combined.parts = [PartialWatermark() for _ in range(inputs)]

    @property
    def watermark(self) -> int:
        """The operator's watermark, milliseconds."""
        return self._combined.watermark

    @property
    def is_idle(self) -> bool:
        """Whether all inputs are idle."""
        return self._combined.is_idle

    def input_watermark(
        self, timestamp_ms: int, index: int
    ) -> tuple[Watermark | WatermarkStatus, ...]:
        """Take the watermark of an input."""
        part = self._combined.parts[index]
        was_idle = part.is_idle
        # Not higher, but a part that was idle counts again: that may hold the others
        # back.
        if not part.advance(timestamp_ms) and not was_idle:
            return ()
        return self._updated()

    def input_status(
        self, status: WatermarkStatus, index: int
    ) -> tuple[Watermark | WatermarkStatus, ...]:
        """Take the status of an input."""
        self._combined.parts[index].is_idle = status is WatermarkStatus.IDLE
        return self._updated()

    def snapshot(self) -> tuple[int, tuple[tuple[int, bool], ...]]:
        """Return the watermark, and per input its watermark and whether it is idle."""
        combined = self._combined
        parts = tuple((part.watermark, part.is_idle) for part in combined.parts)
        return combined.watermark, parts

    def restore(
        self, snapshots: Sequence[tuple[int, Sequence[tuple[int, bool]]]]
    ) -> None:
        """Take over what was returned by `snapshot`, here or in several subtasks.

        Of several, an input is where the subtask was that was behind, and idle if it
        was idle everywhere.
        """
        if not snapshots:
            return
        combined = self._combined
        # The least of what earlier subtasks had reached: records of the one behind must
        # not be late.
        combined.watermark = min(watermark for watermark, _ in snapshots)
        for index, part in enumerate(combined.parts):
            facts = [parts[index] for _, parts in snapshots]
            part.watermark = min(watermark for watermark, _ in facts)
            part.is_idle = all(is_idle for _, is_idle in facts)
        combined.is_idle = combined.are_all_idle

    def _updated(self) -> tuple[Watermark | WatermarkStatus, ...]:
        combined = self._combined
        was_idle = combined.is_idle
        outputs: tuple[Watermark | WatermarkStatus, ...] = ()
        if combined.update():
            outputs = (Watermark(combined.watermark),)
        if was_idle is combined.is_idle:
            return outputs
        # Downstream drops watermarks of an idle stream: active first, idle last.
        if was_idle:
            return (WatermarkStatus.ACTIVE, *outputs)
        return (*outputs, WatermarkStatus.IDLE)
