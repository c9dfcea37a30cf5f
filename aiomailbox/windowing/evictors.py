"""Evictors: which of a window's records are removed when it fires."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from aiomailbox.durations import duration_text, pipeline_ms
from aiomailbox.operators.core.user_code import check_sync_function, describe
from aiomailbox.records.events import StreamRecord
from aiomailbox.signatures import check_count
from aiomailbox.windowing.time_window import Window


class Evictor(ABC):
    """Removes records from a window, before or after its function sees them.

    With an evictor, a window keeps all its records, even with reduce or aggregate.

    Args:
        after: Evict after the function was called, not before.

    Concept:
        Flink, ``Evictor``.
    """

    def __init__(self, *, after: bool = False) -> None:
        self.after = after

    def __str__(self) -> str:
        """Return its class and its settings, for `explain`."""
        text = " ".join([type(self).__name__, *self._told()])
        return f"{text}, after the function" if self.after else text

    def _told(self) -> list[str]:
        return []

    @abstractmethod
    def evict(
        self, records: list[StreamRecord], window: Window, /
    ) -> list[StreamRecord]:
        """Return the records that are kept, in order."""

    def evict_before(
        self, records: list[StreamRecord], window: Window, /
    ) -> list[StreamRecord]:
        """Return the records to pass to the window function."""
        return records if self.after else self.evict(records, window)

    def evict_after(
        self, records: list[StreamRecord], window: Window, /
    ) -> list[StreamRecord]:
        """Return the records that the window keeps."""
        return self.evict(records, window) if self.after else records


class CountEvictor(Evictor):
    """Keeps the last ``count`` records.

    Concept:
        Flink, ``CountEvictor``.

    Example:
        >>> records = [StreamRecord("a"), StreamRecord("b")]
        >>> CountEvictor.of(1).evict(records, None)
        [StreamRecord(value='b', timestamp=None)]
    """

    def __init__(self, count: int, *, after: bool = False) -> None:
        super().__init__(after=after)
        self.count: int = check_count(count, "count", minimum=0)

    @classmethod
    def of(cls, count: int, *, after: bool = False) -> CountEvictor:
        """Return an evictor that keeps the last ``count`` records."""
        return cls(count, after=after)

    def _told(self) -> list[str]:
        return [f"of {self.count}"]

    def evict(self, records: list[StreamRecord], window: Window) -> list[StreamRecord]:
        """Return the last records."""
        return records[max(len(records) - self.count, 0) :]


class TimeEvictor(Evictor):
    """Keeps the records that are newer than the newest record's time minus ``size``.

    Records without event time are all kept.

    Concept:
        Flink, ``TimeEvictor``.
    """

    def __init__(self, size_ms: int, *, after: bool = False) -> None:
        super().__init__(after=after)
        self.size_ms = size_ms

    @classmethod
    def of(cls, size: timedelta, *, after: bool = False) -> TimeEvictor:
        """Return an evictor for ``size``, a timedelta."""
        return cls(pipeline_ms(size, "size"), after=after)

    def _told(self) -> list[str]:
        return [f"of {duration_text(self.size_ms)}"]

    def evict(self, records: list[StreamRecord], window: Window) -> list[StreamRecord]:
        """Return the records that are recent enough."""
        if not records or records[0].timestamp is None:
            return records
        stamps = [r.timestamp for r in records if r.timestamp is not None]
        cutoff = max(stamps) - self.size_ms
        return [r for r in records if r.timestamp is None or r.timestamp > cutoff]


class DeltaEvictor(Evictor):
    """Keeps the records that are close to the last one.

    Args:
        threshold: Less than this is near.
        delta: ``(record, last) -> distance``.
        after: Evict after the function was called, not before.

    Concept:
        Flink, ``DeltaEvictor``.
    """

    def __init__(
        self,
        threshold: float,
        delta: Callable[[Any, Any], Any],
        *,
        after: bool = False,
    ) -> None:
        super().__init__(after=after)
        self.threshold = threshold
        self.delta: Callable[..., Any] = check_sync_function(delta, "delta", arity=2)

    @classmethod
    def of(
        cls,
        threshold: float,
        delta: Callable[[Any, Any], Any],
        *,
        after: bool = False,
    ) -> DeltaEvictor:
        """Return an evictor that keeps records nearer than ``threshold``."""
        return cls(threshold, delta, after=after)

    def _told(self) -> list[str]:
        return [f"of {self.threshold} by {describe(self.delta)}"]

    def evict(self, records: list[StreamRecord], window: Window) -> list[StreamRecord]:
        """Return the records that are close enough."""
        if not records:
            return records
        last = records[-1].value
        return [r for r in records if self.delta(r.value, last) < self.threshold]
