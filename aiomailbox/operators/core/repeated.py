"""Warnings that may come for every record, said at most once in a while."""

from __future__ import annotations

from typing import Any, Final

from aiomailbox.clock import Clock
from aiomailbox.errors import safe_repr
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, OutputTag

__all__ = ["LateRecords", "RepeatedWarnings"]

_INTERVAL_S: Final = 1.0
_LATE_INTERVAL_S: Final = 60.0
_LATE: Final = "late records dropped"
_UNREAD: Final = "records of a side output are dropped, as no operator reads it"


class RepeatedWarnings:
    """Logs what happens again and again: at once, then the sum of each interval.

    Args:
        log: A structlog logger.
        clock: Says when an interval is over.

    Example:
        >>> from aiomailbox.testing import ManualClock, RecordingLog
        >>> log = RecordingLog()
        >>> warnings = RepeatedWarnings(log, ManualClock())
        >>> for number in range(1000):
        ...     warnings.add("records skipped", 1, ValueError(number))
        >>> warnings.flush()
        >>> [(fields["count"], fields["total"]) for _, _, fields in log.entries]
        [(1, 1), (999, 1000)]
    """

    __slots__ = ("_clock", "_events", "_log")

    def __init__(self, log: Any, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        # By what happens, and where: texts of the program, so they are few.
        self._events: dict[tuple[str, str], _Event] = {}

    def add(self, event: str, count: int, error: BaseException) -> None:
        """Say that something happened, or say it later: at most once a second.

        Args:
            event: What happens; one of few texts.
            count: How often it happened.
            error: Why, the first time of these.
        """
        found = self._found(event, _INTERVAL_S)
        if not found.count:
            # As text: an exception keeps all that was on its stack.
            found.fields = {"first_error": safe_repr(error)}
        self._count(event, found, count)

    def late(self, count: int, behind_ms: int | None) -> None:
        """Say that records came too late and are dropped: at most once a minute.

        Args:
            count: How many.
            behind_ms: How far the farthest of them is behind the watermark; None if
                event time has ended.
        """
        found = self._found(_LATE, _LATE_INTERVAL_S)
        if behind_ms is not None:
            behind_ms = max(behind_ms, found.fields.get("farthest_ms", 0))
            found.fields["farthest_ms"] = behind_ms
        self._count(_LATE, found, count)

    def unread(self, tag: OutputTag, count: int, emitted_by: str) -> None:
        """Say that records went to a side output that nothing reads: once a minute.

        Args:
            tag: The side output.
            count: How many.
            emitted_by: The functions that may have done so, as text.
        """
        found = self._found(_UNREAD, _LATE_INTERVAL_S, tag.id)
        found.fields = {
            "side_output": tag.id,
            "function": emitted_by,
            "remedy": "read it with get_side_output(tag) of the stream that the "
            "operator returns",
        }
        self._count(_UNREAD, found, count)

    def flush(self) -> None:
        """Say what was not yet said; at the end of the task."""
        for (event, _), found in self._events.items():
            if found.count:
                self._say(event, found)

    def _found(self, event: str, interval_s: float, where: str = "") -> _Event:
        found = self._events.get((event, where))
        if found is None:
            found = self._events[event, where] = _Event(interval_s)
        return found

    def _count(self, event: str, found: _Event, count: int) -> None:
        found.count += count
        now = self._clock.monotonic()
        if now >= found.silent_until:
            found.silent_until = now + found.interval_s
            self._say(event, found)

    def _say(self, event: str, found: _Event) -> None:
        found.total += found.count
        self._log.warning(event, count=found.count, total=found.total, **found.fields)
        found.count = 0


class _Event:
    __slots__ = ("count", "fields", "interval_s", "silent_until", "total")

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.count = 0
        self.total = 0
        self.fields: dict[str, Any] = {}
        self.silent_until = float("-inf")


class LateRecords:
    """Counts the records of one operator that came too late, and says so.

    Args:
        metrics: The operator's.
        warnings: The operator's.
    """

    __slots__ = ("_counter", "_warnings")

    def __init__(self, metrics: MetricGroup, warnings: RepeatedWarnings) -> None:
        self._counter = metrics.counter("num_late_records_dropped")
        self._warnings = warnings

    def drop(self, stamp_ms: int, watermark_ms: int, count: int = 1) -> None:
        """Count records that are dropped.

        Args:
            stamp_ms: The event time of the oldest.
            watermark_ms: How far event time is.
            count: How many there are.
        """
        self._counter.value += count
        is_known = stamp_ms > MIN_TIMESTAMP and watermark_ms < MAX_TIMESTAMP
        self._warnings.late(count, watermark_ms - stamp_ms if is_known else None)
