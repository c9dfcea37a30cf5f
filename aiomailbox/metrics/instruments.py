"""Counters, gauges and histograms as plain objects, and their groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.metrics.catalogue import DECLARED
from aiomailbox.metrics.declared import Merge, Metric, MetricKind, MetricValue
from aiomailbox.metrics.histogram import Histogram
from aiomailbox.metrics.hot_keys import HotKeys
from aiomailbox.metrics.totals import KeyTotals

__all__ = ["Counter", "MetricGroup"]


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


class MetricGroup:
    """The metrics of one operator, task or job, by name.

    Asking twice for a name gives the same object. Groups nest by `child`. A name that
    aiomailbox declares itself, see docs/metrics.md, is of the declared kind; any other is
    declared here, when it is first asked for.

    Attributes:
        hot_keys: Counts the keys of an operator that has any.
        key_totals: What the calls of each key have used, where calls have keys and a limit.

    Example:
        >>> group = MetricGroup("map")
        >>> group.counter("orders", unit="orders").add(3)
        >>> group.snapshot()
        {'orders': 3}
        >>> group.declared[0].unit
        'orders'
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._gauges: dict[str, Callable[[], MetricValue]] = {}
        self._children: dict[str, MetricGroup] = {}
        self._own: dict[str, Metric] = {}
        self.hot_keys: HotKeys | None = None
        self.key_totals: KeyTotals | None = None

    def counter(self, name: str, *, unit: str = "1", text: str = "") -> Counter:
        """Return the counter of this name, new at 0.

        Args:
            name: Its name.
            unit: What is counted.
            text: What it says, for people.

        Raises:
            InvalidArgumentError: If the name is that of another kind of metric.
        """
        known = self._counters.get(name)
        if known is None:
            self._declare(name, MetricKind.COUNTER, unit, Merge.SUM, text)
            known = self._counters[name] = Counter()
        return known

    def histogram(self, name: str, *, unit: str = "1", text: str = "") -> Histogram:
        """Return the histogram of this name; see `counter`."""
        known = self._histograms.get(name)
        if known is None:
            self._declare(name, MetricKind.HISTOGRAM, unit, Merge.SUM, text)
            known = self._histograms[name] = Histogram()
        return known

    def gauge(
        self,
        name: str,
        read: Callable[[], MetricValue],
        *,
        unit: str = "1",
        merge: Merge = Merge.SUM,
        text: str = "",
    ) -> None:
        """Register a value that is read when the metrics are.

        Args:
            name: Its name.
            read: Returns the value.
            unit: Its unit.
            merge: How the values of two subtasks become one.
            text: What it says, for people.

        Raises:
            InvalidArgumentError: If the name is that of another kind of metric.
        """
        self._declare(name, MetricKind.GAUGE, unit, merge, text)
        self._gauges[name] = read

    def child(self, name: str) -> MetricGroup:
        """Return the group below this one with that name."""
        return self._children.setdefault(name, MetricGroup(name))

    @property
    def children(self) -> Iterator[MetricGroup]:
        """The groups directly below this one."""
        return iter(self._children.values())

    @property
    def declared(self) -> list[Metric]:
        """The declarations of those that aiomailbox does not declare itself."""
        return list(self._own.values())

    def snapshot(self) -> dict[str, MetricValue]:
        """Return the current values of this group, without its children."""
        values: dict[str, MetricValue] = {
            name: counter.value for name, counter in self._counters.items()
        }
        for name, histogram in self._histograms.items():
            values[name] = histogram.value()
        for name, read in self._gauges.items():
            values[name] = read()
        return values

    def _declare(
        self, name: str, kind: MetricKind, unit: str, merge: Merge, text: str
    ) -> None:
        known = DECLARED.get(name) or self._own.get(name)
        if known is None:
            self._own[name] = Metric(name, kind, unit, merge, text)
        elif known.kind is not kind:
            raise InvalidArgumentError(
                "name",
                f"{name!r} is a {known.kind.value}, and cannot be a {kind.value}",
                "Use another name.",
            )
