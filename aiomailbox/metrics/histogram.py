"""How observations are spread: in buckets that can be added up, of bounded number.

Theory of operation: a bucket holds what lies within 4.4 % of each other, so that a
quantile is right within 2.2 %, and a million-fold range has 320 buckets. Two histograms are
merged by adding their buckets, which no list of samples allows. What is shown is recent:
there are two generations of buckets, and when the newer one is full it replaces the older
one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import msgspec

__all__ = ["Histogram", "HistogramValue"]

_STEPS_PER_OCTAVE: Final = 16
# All that is no more than 0, and what is too small to have a logarithm.
_ZERO: Final = -(1 << 20)
_GENERATION: Final = 1024


class HistogramValue(msgspec.Struct, frozen=True):
    """What a histogram has observed.

    Attributes:
        count: Observations, all there ever were.
        total: Their sum.
        maximum: The largest of them, None before the first.
        buckets: How many of the recent ones are in each bucket.

    Example:
        >>> latency = Histogram()
        >>> for ms in range(1, 101):
        ...     latency.observe(ms)
        >>> value = latency.value()
        >>> value.count, value.maximum, round(value.mean, 1)
        (100, 100, 50.5)
    """

    count: int = 0
    total: float = 0.0
    maximum: float | None = None
    buckets: dict[int, int] = {}

    @property
    def mean(self) -> float | None:
        """The mean of all observations, None before the first."""
        return self.total / self.count if self.count else None

    def quantile(self, fraction: float) -> float | None:
        """Return a quantile of the recent observations, right within 2.2 %.

        Args:
            fraction: From 0 to 1: 0.5 for the median.

        Returns:
            None before the first observation.
        """
        rank = math.ceil(fraction * sum(self.buckets.values()))
        for bucket in sorted(self.buckets):
            rank -= self.buckets[bucket]
            if rank <= 0:
                return self._middle(bucket)
        return None

    @property
    def p50(self) -> float | None:
        """The median."""
        return self.quantile(0.5)

    @property
    def p95(self) -> float | None:
        """What 95 % of the observations do not exceed."""
        return self.quantile(0.95)

    @property
    def p99(self) -> float | None:
        """What 99 % of the observations do not exceed."""
        return self.quantile(0.99)

    def _middle(self, bucket: int) -> float:
        if bucket == _ZERO:
            return 0.0
        middle = math.exp2((bucket + 0.5) / _STEPS_PER_OCTAVE)
        return middle if self.maximum is None else min(middle, self.maximum)

    @staticmethod
    def sum_of(values: Iterable[HistogramValue]) -> HistogramValue:
        """Return one histogram of what all of them have observed."""
        count, total, maximum = 0, 0.0, None
        buckets: dict[int, int] = {}
        for value in values:
            count += value.count
            total += value.total
            if value.maximum is not None:
                maximum = max(value.maximum, maximum or value.maximum)
            for bucket, number in value.buckets.items():
                buckets[bucket] = buckets.get(bucket, 0) + number
        return HistogramValue(count, total, maximum, buckets)


class Histogram:
    """Takes observations of a quantity; what it keeps is bounded.

    Example:
        >>> latency = Histogram()
        >>> for ms in range(1, 101):
        ...     latency.observe(ms)
        >>> round(latency.quantile(0.5)), latency.count
        (50, 100)
    """

    __slots__ = ("_newer", "_newer_count", "_older", "count", "maximum", "total")

    def __init__(self) -> None:
        self._newer: dict[int, int] = {}
        self._newer_count = 0
        self._older: dict[int, int] = {}
        self.count: int = 0
        self.total: float = 0.0
        self.maximum: float | None = None

    def observe(self, value: float) -> None:
        """Add an observation."""
        if self._newer_count == _GENERATION:
            self._older, self._newer = self._newer, {}
            self._newer_count = 0
        bucket = _bucket(value)
        self._newer[bucket] = self._newer.get(bucket, 0) + 1
        self._newer_count += 1
        self.count += 1
        self.total += value
        if self.maximum is None or value > self.maximum:
            self.maximum = value

    def quantile(self, fraction: float) -> float | None:
        """Return a quantile of the recent observations, or None before the first."""
        return self.value().quantile(fraction)

    def value(self) -> HistogramValue:
        """Return what it has observed."""
        buckets = dict(self._older)
        # Others may look from another thread.
        for bucket, number in list(self._newer.items()):
            buckets[bucket] = buckets.get(bucket, 0) + number
        return HistogramValue(self.count, self.total, self.maximum, buckets)


def _bucket(value: float) -> int:
    if not 0 < value < math.inf:
        return _ZERO
    return math.floor(math.log2(value) * _STEPS_PER_OCTAVE)
