"""Metrics: what they are called, how they are merged, and the objects that count."""

from aiomailbox.metrics.catalogue import METRICS, Metric, MetricScope
from aiomailbox.metrics.instruments import MetricGroup

__all__ = ["METRICS", "Metric", "MetricGroup", "MetricScope"]
