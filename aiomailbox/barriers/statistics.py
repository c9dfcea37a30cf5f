"""How long the barriers of a checkpoint took to meet, and what was read meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from aiomailbox.clock import Clock

__all__ = ["AlignmentMeter", "AlignmentStatistics"]


@dataclass(slots=True)
class AlignmentStatistics:
    """What one checkpoint's alignment cost at one task.

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

    __slots__ = ("_bytes", "_clock", "_started_s", "latest")

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
