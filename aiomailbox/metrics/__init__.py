"""Metrics: what they are called, how they are merged, and the objects that count."""

from aiomailbox.metrics.catalogue import (
    DECLARED,
    METRICS,
    Histogram,
    HistogramValue,
    Merge,
    Metric,
    MetricKind,
    MetricScope,
    MetricValue,
    merged,
)
from aiomailbox.metrics.instruments import (
    Counter,
    HotKey,
    HotKeys,
    KeyTotal,
    KeyTotals,
    MetricGroup,
)

__all__ = [
    "DECLARED",
    "METRICS",
    "Counter",
    "Histogram",
    "HistogramValue",
    "HotKey",
    "HotKeys",
    "KeyTotal",
    "KeyTotals",
    "Merge",
    "Metric",
    "MetricGroup",
    "MetricKind",
    "MetricScope",
    "MetricValue",
    "merged",
]
