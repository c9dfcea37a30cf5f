"""Exporters, progress and the page. They show a job from its snapshots only."""

from aiomailbox.api.job import LatestSnapshot
from aiomailbox.observe.dashboard import dashboard, serving_dashboard
from aiomailbox.observe.otel import OpenTelemetryExport, opentelemetry
from aiomailbox.observe.prometheus import PrometheusExport, prometheus

__all__ = [
    "LatestSnapshot",
    "OpenTelemetryExport",
    "PrometheusExport",
    "dashboard",
    "opentelemetry",
    "prometheus",
    "serving_dashboard",
]
