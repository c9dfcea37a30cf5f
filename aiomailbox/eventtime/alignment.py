"""Keeping sources from running far ahead of the slowest of their group.

Theory of operation: readers report their watermarks to the group, the group tells them
all how far they may go: the lowest report plus the drift. A reader beyond that limit is
not available until the limit has moved; meanwhile its idleness clock stands still.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aiomailbox.availability import Availability
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.eventtime.generators import RelativeClock
from aiomailbox.eventtime.strategy import AlignmentConfig
from aiomailbox.records.events import MAX_TIMESTAMP, MIN_TIMESTAMP


class AlignmentGroup:
    """The watermarks that the readers of one group have reported.

    Args:
        max_drift_ms: How far ahead of the slowest a reader may be, in event time.
        on_report: Called with a reader and its watermark when that is new.
        on_moved: Called with the limit when a report has moved it.

    Attributes:
        outer_limit_ms: A limit from elsewhere, which readers keep to as well.

    Concept:
        Flink, the alignment part of ``SourceCoordinator``.

    Example:
        >>> group = AlignmentGroup(100)
        >>> group.report("a", 1000)
        >>> group.report("b", 500)
        >>> group.limit()
        600
        >>> group.outer_limit_ms = 400  # a reader of another process is at 300
        >>> group.limit()
        400
    """

    def __init__(
        self,
        max_drift_ms: int,
        on_report: Callable[[str, int], None] | None = None,
        on_moved: Callable[[int], None] | None = None,
    ) -> None:
        self.max_drift_ms: int = max_drift_ms
        self._on_report = on_report
        self._on_moved = on_moved
        self._moved_to_ms = MAX_TIMESTAMP
        self._reported: dict[str, int] = {}
        self.outer_limit_ms: int = MAX_TIMESTAMP

    def report(self, reader: str, watermark_ms: int | None) -> None:
        """Take what `AlignedReader.report` returned; None says nothing."""
        # What is not new is not passed on: reports come with every tick.
        if watermark_ms is None or self._reported.get(reader) == watermark_ms:
            return
        self._reported[reader] = watermark_ms
        if self._on_report is not None:
            self._on_report(reader, watermark_ms)
        if self._on_moved is not None and self.limit() != self._moved_to_ms:
            self._moved_to_ms = self.limit()
            self._on_moved(self._moved_to_ms)

    def forget(self, reader: str) -> None:
        """Drop a reader that is gone."""
        self._reported.pop(reader, None)

    def limit(self) -> int:
        """Return the watermark up to which readers may go; MAX if none reported."""
        # No reader has reported yet: a limit would stop sources that have not begun.
        lowest = min(self._reported.values(), default=MAX_TIMESTAMP)
        return min(lowest + self.max_drift_ms, self.outer_limit_ms)


class AlignmentGroups:
    """The alignment groups of a job, by name.

    The groups of several processes are one if each passes on what its readers report to
    one of them, and that one passes on the limits: a reader keeps to the lower of two,
    that of the readers here, which is exact, and the last one that came.

    Args:
        on_report: Called with a group's settings, a reader and its watermark when that
            is new.
        on_moved: Called with a group's name and its limit when a report has moved it.

    Example:
        >>> groups = AlignmentGroups()
        >>> first = groups.get(AlignmentConfig("orders", 100, 1000))
        >>> first is groups.get(AlignmentConfig("orders", 100, 500))
        True
    """

    def __init__(
        self,
        on_report: Callable[[AlignmentConfig, str, int], None] | None = None,
        on_moved: Callable[[str, int], None] | None = None,
    ) -> None:
        self._on_report = on_report
        self._on_moved = on_moved
        self._groups: dict[str, AlignmentGroup] = {}
        # Also of groups that no source here has named yet: a limit is sent once.
        self._outer_limits: dict[str, int] = {}

    def get(self, config: AlignmentConfig) -> AlignmentGroup:
        """Return the group that a strategy names.

        Raises:
            InvalidArgumentError: If others of the group named another drift.
        """
        name, drift_ms = config.group, config.max_drift_ms
        group = self._groups.get(name)
        if group is None:
            report, moved = self._on_report, self._on_moved
            group = self._groups[name] = AlignmentGroup(
                drift_ms,
                None if report is None else partial(report, config),
                None if moved is None else partial(moved, name),
            )
            group.outer_limit_ms = self._outer_limits.get(name, MAX_TIMESTAMP)
        if group.max_drift_ms != drift_ms:
            raise InvalidArgumentError(
                "max_drift",
                f"sources of the alignment group {name!r} have {group.max_drift_ms} "
                f"ms and {drift_ms} ms",
                "Use one value for all of them.",
            )
        return group

    def on_limit(self, name: str, limit_ms: int) -> None:
        """Take a group's limit from elsewhere."""
        self._outer_limits[name] = limit_ms
        if name in self._groups:
            self._groups[name].outer_limit_ms = limit_ms

    def limits(self) -> dict[str, int]:
        """Return the limits that are in force, for who has heard of none."""
        return {name: group.limit() for name, group in self._groups.items()}


class AlignedReader:
    """One reader of a group: what it reports, and whether it has to wait.

    Args:
        clock: The reader's idleness clock; paused while the reader waits.

    Attributes:
        availability: True while the reader need not wait.
        watermark: The reader's highest watermark, `MIN_TIMESTAMP` before the first.

    Concept:
        Flink, the alignment part of ``SourceOperator``.

    Example:
        >>> from aiomailbox.clock import SystemClock
        >>> reader = AlignedReader(RelativeClock(SystemClock()))
        >>> reader.on_limit(999)
        >>> reader.on_watermark(1000)
        >>> reader.availability.available
        False
    """

    def __init__(self, clock: RelativeClock) -> None:
        self._clock = clock
        self.limit: int = MAX_TIMESTAMP
        self._is_idle = False
        self._is_ended = False
        self.watermark: int = MIN_TIMESTAMP
        self.availability: Availability = Availability(available=True)

    def report(self) -> int | None:
        """Return what the group is to know, or None while there is nothing to say.

        A reader that is idle or has ended holds no other back: it reports MAX.
        """
        if self._is_ended or self._is_idle:
            # MAX, so that a reader that has nothing does not hold the others back.
            return MAX_TIMESTAMP
        return None if self.watermark == MIN_TIMESTAMP else self.watermark

    def on_watermark(self, watermark_ms: int) -> None:
        """Be notified of a watermark; ask `availability` after it, in a batch too."""
        self.watermark = max(self.watermark, watermark_ms)
        self._look()

    def on_limit(self, limit_ms: int) -> None:
        """Take the limit of the group."""
        self.limit = limit_ms
        self._look()

    def mark_idle(self) -> None:
        """Be notified that the reader has no records."""
        self._is_idle = True

    def mark_active(self) -> None:
        """Be notified that the reader has records again."""
        self._is_idle = False

    def end(self) -> None:
        """Be notified that the reader was stopped or is exhausted: it waits no more."""
        self._is_ended = True
        self._look()

    def _look(self) -> None:
        # Strictly below: exactly at the limit a reader may go on, as in Flink.
        must_wait = self.limit < self.watermark and not self._is_ended
        if must_wait and self.availability.available:
            self.availability.reset()
            self._clock.pause()
        elif not must_wait and not self.availability.available:
            self._clock.unpause()
            self.availability.set_available()
