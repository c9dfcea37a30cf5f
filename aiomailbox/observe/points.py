"""A snapshot as numbers with labels: what exporters have in common (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from aiomailbox.metrics.catalogue import (
    DECLARED,
    Merge,
    Metric,
    MetricKind,
    MetricScope,
    MetricValue,
)
from aiomailbox.runtime.job_snapshot import JobSnapshot


class Point(NamedTuple):
    """One value of one metric.

    Attributes:
        metric: What it is.
        scope: ``"job"``, ``"task"`` or ``"operator"``.
        labels: Whose value it is: ``job`` first, then ``task``, or ``operator`` and
            ``uid``.
        value: The value; never None or a text.
    """

    metric: Metric
    scope: MetricScope
    labels: dict[str, str]
    value: MetricValue


def points_of(snapshot: JobSnapshot) -> Iterator[Point]:
    """Yield every number of a job, declared metrics only.

    Args:
        snapshot: The job.
    """
    job = {"job": snapshot.job}
    restarts = {**snapshot.checkpoint_metrics, "num_restarts": snapshot.restarts}
    yield from _points(snapshot, MetricScope.JOB, job, restarts)
    for operator in snapshot.operators:
        labels = {**job, "operator": operator.name, "uid": operator.uid or ""}
        yield from _points(snapshot, MetricScope.OPERATOR, labels, operator.metrics)
    for task in snapshot.tasks:
        labels = {**job, "task": task.name}
        yield from _points(snapshot, MetricScope.TASK, labels, task.metrics)


def _points(
    snapshot: JobSnapshot,
    scope: MetricScope,
    labels: dict[str, str],
    metrics: dict[str, MetricValue],
) -> Iterator[Point]:
    for name, value in metrics.items():
        if value is None or isinstance(value, str):
            continue
        metric = DECLARED.get(name) or snapshot.metric(name)
        if metric is None:
            metric = Metric(name, MetricKind.GAUGE, "1", Merge.SUM, "")
        yield Point(metric, scope, labels, value)
