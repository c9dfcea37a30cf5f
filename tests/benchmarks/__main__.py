"""``python -m tests.benchmarks``: how fast is it, beside a plain loop and its peers?"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import traceback
from pathlib import Path

from tests.benchmarks.measure import Report
from tests.benchmarks.pyflink_peer import interpreter_of
from tests.benchmarks.table import render, write_json
from tests.benchmarks.works import WORKS, Options


def arguments(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument(
        "--only", default=",".join(WORKS), help="works, separated by commas"
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument(
        "--repeat", type=int, default=5, help="rounds; the medians are reported"
    )
    parser.add_argument(
        "--no-peers", action="store_true", help="leave other libraries out"
    )
    parser.add_argument(
        "--pyflink-python", help="an interpreter that has PyFlink, for Nexmark"
    )
    found = parser.parse_args(argv)
    if found.records < 1000 or found.repeat < 1:
        parser.error("--records needs at least 1000, --repeat at least 1")
    found.works = [name.strip().upper() for name in found.only.split(",")]
    unknown = [name for name in found.works if name not in WORKS]
    if unknown:
        parser.error(f"no such work: {', '.join(unknown)}; there are {list(WORKS)}")
    return found


def main(argv: list[str]) -> None:
    """Measure, print, and write."""
    chosen = arguments(argv)
    options = Options(
        chosen.records,
        chosen.repeat,
        not chosen.no_peers,
        interpreter_of(chosen.pyflink_python),
    )
    print(
        f"Python {platform.python_version()}, {platform.machine()}, "
        f"{os.cpu_count()} cores; medians of {options.rounds} rounds; "
        "x is the speed relative to the first line\n"
    )
    reports: list[Report] = []
    failed: list[str] = []
    for name in chosen.works:
        try:
            for report in WORKS[name](options):
                reports.append(report)
                print(render(report) + "\n", flush=True)
        except Exception:
            # What the other works say is worth having.
            failed.append(name)
            print(f"{name}  failed\n{traceback.format_exc()}", flush=True)
    missed = [v for report in reports for v in report.verdicts if not v.reached]
    judged = sum(len(report.verdicts) for report in reports)
    print(f"{judged - len(missed)} of {judged} targets reached")
    if chosen.json is not None:
        write_json(reports, chosen.json)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
