"""Puts records together in lists."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from aiomailbox.durations import duration_ms
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.eventtime.processing_time import TimerHandle
from aiomailbox.operators.core.operator import Operator, Pending, then
from aiomailbox.policies.arguments import check_count
from aiomailbox.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, WatermarkStatus
from aiomailbox.records.run import ListRun, Run
from aiomailbox.state.rescale import OperatorStateSnapshot, RedistributionMode

__all__ = ["BatchOperator"]


class BatchOperator(Operator):
    """Replaces records by lists of them, in their order.

    Theory of operation: a list goes out when it is full, when its first record has
    waited long enough, when the stream becomes idle, and at the end. Its event time is
    the latest one of its records. A watermark that comes while a list is open follows
    that list, so no list is late; of several the last one counts.

    Args:
        size: Records in a list at most.
        within: How long the first record of a list waits for others, in processing
            time: a timedelta or seconds; None for as long as it takes.

    Raises:
        InvalidArgumentError: If ``size`` is below 1, or ``within`` not above zero.
        WrongTypeError: If one is of another type.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> with OneInputHarness(BatchOperator(2, within=1)) as harness:
        ...     harness.process_run(["a", "b", "c"])
        ...     harness.set_processing_time(1001)
        ...     harness.values
        [['a', 'b'], ['c']]
    """

    def __init__(self, size: int, within: timedelta | float | None = None) -> None:
        self.size: int = check_count(size, "size")
        self.within_ms: int | None = (
            None if within is None else duration_ms(within, "within")
        )
        if self.within_ms == 0:
            raise InvalidArgumentError(
                "within", "it is 0", "Use a millisecond or more, or None."
            )
        self._values: list[Any] = []
        self._stamps: list[int] = []
        self._timer: TimerHandle | None = None
        self._due = 0
        self._held_watermark: int | None = None

    def open(self) -> Pending:
        """Go on with the open lists of earlier instances."""
        if self._values:
            self._arm(self._due)
        return None

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return the open list, when it is due, and the watermark that waits for it."""
        records = zip(self._values, self._stamps, strict=True)
        own = super().snapshot_own().with_list("open-batch", records)
        if not self._values:
            return own
        waiting = (len(self._values), self._due, self._held_watermark)
        return own.with_list("waiting", [waiting], RedistributionMode.MERGE)

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Take over the open list, or what of several lists has come here."""
        for value, stamp in own.elements("open-batch"):
            self._values.append(value)
            self._stamps.append(stamp)
        if not self._values:
            return
        waiting = own.elements("waiting")
        # The earliest: no record may wait longer than was promised to it.
        self._due = min(due for _, due, _ in waiting)
        held = [watermark for _, _, watermark in waiting if watermark is not None]
        # It came whole to one subtask, so its own watermark is still right.
        if len(waiting) == 1 and waiting[0][0] == len(self._values):
            self._held_watermark = waiting[0][2]
        elif held and self.watermark_ms != MIN_TIMESTAMP:
            # Of several lists each had watermarks of its own.
            self._held_watermark = self.watermark_ms

    def process_run(self, run: Run) -> Pending:
        """Take the records, and pass on the lists that are full."""
        if not len(run):
            return None
        was_empty = not self._values
        self._values += run.values
        self._stamps += run.timestamps or [MIN_TIMESTAMP] * len(run)
        if len(self._values) < self.size:
            if was_empty:
                self._arm()
            return None
        return self._emit(len(self._values) // self.size * self.size)

    def pass_watermark(self, timestamp_ms: int) -> Pending:
        """Hold the watermark back while a list is open."""
        # Nothing comes after it that could fill the list.
        if timestamp_ms == MAX_TIMESTAMP:
            self._held_watermark = None
            pending = self._emit(len(self._values))
            return then(pending, self.output.emit_watermark, timestamp_ms)
        if not self._values:
            return self.output.emit_watermark(timestamp_ms)
        self._held_watermark = timestamp_ms
        return None

    def process_status(self, status: WatermarkStatus) -> Pending:
        """Pass the status on after the open list."""
        return then(self._emit(len(self._values)), self.output.emit_status, status)

    def end_input(self) -> Pending:
        """Pass on the open list."""
        return self._emit(len(self._values))

    def close(self) -> Pending:
        """Wait no more."""
        self._disarm()
        return None

    def _emit(self, count: int) -> Pending:
        """Pass on lists of the first ``count`` records, then the held watermark."""
        if not count:
            return None
        self._disarm()
        lists, stamps = [], []
        for start in range(0, count, self.size):
            end = min(start + self.size, count)
            lists.append(self._values[start:end])
            stamps.append(max(self._stamps[start:end]))
        del self._values[:count], self._stamps[:count]
        if self._values:
            self._arm()
        has_times = any(stamp != MIN_TIMESTAMP for stamp in stamps)
        pending = self.output.emit_run(ListRun(lists, stamps if has_times else None))
        held = self._held_watermark
        # What is left of the last run came after the watermark.
        self._held_watermark = None
        return pending if held is None else then(pending, self._watermark, held)

    def _watermark(self, timestamp_ms: int) -> Pending:
        return self.output.emit_watermark(timestamp_ms)

    def _arm(self, due: int | None = None) -> None:
        if self.within_ms is None:
            return
        time = self.context.processing_time
        # A restored list keeps its due time: restarts must not put it off for ever.
        self._due = due or time.current_processing_time() + self.within_ms
        self._timer = time.register_timer(self._due, self._on_timer)

    def _disarm(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _on_timer(self, _: int) -> Pending:
        self._timer = None
        return self._emit(len(self._values))
