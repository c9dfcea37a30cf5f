"""What others see of a job: exporters, progress, pages. Each reads its snapshots only."""

from aiomailbox.observe.otel import OpenTelemetryExport, opentelemetry
from aiomailbox.observe.prometheus import PrometheusExport, prometheus

__all__ = [
    "OpenTelemetryExport",
    "PrometheusExport",
    "opentelemetry",
    "prometheus",
]
