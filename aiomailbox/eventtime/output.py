"""Where watermark generators put what they find out."""

from __future__ import annotations

from typing import Protocol

from aiomailbox.records.elements import MIN_TIMESTAMP, Watermark, WatermarkStatus

__all__ = ["OutputGuard", "WatermarkOutput"]


class WatermarkOutput(Protocol):
    """Takes watermarks and statuses from a generator.

    Concept:
        Flink, ``WatermarkOutput``.
    """

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Take a watermark; the stream is active from then on if it advances."""
        ...

    def mark_idle(self) -> None:
        """Be notified that the stream will be quiet."""
        ...

    def mark_active(self) -> None:
        """Be notified that the stream is no longer quiet."""
        ...


class OutputGuard:
    """Lets through only watermarks that advance and statuses that change.

    A watermark that does not advance is dropped before the status is looked at: an
    idle stream that resumes with old times stays idle until event time moves.

    Attributes:
        watermark: The last one let through, `MIN_TIMESTAMP` before the first.
        is_idle: Whether the status let through last is idle.

    Concept:
        Flink, ``WatermarkToDataOutput``.

    Example:
        >>> guard = OutputGuard()
        >>> guard.mark_idle()
        >>> guard.emit_watermark(7)
        >>> guard.take()
        [<WatermarkStatus.IDLE: 'idle'>, <WatermarkStatus.ACTIVE: 'active'>,
         Watermark(timestamp_ms=7)]
        >>> guard.take()
        []
    """

    __slots__ = ("_outputs", "is_idle", "watermark")

    def __init__(self) -> None:
        self.watermark: int = MIN_TIMESTAMP
        self.is_idle: bool = False
        self._outputs: list[Watermark | WatermarkStatus] = []

    def repeat(self) -> None:
        """Let once more through where the stream is: what follows may be new."""
        if self.watermark > MIN_TIMESTAMP:
            self._outputs.append(Watermark(self.watermark))
        if self.is_idle:
            self._outputs.append(WatermarkStatus.IDLE)

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Let the watermark through if it advances, after ACTIVE if it was idle."""
        # Before the status is looked at: an idle stream that resumes with old times
        # stays idle.
        if timestamp_ms <= self.watermark:
            return
        self.watermark = timestamp_ms
        self.mark_active()
        self._outputs.append(Watermark(timestamp_ms))

    def mark_idle(self) -> None:
        """Let IDLE through, once."""
        if not self.is_idle:
            self.is_idle = True
            self._outputs.append(WatermarkStatus.IDLE)

    def mark_active(self) -> None:
        """Let ACTIVE through if the stream was idle."""
        if self.is_idle:
            self.is_idle = False
            self._outputs.append(WatermarkStatus.ACTIVE)

    def take(self) -> list[Watermark | WatermarkStatus]:
        """Return what was let through since the last call, in order."""
        if not self._outputs:
            return []
        outputs, self._outputs = self._outputs, []
        return outputs
