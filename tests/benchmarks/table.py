"""Prints what was measured, and writes it as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.measure import Report


def render(report: Report) -> str:
    """Return the table of one work."""
    lines = [f"{report.work}  {report.title}"]
    for row in report.rows:
        if row.records > 1:
            took = f"{row.seconds:>9.3f} s  {row.records / row.seconds:>10,.0f} /s"
            count = f"{row.records:>10,} records"
        else:
            took = f"{row.seconds * 1e3:>9.3f} ms {'':>13}"
            count = f"{'one':>10} {'':7}"
        cpu = f"  (processor x {row.cpu_ratio:.3f})" if row.cpu_ratio else ""
        lines.append(f"    {row.system:<46}{count} {took}  x {row.ratio:.3f}{cpu}")
    lines += [f"    {note}" for note in report.notes]
    for verdict in report.verdicts:
        mark = "reached" if verdict.reached else "MISSED"
        lines.append(f"    {mark:<8}{verdict.text}")
    return "\n".join(lines)


def write_json(reports: Sequence[Report], path: Path) -> None:
    """Write a list of ``{work, system, records, seconds, ratio_to_plain}``.

    The ratio is one of speed, to the first system of the same work.
    """
    rows = [
        {
            "work": row.work,
            "system": row.system,
            "records": row.records,
            "seconds": row.seconds,
            "ratio_to_plain": row.ratio,
        }
        for report in reports
        for row in report.rows
    ]
    path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
