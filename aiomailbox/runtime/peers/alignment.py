"""Watermark alignment across processes: reports to the parent, limits from it.

A worker's readers keep to the lower of two limits: that of the readers which it knows
itself, which is exact, and the last one that came from the parent.
"""

from __future__ import annotations

from collections.abc import Callable

from aiomailbox.eventtime.alignment import AlignmentGroup, AlignmentGroups
from aiomailbox.eventtime.strategy import AlignmentConfig
from aiomailbox.records.events import MAX_TIMESTAMP
from aiomailbox.runtime.peers.messages import AlignmentLimit, AlignmentReport


class RemoteAlignmentGroup(AlignmentGroup):
    """A worker's view of a group.

    Args:
        name: The group's.
        max_drift_ms: How far ahead of the slowest a reader may be, in event time.
        send: Sends a report to the parent.

    Example:
        >>> group = RemoteAlignmentGroup("orders", 100, lambda report: None)
        >>> group.report("a", 1000)
        >>> group.limit()
        1100
        >>> group.on_limit(600)  # another worker's reader is at 500
        >>> group.limit()
        600
    """

    __slots__ = ("_job_limit_ms", "_max_drift", "_name", "_send", "_sent")

    def __init__(
        self, name: str, max_drift_ms: int, send: Callable[[AlignmentReport], None]
    ) -> None:
        super().__init__(max_drift_ms)
        self._name = name
        self._max_drift = max_drift_ms
        self._send = send
        self._sent: dict[str, int] = {}
        self._job_limit_ms = MAX_TIMESTAMP

    def report(self, reader: str, watermark_ms: int | None) -> None:
        """Take a report and pass it on."""
        super().report(reader, watermark_ms)
        # What is not new is not sent: reports come with every tick.
        if watermark_ms is not None and self._sent.get(reader) != watermark_ms:
            self._sent[reader] = watermark_ms
            self._send(
                AlignmentReport(self._name, self._max_drift, reader, watermark_ms)
            )

    def on_limit(self, limit_ms: int) -> None:
        """Take the job's limit."""
        self._job_limit_ms = limit_ms

    def limit(self) -> int:
        """Return the watermark up to which readers may go."""
        return min(super().limit(), self._job_limit_ms)


class RemoteAlignmentGroups(AlignmentGroups):
    """A worker's groups, by name.

    Args:
        send: Sends a report to the parent.
    """

    __slots__ = ("_limits", "_remote", "_send")

    def __init__(self, send: Callable[[AlignmentReport], None]) -> None:
        super().__init__()
        self._send = send
        self._remote: dict[str, RemoteAlignmentGroup] = {}
        # Also of groups that no source here has named yet: a limit is sent once.
        self._limits: dict[str, int] = {}

    def get(self, config: AlignmentConfig) -> AlignmentGroup:
        # The drift is compared there.
        super().get(config)
        group = self._remote.get(config.group)
        if group is None:
            group = RemoteAlignmentGroup(config.group, config.max_drift_ms, self._send)
            group.on_limit(self._limits.get(config.group, MAX_TIMESTAMP))
            self._remote[config.group] = group
        return group

    def on_limit(self, message: AlignmentLimit) -> None:
        """Take a limit of the parent."""
        self._limits[message.group] = message.limit_ms
        group = self._remote.get(message.group)
        if group is not None:
            group.on_limit(message.limit_ms)


class ParentAlignmentGroup(AlignmentGroup):
    """The parent's group: it has the reports of all readers, and notifies the workers.

    Args:
        name: The group's.
        max_drift_ms: How far ahead of the slowest a reader may be, in event time.
        broadcast: Sends a limit to all workers.
    """

    __slots__ = ("_broadcast", "_name", "_told")

    def __init__(
        self, name: str, max_drift_ms: int, broadcast: Callable[[AlignmentLimit], None]
    ) -> None:
        super().__init__(max_drift_ms)
        self._name = name
        self._broadcast = broadcast
        self._told = MAX_TIMESTAMP

    def report(self, reader: str, watermark_ms: int | None) -> None:
        """Take a report; tell the workers if it moved the limit."""
        super().report(reader, watermark_ms)
        limit_ms = self.limit()
        if limit_ms != self._told:
            self._told = limit_ms
            self._broadcast(AlignmentLimit(self._name, limit_ms))


class ParentAlignmentGroups(AlignmentGroups):
    """The parent's groups, by name.

    Args:
        broadcast: Sends a limit to all workers.
    """

    __slots__ = ("_broadcast", "_told")

    def __init__(self, broadcast: Callable[[AlignmentLimit], None]) -> None:
        super().__init__()
        self._broadcast = broadcast
        self._told: dict[str, ParentAlignmentGroup] = {}

    def get(self, config: AlignmentConfig) -> AlignmentGroup:
        super().get(config)
        return self._told.setdefault(
            config.group,
            ParentAlignmentGroup(config.group, config.max_drift_ms, self._broadcast),
        )

    def limits(self) -> list[AlignmentLimit]:
        """Return the limits that are in force, for a worker that has heard of none."""
        return [AlignmentLimit(name, one.limit()) for name, one in self._told.items()]

    def on_report(self, message: AlignmentReport) -> None:
        """Take a worker's report.

        Raises:
            InvalidArgumentError: If others of the group named another drift.
        """
        # The interval is the reader's own business.
        config = AlignmentConfig(message.group, message.max_drift_ms, 1)
        self.get(config).report(message.reader, message.watermark_ms)
