"""Event times and watermarks in the middle of a stream."""

from __future__ import annotations

from aiomailbox.eventtime import OutputGuard, WatermarkStrategy
from aiomailbox.operators.contract import Operator, Pending, then
from aiomailbox.operators.event_progress import (
    WATERMARK_INTERVAL_MS,
    IdleTicks,
    assign_timestamps,
    emit_progress,
)
from aiomailbox.records import MAX_TIMESTAMP, Run, WatermarkStatus


class TimestampsAndWatermarksOperator(Operator):
    """Gives records event times, and the stream watermarks of its own.

    Watermarks and statuses from upstream end here, except the last watermark of all.
    A watermark follows each run in which event time advanced.

    Args:
        strategy: Where event times come from, and how late records may be.
        interval_ms: How often to look whether the stream has become idle; only with a
            strategy that has an idle timeout.

    Concept:
        Flink, ``TimestampsAndWatermarksOperator``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> strategy = WatermarkStrategy.for_monotonous_timestamps()
        >>> strategy = strategy.with_timestamp_assigner(lambda value: value)
        >>> with OneInputHarness(TimestampsAndWatermarksOperator(strategy)) as harness:
        ...     harness.process_run([3, 5])
        ...     harness.output[-1]
        Watermark(timestamp_ms=4)
    """

    def __init__(
        self, strategy: WatermarkStrategy, *, interval_ms: int = WATERMARK_INTERVAL_MS
    ) -> None:
        self._strategy = strategy
        self._interval_ms = interval_ms
        self._ticks: IdleTicks | None = None

    def open(self) -> Pending:
        """Begin, and watch for idleness if the strategy says so."""
        self._guard = OutputGuard()
        self._ticks = IdleTicks(
            self._strategy, self._interval_ms, self.context, self.output, self._tick
        )
        self._assigner = self._strategy.create_assigner()
        self._generator = self._strategy.create_generator(self._ticks.clock)
        return None

    def process_run(self, run: Run) -> Pending:
        """Emit the records with their event times, and the watermark after them."""
        run = assign_timestamps(self, self._assigner, run)
        pending = self.output.emit_run(run)
        if run.timestamps is not None:
            self._generator.on_run(run.timestamps, self._guard)
        self._generator.on_periodic_emit(self._guard)
        return then(pending, self._emit_progress)

    def process_watermark(self, timestamp_ms: int) -> Pending:
        """Ignore a watermark from upstream, unless it is the last of all."""
        if timestamp_ms != MAX_TIMESTAMP:
            return None
        self._stop_ticks()
        self._guard.emit_watermark(MAX_TIMESTAMP)
        return self._emit_progress()

    def process_status(self, status: WatermarkStatus) -> Pending:
        """Ignore the status: idleness is found out here."""
        return None

    def close(self) -> Pending:
        """Watch for idleness no more."""
        self._stop_ticks()
        return None

    def _tick(self) -> Pending:
        self._generator.on_periodic_emit(self._guard)
        return self._emit_progress()

    def _emit_progress(self) -> Pending:
        return emit_progress(self.output, self._guard.take())

    def _stop_ticks(self) -> None:
        if self._ticks is not None:
            self._ticks.stop()
