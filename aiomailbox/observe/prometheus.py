"""A job's metrics for Prometheus, in a registry of the caller's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from aiomailbox.api.job import JobClient, LatestSnapshot
from aiomailbox.errors import InvalidArgumentError, MissingExtraError
from aiomailbox.metrics.catalogue import (
    LATENCY,
    METRICS,
    HistogramValue,
    Metric,
    MetricKind,
    MetricScope,
)
from aiomailbox.observe.reading import Export, SharedJobs, points_of
from aiomailbox.runtime.config import JobState
from aiomailbox.runtime.job_snapshot import JobSnapshot

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


_LABELS: Final = {
    MetricScope.JOB: ("job",),
    MetricScope.OPERATOR: ("job", "operator", "uid"),
    MetricScope.TASK: ("job", "task"),
}
_QUANTILES: Final = (0.5, 0.95, 0.99)


class PrometheusExport(Export):
    """A job that a registry exports; made by `prometheus`."""


class _Collector:
    """All jobs of a registry, read when it is scraped."""

    def __init__(self, jobs: SharedJobs, namespace: str) -> None:
        self._jobs = jobs
        self._namespace = namespace

    def describe(self) -> list[Any]:
        """Return what there can be, so that a registry finds names that are taken."""
        return [
            *(
                self._family(metric, metric.scope, _LABELS[metric.scope])
                for metric in (*METRICS, LATENCY)
            ),
            self._state(),
        ]

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of all jobs."""
        families: dict[str, Any] = {}
        state = self._state()
        for snapshot in self._jobs.read():
            self._add(families, snapshot)
            for each in JobState:
                is_so = float(snapshot.state == each.value)
                state.add_metric([snapshot.job, each.value], is_so)
        yield from families.values()
        yield state

    def _add(self, families: dict[str, Any], snapshot: JobSnapshot) -> None:
        for metric, scope, labels, value in points_of(snapshot):
            name = self._name(metric, scope)
            family = families.get(name)
            if family is None:
                family = families[name] = self._family(metric, scope, labels)
            values = list(labels.values())
            if isinstance(value, HistogramValue):
                family.add_metric(values, value.count, value.total)
                for quantile in _QUANTILES:
                    family.add_sample(
                        name,
                        {**labels, "quantile": str(quantile)},
                        value.quantile(quantile) or 0.0,
                    )
            else:
                family.add_metric(values, value)

    def _family(self, metric: Metric, scope: MetricScope, labels: Iterable[str]) -> Any:
        from prometheus_client import core

        kinds = {
            MetricKind.COUNTER: core.CounterMetricFamily,
            MetricKind.GAUGE: core.GaugeMetricFamily,
            MetricKind.HISTOGRAM: core.SummaryMetricFamily,
        }
        text = metric.text or metric.name
        return kinds[metric.kind](self._name(metric, scope), text, labels=[*labels])

    def _state(self) -> Any:
        from prometheus_client import core

        return core.GaugeMetricFamily(
            f"{self._namespace}_job_state",
            "1 for the state that the job is in, else 0.",
            labels=("job", "state"),
        )

    def _name(self, metric: Metric, scope: MetricScope) -> str:
        name = re.sub(r"[^a-zA-Z0-9_]", "_", metric.name)
        return f"{self._namespace}_{scope.value}_{name}"


_shown: WeakKeyDictionary[Any, dict[str, SharedJobs]] = WeakKeyDictionary()


def prometheus(
    job: JobClient | LatestSnapshot,
    registry: CollectorRegistry | None = None,
    *,
    namespace: str = "aiomailbox",
) -> PrometheusExport:
    """Export a job's metrics to a Prometheus registry until the export is closed.

    Nothing is counted twice: the numbers are read when they are scraped, from any
    thread. Jobs may share a registry, and have the label ``job``: the second that runs
    under a name is ``name #2``. A job that has ended is exported for five minutes more,
    or until another one of its name is.

    Args:
        job: The job, from the loop that it runs on, or a `LatestSnapshot`.
        registry: The registry; None for that of the process.
        namespace: The prefix of all metric names.

    Returns:
        An object that ends the export.

    Raises:
        InvalidArgumentError: If a metric of the registry has one of the names.
        MissingExtraError: If prometheus-client is not installed.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise MissingExtraError("prometheus", "prometheus") from error
    if re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", namespace) is None:
        raise InvalidArgumentError(
            "namespace",
            f"{namespace!r} is not the prefix of a metric's name",
            "Use letters, digits and _.",
        )
    used = REGISTRY if registry is None else registry
    # One collector for all jobs of a registry, as names can be registered once.
    shown = _shown.setdefault(used, {})
    jobs = shown.get(namespace)
    if jobs is None:
        jobs = SharedJobs()
        try:
            used.register(_Collector(jobs, namespace))
        except ValueError as error:
            raise InvalidArgumentError(
                "registry",
                f"it has metrics of such names already: {error}",
                "Give another namespace=, or a registry of its own.",
            ) from error
        shown[namespace] = jobs
    return PrometheusExport(jobs, job)
