"""Metrics: what they are called, how they are merged, and the objects that count."""

from aiomailbox.metrics.catalogue import DECLARED, METRICS
from aiomailbox.metrics.declared import (
    Merge,
    Metric,
    MetricKind,
    MetricScope,
    MetricValue,
    merged,
)
from aiomailbox.metrics.histogram import Histogram, HistogramValue
from aiomailbox.metrics.hot_keys import HotKey, HotKeys
from aiomailbox.metrics.instruments import Counter, MetricGroup
from aiomailbox.metrics.totals import KeyTotal, KeyTotals

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
