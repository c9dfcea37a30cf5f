"""Writes metrics.md: the table of all metrics, from their declarations.

Run it from the project's directory: ``python docs/metrics_page.py``.
"""

from __future__ import annotations

from pathlib import Path

from aiomailbox.metrics import METRICS, Metric, MetricScope

HEAD = """# Metrics

`job.metrics()` and `job.snapshot()` return these metrics. The names are Flink's, in
snake_case, where Flink has such a metric. *Merge* says how the values of several subtasks are
combined: for an operator in `job.snapshot().operators`, for a chain of operators in
`vertices`.

This page is generated from the declarations in `aiomailbox.metrics`. A function declares its
own metrics in `open`, and changes them later:

| in `open` | later |
|---|---|
| `orders = context.metrics.counter("orders", unit="orders", text="Orders seen.")` | `orders.add()`, `orders.add(3)` |
| `prices = context.metrics.histogram("prices", unit="EUR")` | `prices.observe(2.5)` |
| `context.metrics.gauge("queued", function, merge=am.Merge.MAX)` | nothing: the function returns the value when somebody asks |

`job.metrics().operators["check"]["orders"]` is the value in the operator `check`.
Of a histogram it has `count`, `total`, `maximum`, `mean` and the function `quantile(0.99)`.
`job.snapshot().metric("orders")` returns the declaration, also if a worker made it.

After the end of a job its metrics say what was counted, how large its state was, and that nothing
waits or is held. Of a worker that was lost only what it had counted is shown.
"""

TITLES = {
    MetricScope.OPERATOR: (
        "Of an operator",
        "Each operator has the metrics that fit what it does.",
    ),
    MetricScope.TASK: (
        "Of a task",
        (
            "[Backpressure](concepts/backpressure.md) explains these. "
            '"Per second" looks back five seconds.'
        ),
    ),
    MetricScope.JOB: (
        "Of a job",
        "In `job.snapshot().checkpoint_metrics`; `num_restarts` as `job.snapshot().restarts`.",
    ),
}


def row(metric: Metric) -> str:
    """Return the line of the table for a metric."""
    flink = f" Flink: `{metric.flink}`." if metric.flink else ""
    return (
        f"| `{metric.name}` | {metric.kind.value} | {metric.unit} | "
        f"{metric.merge.value} | {metric.text}{flink} |"
    )


def page() -> str:
    """Return the whole page."""
    lines = [HEAD]
    for scope, (title, text) in TITLES.items():
        lines += [
            f"## {title}\n",
            f"{text}\n",
            "| name | kind | unit | merge | what it says |",
            "|---|---|---|---|---|",
            *(row(metric) for metric in METRICS if metric.scope is scope),
            "",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    Path(__file__).with_name("metrics.md").write_text(page(), encoding="utf-8")
