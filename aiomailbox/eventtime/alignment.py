"""Keeping sources from running far ahead of the slowest of their group.

Theory of operation: readers report their watermarks to the group, the group tells them
all how far they may go: the lowest report plus the drift. A reader beyond that limit is
not available until the limit has moved; meanwhile its idleness clock stands still.
"""

from __future__ import annotations

from aiomailbox.availability import Availability
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.eventtime.generators import RelativeClock
from aiomailbox.eventtime.strategy import AlignmentConfig
from aiomailbox.records.events import MAX_TIMESTAMP, MIN_TIMESTAMP


class AlignmentGroup:
    """What the readers of one group have reported.

    Args:
        max_drift_ms: How far ahead of the slowest a reader may be, in event time.

    Concept:
        Flink, the alignment part of ``SourceCoordinator``.

    Example:
        >>> group = AlignmentGroup(100)
        >>> group.report("a", 1000)
        >>> group.report("b", 500)
        >>> group.limit()
        600
    """

    __slots__ = ("_max_drift_ms", "_reported")

    def __init__(self, max_drift_ms: int) -> None:
        self._max_drift_ms = max_drift_ms
        self._reported: dict[str, int] = {}

    def report(self, reader: str, watermark_ms: int | None) -> None:
        """Take what `AlignedReader.report` returned; None says nothing."""
        if watermark_ms is not None:
            self._reported[reader] = watermark_ms

    def forget(self, reader: str) -> None:
        """Drop a reader that is gone."""
        self._reported.pop(reader, None)

    def limit(self) -> int:
        """Return the watermark up to which readers may go; MAX if none reported."""
        # No reader has reported yet: a limit would stop sources that have not begun.
        lowest = min(self._reported.values(), default=MAX_TIMESTAMP)
        return min(lowest + self._max_drift_ms, MAX_TIMESTAMP)


class AlignmentGroups:
    """The alignment groups of a job, by name.

    Example:
        >>> groups = AlignmentGroups()
        >>> first = groups.get(AlignmentConfig("orders", 100, 1000))
        >>> first is groups.get(AlignmentConfig("orders", 100, 500))
        True
    """

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[str, tuple[int, AlignmentGroup]] = {}

    def get(self, config: AlignmentConfig) -> AlignmentGroup:
        """Return the group that a strategy names.

        Raises:
            InvalidArgumentError: If others of the group named another drift.
        """
        drift_ms = config.max_drift_ms
        known = self._groups.setdefault(
            config.group, (drift_ms, AlignmentGroup(drift_ms))
        )
        if known[0] != drift_ms:
            raise InvalidArgumentError(
                "max_drift",
                f"sources of the alignment group {config.group!r} have {known[0]} "
                f"ms and {drift_ms} ms",
                "Use one value for all of them.",
            )
        return known[1]


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

    __slots__ = (
        "_clock",
        "_is_ended",
        "_is_idle",
        "_limit",
        "availability",
        "watermark",
    )

    def __init__(self, clock: RelativeClock) -> None:
        self._clock = clock
        self._limit = MAX_TIMESTAMP
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
        self._limit = limit_ms
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
        must_wait = self._limit < self.watermark and not self._is_ended
        if must_wait and self.availability.available:
            self.availability.reset()
            self._clock.pause()
        elif not must_wait and not self.availability.available:
            self._clock.unpause()
            self.availability.set_available()
