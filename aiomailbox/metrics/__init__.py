"""Metrics: what they are called, how they are merged, and the objects that count."""

from aiomailbox.metrics.catalogue import METRICS, Histogram, Metric, MetricScope
from aiomailbox.metrics.instruments import Counter, MetricGroup

__all__ = ["METRICS", "Counter", "Histogram", "Metric", "MetricGroup", "MetricScope"]
