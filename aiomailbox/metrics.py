"""Counters, gauges, histograms and meters as plain objects."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

MetricValue = int | float | str | None


class Counter:
    """A number that is counted up.

    Hot paths may add to ``value`` directly.
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int = 0

    def add(self, count: int = 1) -> None:
        """Count ``count`` more."""
        self.value += count


class Histogram:
    """The last observations of a quantity, bounded.

    Example:
        >>> latency = Histogram()
        >>> for ms in range(1, 101):
        ...     latency.observe(ms)
        >>> latency.quantile(0.5), latency.count
        (50, 100)
    """

    __slots__ = ("_window", "count", "maximum")

    WINDOW: Final = 1024

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=self.WINDOW)
        self.count: int = 0
        self.maximum: float | None = None

    def observe(self, value: float) -> None:
        """Add an observation; the oldest beyond the window is forgotten."""
        self._window.append(value)
        self.count += 1
        if self.maximum is None or value > self.maximum:
            self.maximum = value

    def quantile(self, fraction: float) -> float | None:
        """Return a quantile of the window, or None before the first observation."""
        if not self._window:
            return None
        ordered = sorted(self._window)
        rank = math.ceil(fraction * len(ordered))
        return ordered[max(rank, 1) - 1]


class MetricGroup:
    """The metrics of one operator, task or job, by name.

    Asking twice for a name gives the same object. Groups nest by `child`.

    Example:
        >>> group = MetricGroup("map")
        >>> group.counter("records_in").add(3)
        >>> group.snapshot()
        {'records_in': 3}
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._gauges: dict[str, Callable[[], MetricValue]] = {}
        self._children: dict[str, MetricGroup] = {}

    def counter(self, name: str) -> Counter:
        """Return the counter of this name, new at 0."""
        return self._counters.setdefault(name, Counter())

    def histogram(self, name: str) -> Histogram:
        """Return the histogram of this name."""
        return self._histograms.setdefault(name, Histogram())

    def gauge(self, name: str, read: Callable[[], MetricValue]) -> None:
        """Register a value that is read when somebody looks."""
        self._gauges[name] = read

    def child(self, name: str) -> MetricGroup:
        """Return the group below this one with that name."""
        return self._children.setdefault(name, MetricGroup(name))

    @property
    def children(self) -> Iterator[MetricGroup]:
        """The groups directly below this one."""
        return iter(self._children.values())

    def snapshot(self) -> dict[str, MetricValue]:
        """Return the current values of this group, without its children."""
        values: dict[str, MetricValue] = {
            name: counter.value for name, counter in self._counters.items()
        }
        for name, histogram in self._histograms.items():
            values[f"{name}_count"] = histogram.count
            values[f"{name}_p50"] = histogram.quantile(0.5)
            values[f"{name}_p99"] = histogram.quantile(0.99)
            values[f"{name}_max"] = histogram.maximum
        for name, read in self._gauges.items():
            values[name] = read()
        return values
