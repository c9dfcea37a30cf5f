"""Counters, gauges and histograms as plain objects, and their groups."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

import msgspec

from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.metrics.catalogue import (
    DECLARED,
    Histogram,
    Merge,
    Metric,
    MetricKind,
    MetricValue,
)
from aiomailbox.signatures import Misnamed, accepts, with_other_names

# Which keys have the most records: a sample, counted in a bounded number of places.
#
# Theory of operation: of each run of records a key or two are looked at, at places that
# move, so that a long run costs no more than a short one. The counts are those of
# Space-Saving: when all places are taken, the key with the smallest count gives way and
# leaves it its count, which bounds the error by the share of one place.
#
# Concept:
#     Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements in
#     data streams (2005).


_PLACES: Final = 32
_SHOWN_MAX: Final = 5
_TEXT_MAX: Final = 60
# All halve then, so that what was hot long ago cools down.
_COUNT_MAX: Final = 4096
# A prime: places of runs of equal length differ from run to run.
_STRIDE: Final = 7919


class HotKey(msgspec.Struct, frozen=True):
    """A key that has many records.

    Attributes:
        key: The key, as text.
        share: Its share of the records, from 0 to 1, estimated.
    """

    key: str
    share: float


class HotKeys:
    """Counts the keys of one operator.

    Example:
        >>> keys = HotKeys()
        >>> for _ in range(100):
        ...     keys.sample(["hot", "hot", "hot", "cold"])
        >>> keys.top()[0].key
        "'hot'"
    """

    def __init__(self) -> None:
        self._counts: dict[Hashable, int] = {}
        self._offset = 0
        self._total = 0

    def sample(self, keys: Sequence[Any]) -> None:
        """Look at some keys of a run."""
        if not keys:
            return
        self._offset += _STRIDE
        counts, key = self._counts, keys[self._offset % len(keys)]
        if key in counts:
            counts[key] += 1
        elif len(counts) < _PLACES:
            counts[key] = 1
        else:
            least = min(counts, key=counts.__getitem__)
            counts[key] = counts.pop(least) + 1
        self._total += 1
        if self._total == _COUNT_MAX:
            self._counts = {
                key: count // 2 for key, count in counts.items() if count > 1
            }
            self._total //= 2

    def top(self) -> list[HotKey]:
        """Return the keys with the most records, the hottest first."""
        total = self._total
        # It may be counted in another thread meanwhile.
        counts = dict(self._counts)
        found = sorted(counts.items(), key=lambda item: -item[1])
        return [HotKey(_text(key), count / total) for key, count in found[:_SHOWN_MAX]]


def _text(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}..."


# What each key has used, in a bounded number of places.


_KEYS_MAX: Final = 1_000
_SHOWN_TOTALS_MAX: Final = 10


class KeyTotal(msgspec.Struct, frozen=True):
    """The units of a limit that the calls of one key have used.

    Attributes:
        key: The key, as text; ``"(others)"`` for those that there was no place for.
        units: The units of the limit.
    """

    key: str
    units: float


class KeyTotals:
    """Adds up units by key; what a thousand keys have no place for is one sum.

    Example:
        >>> totals = KeyTotals()
        >>> totals.add("ann", 2.0)
        >>> totals.add("bob", 5.0)
        >>> totals.add("ann", 1.0)
        >>> [(total.key, total.units) for total in totals.top()]
        [("'bob'", 5.0), ("'ann'", 3.0)]
    """

    def __init__(self) -> None:
        self._units: dict[Hashable, float] = {}
        self._others = 0.0

    def add(self, key: Hashable, units: float) -> None:
        """Add what a call has used."""
        if key in self._units or len(self._units) < _KEYS_MAX:
            self._units[key] = self._units.get(key, 0.0) + units
        else:
            self._others += units

    def top(self) -> list[KeyTotal]:
        """Return the keys that have used most, then the others together."""
        found = sorted(self._units.items(), key=lambda item: -item[1])
        totals = [
            KeyTotal(_total_text(key), units)
            for key, units in found[:_SHOWN_TOTALS_MAX]
        ]
        others = self._others + sum(units for _, units in found[_SHOWN_TOTALS_MAX:])
        return [*totals, KeyTotal("(others)", others)] if others else totals


def _total_text(key: Hashable) -> str:
    text = repr(key)
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}..."


@with_other_names(
    "the counter",
    {
        **dict.fromkeys(("inc", "incr", "increment"), "add(n)"),
        **dict.fromkeys(("dec", "decrement"), "add(-n)"),
        **dict.fromkeys(("get_count", "getCount", "count"), "value"),
    },
)
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

    if not TYPE_CHECKING:

        def __iadd__(self, count: object) -> NoReturn:
            """Say how it is counted up.

            Raises:
                TypeError: Always.
            """
            message = f"a counter is no number: write counter.add({count!r})"
            raise TypeError(message)


class MetricGroup(Misnamed):
    """The metrics of one operator, task or job, by name.

    Asking twice for a name gives the same object. Groups nest by `child`. A name that
    aiomailbox declares itself, see docs/metrics.md, is of the declared kind; any other is
    declared here, when it is first asked for.

    Attributes:
        hot_keys: Counts the keys of an operator that has any.
        key_totals: The units that the calls of each key have used, if calls have keys
            and a limit.

    Example:
        >>> group = MetricGroup("map")
        >>> group.counter("orders", unit="orders").add(3)
        >>> group.snapshot()
        {'orders': 3}
        >>> group.declared[0].unit
        'orders'
    """

    _called = "context.metrics"
    _meant: ClassVar[Mapping[str, str]] = {
        "add_group": "child(name)",
        "meter": "counter(name)",
        **dict.fromkeys(("distribution", "summary", "timer"), "histogram(name)"),
    }

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
            unit: The unit.
            text: Its meaning, for people.

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
            text: Its meaning, for people.

        Raises:
            InvalidArgumentError: If the name is that of another kind of metric.
            WrongTypeError: If ``read`` is no function without arguments.
        """
        if not callable(read) or not accepts(read, 0):
            raise WrongTypeError(
                "read",
                f"{read!r} is not a function without arguments",
                "Write e.g. lambda: len(self.waiting).",
            )
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
