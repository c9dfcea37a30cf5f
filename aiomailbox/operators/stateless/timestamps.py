"""Event times and watermarks in the middle of a stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aiomailbox.eventtime.assigner import TimestampAssigner
from aiomailbox.eventtime.generators import (
    NoWatermarks,
    check_before_end_of_time,
    follow_run,
)
from aiomailbox.eventtime.output import OutputGuard
from aiomailbox.eventtime.strategy import WatermarkStrategy
from aiomailbox.operators.core.event_progress import (
    WATERMARK_INTERVAL_MS,
    IdleTicks,
    assign_timestamps,
    emit_progress,
    warn_of_seconds,
)
from aiomailbox.operators.core.failures import (
    USER_ERRORS,
    ErrorAction,
    OnError,
    RecordFailures,
    check_on_error,
    fail,
)
from aiomailbox.operators.core.operator import Operator, Pending, then
from aiomailbox.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, WatermarkStatus
from aiomailbox.records.run import ListRun, Run
from aiomailbox.state.rescale import OperatorStateSnapshot, RedistributionMode


class TimestampsAndWatermarksOperator(Operator):
    """Gives records event times, and the stream watermarks of its own.

    Watermarks and statuses from upstream end here, except the last watermark of all.
    A watermark follows each run in which event time advanced.

    Args:
        strategy: Where event times come from, and how late records may be.
        interval_ms: How often to look whether the stream has become idle; only with a
            strategy that has an idle timeout.
        on_error: What to do with a record for which the timestamp assigner raises, or
            gives no event time.

    Attributes:
        strategy: What it was given.

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
        self,
        strategy: WatermarkStrategy,
        *,
        interval_ms: int = WATERMARK_INTERVAL_MS,
        on_error: OnError = fail,
    ) -> None:
        self.strategy: WatermarkStrategy = strategy
        self.takes_columns = not callable(strategy.assigner)
        if strategy.idleness_ms is not None:
            self.live_clock_need = "with_idleness(...)"
        self.on_error: OnError = check_on_error(on_error)
        self._interval_ms = interval_ms
        self._ticks: IdleTicks | None = None
        self._guard = OutputGuard()

    def hold_watermarks(self) -> None:
        """Let event time move at the end of the input only; before `setup`."""
        self.strategy = replace(self.strategy, generator_factory=NoWatermarks)

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return the watermark emitted last, and whether the stream is idle."""
        progress = (self._guard.watermark, self._guard.is_idle)
        mode = RedistributionMode.MERGE
        return super().snapshot_own().with_list("progress", [progress], mode)

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Go on with the watermark; of several, with that which was behind."""
        progress = own.elements("progress")
        if progress:
            # The one behind: of the others' records some are still to come.
            self._guard.watermark = min(watermark for watermark, _ in progress)
            self._guard.is_idle = all(is_idle for _, is_idle in progress)

    def open(self) -> Pending:
        """Begin, and watch for idleness if the strategy says so."""
        self._ticks = IdleTicks(
            self.strategy, self._interval_ms, self.context, self.output, self._tick
        )
        self._assigner = self.strategy.create_assigner()
        self._failures = RecordFailures(
            self.on_error, self._function(), self.context, self.output
        )
        self._generator = self.strategy.create_generator(self._ticks.clock)
        return None

    def process_run(self, run: Run) -> Pending:
        """Emit the records with their event times, and the watermark after them."""
        reported: Pending = None
        if self.on_error.action is ErrorAction.FAIL:
            run = assign_timestamps(self, self._assigner, run)
        else:
            run = self._assign_or_take(run)
            if self._assigner is not None and self._assigner.is_new:
                self._assigner.is_new = False
                warn_of_seconds(self.context, run)
            reported = self._failures.report() if self._failures.waiting else None
        pending = then(reported, self.output.emit_run, run)
        follow_run(self._generator, run, self._guard)
        self._generator.on_periodic_emit(self._guard)
        return then(pending, self._emit_progress)

    def on_watermark(self, timestamp_ms: int) -> Pending:
        """Ignore a watermark from upstream, unless it is the last of all."""
        # As in Flink: watermarks are made anew here, but the end of time is the end.
        if timestamp_ms != MAX_TIMESTAMP:
            return None
        self._stop_ticks()
        self._guard.emit_watermark(MAX_TIMESTAMP)
        return self._emit_progress()

    def repeat_progress(self) -> Pending:
        """Pass on once more how far the stream's own event time had come."""
        self._guard.repeat()
        return self._emit_progress()

    def process_status(self, status: WatermarkStatus) -> Pending:
        """Ignore the status: idleness is found out here."""
        return None

    def close(self) -> Pending:
        """Watch for idleness no more."""
        self._stop_ticks()
        return None

    def _assign_or_take(self, run: Run) -> Run:
        """Return the run with event times, without the records that failed."""
        assigner = self._assigner
        if assigner is None:
            return run
        if assigner.field is None:
            # What a function of the user's has done cannot be undone: one call a record.
            return self._assign_each(assigner, run)
        try:
            return _checked(assigner.timed(run))
        except USER_ERRORS:
            return self._assign_each(assigner, run)

    def _assign_each(self, assigner: TimestampAssigner, run: Run) -> Run:
        before = run.timestamps
        values: list[Any] = []
        times: list[int] = []
        for index, value in enumerate(run.values):
            stamp = None if before is None else before[index]
            previous = None if stamp == MIN_TIMESTAMP else stamp
            try:
                time = assigner.assign_one(value, previous)
                check_before_end_of_time(time)
            except USER_ERRORS as error:
                self._failures.take(value, stamp, error)
            else:
                values.append(value)
                times.append(time)
        return ListRun(values, times)

    def _function(self) -> Callable[..., Any]:
        """Return the user's assigner, for errors; a field's name has no line."""
        spec = self.strategy.assigner
        return spec if callable(spec) else self.process_run

    def _tick(self) -> Pending:
        self._generator.on_periodic_emit(self._guard)
        return self._emit_progress()

    def _emit_progress(self) -> Pending:
        return emit_progress(self.output, self._guard.take())

    def _stop_ticks(self) -> None:
        if self._ticks is not None:
            self._ticks.stop()


def _checked(run: Run) -> Run:
    times = run.timestamps
    check_before_end_of_time(max(times or (), default=0))
    return run
