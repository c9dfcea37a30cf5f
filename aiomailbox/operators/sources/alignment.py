"""How a source operator keeps to the pace of its alignment group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from aiomailbox.availability import Availability
from aiomailbox.errors import IllegalStateError
from aiomailbox.eventtime.alignment import AlignedReader, AlignmentGroup
from aiomailbox.eventtime.idleness import RelativeClock
from aiomailbox.eventtime.processing_time import TimerHandle
from aiomailbox.eventtime.strategy import AlignmentConfig
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP

# How long the first run is, which tells how fast event time moves.
_FIRST_RUN: Final = 64


class SourceAlignment:
    """Reports a reader's watermark to its group, and holds the reader to the limit.

    The first watermark is reported at once, later ones every update interval. A
    reader counts as idle while all its splits are and it emitted nothing since the
    report before; it then holds none back. The limit is looked at after each run, so
    runs are kept as short as the limit seems to be near.

    Args:
        config: The group, the drift and the interval.
        context: The source operator's context.
        clock: The idleness clock; stands still while the reader waits.
        on_tick: Called every update interval; is to call `report`.

    Attributes:
        availability: True while the reader need not wait.

    Concept:
        Flink, the alignment part of ``SourceOperator``.
    """

    __slots__ = (
        "_group",
        "_handle",
        "_has_reported",
        "_limit",
        "_ms_per_record",
        "_name",
        "_on_tick",
        "_paused",
        "_reader",
        "_saw_run",
        "availability",
    )

    def __init__(
        self,
        config: AlignmentConfig,
        context: RuntimeContext,
        clock: RelativeClock,
        on_tick: Callable[[], None],
    ) -> None:
        self._name = f"{context.task_name}/{context.operator_name}"
        self._group: AlignmentGroup = context.alignment(config)
        # A predecessor whose process was killed could not say that it has ended.
        self._group.report(self._name, MAX_TIMESTAMP)
        self._reader = AlignedReader(clock)
        self._on_tick = on_tick
        self._saw_run = False
        self._has_reported = False
        self._limit = MAX_TIMESTAMP
        self._ms_per_record: float | None = None
        self._paused: set[str] = set()
        self.availability: Availability = self._reader.availability
        interval_ms = config.update_interval_ms
        self._handle: TimerHandle | None = (
            context.processing_time.schedule_at_fixed_rate(
                self._tick, interval_ms, interval_ms
            )
        )

    @property
    def must_wait(self) -> bool:
        """Whether the reader is beyond the limit."""
        return not self.availability.available

    def room(self, records_max: int) -> int:
        """Return how many records, of at most so many, may be read in one run."""
        if self._ms_per_record is None:
            return min(records_max, _FIRST_RUN)
        # Cut so that one run does not leap over the limit; at least one record, or it
        # never would.
        left_ms = self._limit - self._reader.watermark
        needed_ms = self._ms_per_record * records_max
        if needed_ms <= left_ms:
            return records_max
        return max(int(left_ms / self._ms_per_record), 1)

    def on_run(self, records: int, watermark_ms: int) -> None:
        """Be notified of the length of a run and of the watermark after it."""
        before = self._reader.watermark
        if before != MIN_TIMESTAMP:
            self._ms_per_record = max(watermark_ms - before, 0) / records
        self._saw_run = True
        self._reader.mark_active()
        self._reader.on_watermark(watermark_ms)
        # At once the first time: until then the group does not know of it.
        if not self._has_reported and self._reader.report() is not None:
            self._has_reported = True
            self._exchange()

    def report(self, watermark_ms: int, *, is_idle: bool) -> None:
        """Tell the group where the reader is, and take its limit.

        Args:
            watermark_ms: The reader's watermark.
            is_idle: Whether all its splits are idle.
        """
        self._reader.on_watermark(watermark_ms)
        # Idle only if nothing was read since the last look: a pause is no idleness.
        if is_idle and not self._saw_run:
            self._reader.mark_idle()
        else:
            self._reader.mark_active()
        self._saw_run = False
        self._exchange()

    def pause_splits(self, reader: Any, watermarks: Mapping[str, int]) -> None:
        """Let the reader pause splits that are beyond the limit, and resume others.

        Args:
            reader: The reader; with several splits it needs the method
                ``pause_or_resume_splits(to_pause, to_resume)``.
            watermarks: The watermark of each split, milliseconds.

        Raises:
            IllegalStateError: If a split is to pause and the reader cannot do that.
        """
        limit = self._group.limit()
        ahead = {split for split, reached in watermarks.items() if reached > limit}
        # A single split is held back by the reader itself, as in Flink (FLIP-217).
        if len(watermarks) < 2:
            ahead.clear()
        pause, resume = ahead - self._paused, (self._paused - ahead) & set(watermarks)
        self._paused = ahead
        if not pause and not resume:
            return
        change = getattr(reader, "pause_or_resume_splits", None)
        if change is None:
            raise IllegalStateError(
                f"{type(reader).__name__} cannot pause single splits, and of its "
                f"{len(watermarks)} splits {sorted(pause)} ran ahead of the watermark "
                "alignment: give each reader one split (a higher parallelism), define "
                "pause_or_resume_splits(to_pause, to_resume), or leave "
                "with_watermark_alignment(...) out"
            )
        change(sorted(pause), sorted(resume))

    def end(self) -> None:
        """Wait no more, and hold no other reader back."""
        if self._handle is None:
            return
        self._handle.cancel()
        self._handle = None
        self._reader.end()
        self._group.report(self._name, self._reader.report())

    def _tick(self, _: int) -> None:
        if self._handle is not None:
            self._on_tick()

    def _exchange(self) -> None:
        self._group.report(self._name, self._reader.report())
        self._limit = self._group.limit()
        self._reader.on_limit(self._limit)
