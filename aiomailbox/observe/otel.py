"""A job's metrics for OpenTelemetry, through its API only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from aiomailbox.api.job import JobClient, LatestSnapshot
from aiomailbox.errors import MissingExtraError
from aiomailbox.metrics.catalogue import (
    LATENCY,
    LATENCY_FROM,
    METRICS,
    HistogramValue,
    Metric,
    MetricKind,
)
from aiomailbox.observe.reading import Export, SharedJobs, points_of

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider


_QUANTILES: Final = {"p50": 0.5, "p99": 0.99}


class OpenTelemetryExport(Export):
    """A job whose metrics a meter observes; made by `opentelemetry`."""


class _Shown:
    """The jobs and instruments that one provider observes; each name has one instrument."""

    def __init__(self) -> None:
        self.jobs = SharedJobs()
        self.metrics: set[Metric] = set()


_shown: WeakKeyDictionary[Any, _Shown] = WeakKeyDictionary()


def opentelemetry(
    job: JobClient | LatestSnapshot, meter_provider: MeterProvider | None = None
) -> OpenTelemetryExport:
    """Export a job's metrics to OpenTelemetry until the export is closed.

    The instruments are called ``aiomailbox.operator.num_records_in`` and so on, with the
    attributes ``job``, ``operator`` and ``uid``, or ``task``, and ``source`` of a latency.
    Jobs of one name, and one that has ended, are exported as `prometheus` says. The metrics that a
    function declares are observed from the job's first export on. For one span per
    asynchronous call see ``JobConfig(trace_calls=True)``.

    Args:
        job: The job, from the loop that it runs on, or a `LatestSnapshot`.
        meter_provider: The provider; None for that of the process.

    Returns:
        An object that ends the export.

    Raises:
        MissingExtraError: If the API of OpenTelemetry is not installed.
    """
    try:
        from opentelemetry import metrics
    except ImportError as error:
        raise MissingExtraError("opentelemetry", "otel") from error
    provider = (
        metrics.get_meter_provider() if meter_provider is None else meter_provider
    )
    shown = _shown.get(provider)
    if shown is None:
        shown = _shown[provider] = _Shown()
    export = OpenTelemetryExport(shown.jobs, job)
    meter = provider.get_meter("aiomailbox")
    seen = job.snapshot()
    for metric in (*METRICS, LATENCY, *(seen.declared if seen else ())):
        is_latency = metric.name.startswith(LATENCY_FROM)
        if metric not in shown.metrics and not is_latency:
            shown.metrics.add(metric)
            _instrument(meter, metric, shown.jobs)
    return export


def _instrument(meter: Any, metric: Metric, jobs: SharedJobs) -> None:
    name = f"aiomailbox.{metric.scope.value}.{metric.name}"
    about = {"unit": metric.unit, "description": metric.text}
    reads: dict[str, Callable[[Any], float | None]] = {"": _number}
    if metric.kind is MetricKind.HISTOGRAM:
        reads = {f".{each}": _quantile(one) for each, one in _QUANTILES.items()}
    is_counter = metric.kind is MetricKind.COUNTER
    create = (
        meter.create_observable_counter if is_counter else meter.create_observable_gauge
    )
    for suffix, read in reads.items():
        create(f"{name}{suffix}", [_observer(jobs, metric, read)], **about)


def _observer(
    jobs: SharedJobs, metric: Metric, read: Callable[[Any], float | None]
) -> Callable[[Any], Iterable[Any]]:
    from opentelemetry.metrics import Observation

    def observe(_: Any) -> Iterable[Any]:
        for snapshot in jobs.read():
            for point in points_of(snapshot):
                if point.metric == metric:
                    value = read(point.value)
                    if value is not None:
                        yield Observation(value, point.labels)

    return observe


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) else None


def _quantile(fraction: float) -> Callable[[Any], float | None]:
    def read(value: Any) -> float | None:
        return value.quantile(fraction) if isinstance(value, HistogramValue) else None

    return read
