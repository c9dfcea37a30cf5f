"""The demo: its job against Spark SQL, on other partitions, and interrupted."""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

import aiomailbox as am

Load = Callable[[str], ModuleType]
DEMO = Path(__file__).parents[2] / "examples" / "flight_delays.py"

pytestmark = pytest.mark.spark


async def test_the_job_equals_spark_sql_and_writes_as_it_reads(
    load_example: Load, spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two months of it: each call takes its time."""
    demo = load_example("flight_delays")
    year = demo.read_flights(spark, tmp_path / "unpacked")
    assert year.where("dep_delay is not null").count() == demo.FLIGHTS_EXPECTED
    flights = year.where("scheduled < timestamp'2013-03-01 00:00:00'")
    target = tmp_path / "out" / "flight_delays"
    written_at_half = await demo.run(flights, target, quiet=True)
    rows = demo.read_result(target)
    assert len(rows) > 170
    assert demo.differences(rows, demo.by_spark_sql(flights, spark)) == []
    assert written_at_half >= 40, written_at_half
    assert sorted(path.name for path in target.parent.iterdir()) == ["flight_delays"]
    assert (target / "_SUCCESS").exists()
    # Spark tells of the end of its jobs some time later.
    while spark.sparkContext.statusTracker().getActiveJobsIds():
        await asyncio.sleep(0.01)

    demo.draw(rows, tmp_path / "delays.png")
    assert (tmp_path / "delays.png").read_bytes().startswith(b"\x89PNG")
    demo.show(rows)
    assert "The ten worst days" in capsys.readouterr().out


def test_a_difference_is_noticed(load_example: Load) -> None:
    """Without this the check of the demo could be one that finds nothing."""
    demo = load_example("flight_delays")
    day = demo.datetime.fromisoformat("2013-01-01T00:00:00+00:00")
    end = day + am.days(1)
    row = demo.DailyDelays("JFK", day, end, 10, 1.5, None, 2)
    theirs = ("JFK", demo.millis(day), demo.millis(end), 10, 1.5, None, 2)
    as_spark = SparkRow(*theirs)
    assert demo.differences([row], [as_spark]) == []
    for changed in (
        row._replace(origin="EWR"),
        row._replace(flights=11),
        row._replace(mean_dep_delay=1.5 + 1e-6),
        row._replace(mean_temp=0.0),
        row._replace(late_arrivals=3),
    ):
        assert demo.differences([changed], [as_spark]) != [], changed
    assert demo.differences([row, row], [as_spark]) != []
    assert demo.differences([], [as_spark]) != []


class SparkRow(tuple):
    """A row as `by_spark_sql` returns them."""

    __slots__ = ()
    names = (
        "origin",
        "window_start",
        "window_end",
        "flights",
        "mean_dep_delay",
        "mean_temp",
        "late_arrivals",
    )

    def __new__(cls, *values: Any) -> SparkRow:
        return super().__new__(cls, values)

    def __getattr__(self, name: str) -> Any:
        return self[self.names.index(name)]


async def test_partitions_that_each_span_all_the_time_give_the_same_rows(
    load_example: Load, spark: Any, tmp_path: Path
) -> None:
    """A month of it: each partition has a watermark of its own here."""
    demo = load_example("flight_delays")
    flights = demo.read_flights(spark, tmp_path / "unpacked").where(
        "scheduled < timestamp'2013-02-01 00:00:00'"
    )
    spread = flights.repartition(4).sortWithinPartitions(
        "actual", "carrier", "flight", "scheduled"
    )
    env = am.StreamExecutionEnvironment()
    source = am.SparkSource(spread, splits="independent")
    rows = (
        await env.from_source(source, demo.strategy(), name="flights")
        .through(demo.daily_delays)
        .collect()
    )
    assert len(rows) > 80
    assert demo.differences(rows, demo.by_spark_sql(flights, spark)) == []


def test_inside_spark_it_gives_what_spark_sql_gives(
    load_example: Load, spark: Any, tmp_path: Path
) -> None:
    """A month of it."""
    demo = load_example("flight_delays")
    flights = demo.read_flights(spark, tmp_path / "unpacked").where(
        "scheduled < timestamp'2013-02-01 00:00:00'"
    )
    rows = [demo.DailyDelays(*row) for row in demo.inside(flights).collect()]
    assert len(rows) > 80
    assert demo.differences(rows, demo.by_spark_sql(flights, spark)) == []


def test_an_interrupt_on_its_way_ends_it_soon_with_130_and_nothing_left(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    # A terminal shows the progress bar, which says when it is on its way.
    terminal, inner = os.openpty()
    demo = subprocess.Popen(
        [sys.executable, str(DEMO), "--out", str(out)],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=inner,
        stderr=inner,
        # As in a terminal, where all of the group get the interrupt.
        start_new_session=True,
    )
    os.close(inner)
    try:
        shown = _read_until(terminal, r"[1-8]\d%")
        family = psutil.Process(demo.pid).children(recursive=True)
        assert any("java" in process.name() for process in family)
        assert list(out.glob(".flight_delays.*"))
        os.killpg(demo.pid, signal.SIGINT)
        shown += _read_until(terminal, None)
        demo.wait(timeout=60)
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)
            demo.wait()
        os.close(terminal)
    assert demo.returncode == 130, shown
    # It ended there, and not when all was done.
    assert "100%" not in shown
    assert "interrupted" in shown
    assert "Traceback" not in shown
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    assert list(out.iterdir()) == []


def _read_until(terminal: int, pattern: str | None) -> str:
    """Return what a terminal shows until it matches, or until its program is gone."""
    shown = ""
    deadline = time.monotonic() + 150
    while pattern is None or not re.search(pattern, shown):
        ready, _, _ = select.select([terminal], [], [], deadline - time.monotonic())
        assert ready, f"nothing more than: {shown}"
        try:
            shown += os.read(terminal, 65_536).decode(errors="replace")
        except OSError:
            # That is how a terminal on Linux says that nobody writes any more.
            assert pattern is None, f"it ended with: {shown}"
            break
    return shown
