"""One watermark of a source out of those of its splits."""

from __future__ import annotations

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.eventtime.generators import (
    CombinedWatermark,
    PartialWatermark,
    WatermarkOutput,
)


class WatermarkOutputMultiplexer:
    """Combines the watermarks of splits into the output of their source.

    A split starts at `MIN_TIMESTAMP` and holds the others back until it has a
    watermark or is idle. Releasing a split emits nothing by itself; the next update
    of another one does. What an immediate output is given is combined at once, what a
    deferred output is given with the next combination or `on_periodic_emit`.

    Args:
        output: Where the combined watermarks and statuses go.

    Concept:
        Flink, ``WatermarkOutputMultiplexer``.

    Example:
        >>> from aiomailbox.eventtime.generators import OutputGuard
        >>> guard = OutputGuard()
        >>> splits = WatermarkOutputMultiplexer(guard)
        >>> splits.register_split("a")
        >>> splits.register_split("b")
        >>> splits.immediate_output("a").emit_watermark(5)
        >>> splits.immediate_output("b").emit_watermark(3)
        >>> guard.watermark
        3
    """

    __slots__ = ("_combined", "_output", "_splits")

    def __init__(self, output: WatermarkOutput) -> None:
        self._output = output
        self._combined = CombinedWatermark()
        self._splits: dict[str, PartialWatermark] = {}

    @property
    def is_idle(self) -> bool:
        """Whether there are splits, and all of them are idle now."""
        return self._combined.are_all_idle

    def register_split(self, split_id: str) -> None:
        """Add a split, without a watermark and not idle.

        Raises:
            InvalidArgumentError: If there is a split of this name.
        """
        if split_id in self._splits:
            raise InvalidArgumentError(
                "split_id",
                f"split {split_id!r} is registered already",
                "Release it before it is registered again.",
            )
        part = self._splits[split_id] = PartialWatermark()
        self._combined.parts.append(part)

    def release_split(self, split_id: str) -> bool:
        """Remove a split that has ended; says whether there was one."""
        part = self._splits.pop(split_id, None)
        if part is None:
            return False
        self._combined.parts.remove(part)
        return True

    def immediate_output(self, split_id: str) -> WatermarkOutput:
        """Return an output of the split that is combined at once."""
        return _ImmediateOutput(self._part(split_id), self)

    def deferred_output(self, split_id: str) -> WatermarkOutput:
        """Return an output of the split that waits for `on_periodic_emit`."""
        return _DeferredOutput(self._part(split_id))

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
        part = self._part(split_id)
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

    def _part(self, split_id: str) -> PartialWatermark:
        part = self._splits.get(split_id)
        if part is None:
            raise InvalidArgumentError(
                "split_id",
                f"there is no split {split_id!r}",
                f"Register it first; there are {sorted(self._splits)}.",
            )
        return part


class _DeferredOutput:
    """Keeps what a split says for later."""

    __slots__ = ("_part",)

    def __init__(self, part: PartialWatermark) -> None:
        self._part = part

    def emit_watermark(self, timestamp_ms: int) -> None:
        self._part.advance(timestamp_ms)

    def mark_idle(self) -> None:
        self._part.is_idle = True

    def mark_active(self) -> None:
        self._part.is_idle = False


class _ImmediateOutput:
    """Combines what a split says at once."""

    __slots__ = ("_multiplexer", "_part")

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
