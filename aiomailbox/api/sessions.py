"""Sessions of a key as records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic

from aiomailbox.durations import event_datetime
from aiomailbox.typevars import KeyT, ValueT
from aiomailbox.windowing.time_window import TimeWindow


@dataclass(frozen=True, slots=True)
class Session(Generic[KeyT, ValueT]):
    """The records of a key without a pause longer than the gap.

    Attributes:
        key: The key.
        start: Event time of the first record, as ``window_start`` is: with time zone.
        end: Event time of the last record.
        records: The records, in order of arrival.
    """

    key: KeyT
    start: datetime
    end: datetime
    records: list[ValueT]


@dataclass(frozen=True, slots=True)
class SessionMaker:
    """Makes a `Session` of a session window.

    Args:
        gap_ms: The gap, by which the window ends after its last record.
    """

    gap_ms: int

    def __call__(
        self, key: KeyT, window: TimeWindow, records: list[ValueT]
    ) -> list[Session[KeyT, ValueT]]:
        """Return the session, in a list."""
        start = event_datetime(window.start)
        return [Session(key, start, event_datetime(window.end - self.gap_ms), records)]
