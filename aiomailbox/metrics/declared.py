"""What a metric is: its kind, its unit, and how the values of two subtasks are merged."""

from __future__ import annotations

import enum

import msgspec

from aiomailbox.metrics.histogram import HistogramValue

__all__ = ["Merge", "Metric", "MetricKind", "MetricScope", "MetricValue", "merged"]

MetricValue = int | float | str | HistogramValue | None


class MetricKind(enum.Enum):
    """How a metric changes.

    Attributes:
        COUNTER: It only grows, and begins at 0 again when its task does.
        GAUGE: A value of the moment.
        HISTOGRAM: How observations are spread: a `HistogramValue`.
    """

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricScope(enum.Enum):
    """What a metric belongs to."""

    OPERATOR = "operator"
    TASK = "task"
    JOB = "job"


class Merge(enum.Enum):
    """How the values of two subtasks become one; None counts as no value.

    Attributes:
        SUM: They are added; histograms, too.
        MIN: The smaller one.
        MAX: The larger one.
        MEAN: The mean of all subtasks.
        LAST: The one of the later subtask, for texts.
    """

    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    LAST = "last"


class Metric(msgspec.Struct, frozen=True):
    """The declaration of a metric.

    Attributes:
        name: Its name: Flink's in snake_case where Flink has it.
        kind: How it changes.
        unit: What is counted, ``"records"``, ``"ms"``, ``"bytes"``; ``"1"`` for a
            fraction or a plain number.
        merge: How the values of subtasks become one.
        text: What it says.
        scope: What it belongs to.
        flink: Flink's name, "" if Flink has no such metric.
    """

    name: str
    kind: MetricKind
    unit: str
    merge: Merge
    text: str
    scope: MetricScope = MetricScope.OPERATOR
    flink: str = ""


def merged(metric: Metric, values: list[MetricValue]) -> MetricValue:
    """Return one value for those of all subtasks.

    Args:
        metric: Says how.
        values: One of each subtask, None where it has none.

    Example:
        >>> lag = Metric("lag", MetricKind.GAUGE, "ms", Merge.MAX, "How late it is.")
        >>> merged(lag, [3, None, 7])
        7
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return known[0] if known else None
    histograms = [value for value in known if isinstance(value, HistogramValue)]
    if histograms:
        return HistogramValue.sum_of(histograms)
    numbers = [value for value in known if isinstance(value, int | float)]
    if len(numbers) < len(known) or metric.merge is Merge.LAST:
        return known[-1]
    match metric.merge:
        case Merge.SUM:
            return sum(numbers)
        case Merge.MEAN:
            return sum(numbers) / len(numbers)
        case Merge.MIN:
            return min(numbers)
        case Merge.MAX:
            return max(numbers)
