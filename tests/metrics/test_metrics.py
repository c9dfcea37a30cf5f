"""Metrics are declared once; merging follows the declaration."""

from __future__ import annotations

import random
import re

import pytest

import aiomailbox as am
from aiomailbox.metrics.catalogue import (
    METRICS,
    Histogram,
    HistogramValue,
    Merge,
    Metric,
    MetricKind,
    merged,
)
from aiomailbox.metrics.instruments import MetricGroup


@pytest.mark.parametrize(
    ("merge", "expected"),
    [
        (Merge.SUM, 10),
        (Merge.MIN, 1),
        (Merge.MAX, 7),
        (Merge.MEAN, 10 / 3),
        (Merge.LAST, 7),
    ],
)
def test_values_of_subtasks_are_merged_as_declared(
    merge: Merge, expected: float
) -> None:
    # The name says nothing: it ends like one that used to be a maximum.
    metric = Metric("sum_max", MetricKind.GAUGE, "1", merge, "")
    assert merged(metric, [1, None, 2, 7]) == expected


def test_no_value_is_no_value_and_a_text_is_not_added() -> None:
    metric = Metric("state", MetricKind.GAUGE, "", Merge.SUM, "")
    assert merged(metric, []) is None
    assert merged(metric, [None, None]) is None
    assert merged(metric, ["running", "failed"]) == "failed"


def test_each_name_is_declared_once() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))


def test_a_name_has_one_kind() -> None:
    group = MetricGroup("map")
    with pytest.raises(am.InvalidArgumentError, match="is a counter"):
        group.gauge("num_records_in", lambda: 1)
    group.histogram("sizes")
    with pytest.raises(am.InvalidArgumentError, match="is a histogram"):
        group.counter("sizes")


def test_quantiles_are_right_within_their_error_and_add_up() -> None:
    chance = random.Random(7)
    values = [chance.lognormvariate(3, 2) for _ in range(1000)]
    parts = [Histogram(), Histogram(), Histogram()]
    for place, value in enumerate(values):
        parts[place % 3].observe(value)
    whole = HistogramValue.sum_of(part.value() for part in parts)
    ordered = sorted(values)
    assert whole.count == 1000
    assert whole.maximum == ordered[-1]
    assert whole.total == pytest.approx(sum(values))
    for fraction in (0.01, 0.5, 0.95, 0.99, 1.0):
        exact = ordered[max(0, round(fraction * 1000) - 1)]
        assert whole.quantile(fraction) == pytest.approx(exact, rel=0.05)


def test_a_histogram_forgets_and_is_bounded() -> None:
    histogram = Histogram()
    for number in range(200_000):
        histogram.observe(10.0 ** (number % 12 - 6))
    for _ in range(2048):
        histogram.observe(5.0)
    value = histogram.value()
    assert value.count == 202_048
    assert len(value.buckets) == 1
    assert value.quantile(0.01) == pytest.approx(5.0, rel=0.03)


def test_what_has_no_logarithm_counts_as_zero() -> None:
    histogram = Histogram()
    for odd in (0, -3, float("nan"), float("inf")):
        histogram.observe(odd)
    assert histogram.value().count == 4
    assert histogram.quantile(0.5) == 0.0


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("counter.inc", "write the counter.add(n)"),
        ("counter.getCount", "write the counter.value"),
        ("histogram.update", "write the histogram.observe(value)"),
        ("group.meter", "write context.metrics.counter(name)"),
        ("group.distribution", "write context.metrics.histogram(name)"),
        ("group.countre", "is context.metrics.counter meant?"),
    ],
)
def test_a_name_of_other_libraries_says_what_to_write(name: str, written: str) -> None:
    group = MetricGroup("check")
    owners = {
        "group": group,
        "counter": group.counter("odd"),
        "histogram": group.histogram("prices"),
    }
    owner, _, attribute = name.partition(".")
    with pytest.raises(AttributeError, match=re.escape(written)):
        getattr(owners[owner], attribute)
