"""Virtual time for every async test, one Spark session, and no Spark test left out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from aiomailbox.testing import virtual_time_loop_factory

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

# Run by an interpreter of its own, which has PyFlink.
collect_ignore = ["benchmarks/pyflink_program.py"]

# A busy machine is no reason to fail, and where CI is set every run is the same.
settings.register_profile(
    "aiomailbox",
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("aiomailbox")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let cases come from another directory, and long tests run."""
    parser.addoption(
        "--vectors",
        metavar="DIR",
        help="run tests/conformance on the recorded files of DIR",
    )
    parser.addoption(
        "--minutes",
        metavar="N",
        type=float,
        help="run the tests marked soak too, each for N minutes",
    )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave out what runs for minutes, unless it is said for how many."""
    if config.getoption("minutes") is not None:
        return
    long = [item for item in items if item.get_closest_marker("soak") is not None]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    """Give a test the virtual-time loop; ``real_time`` and ``spark`` get a real one."""
    if item.get_closest_marker("real_time") or item.get_closest_marker("spark"):
        return {"real": asyncio.SelectorEventLoop}
    return {"virtual": virtual_time_loop_factory()}


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Give the suite's one Spark session, for tests marked ``spark``."""
    from aiomailbox.connectors.spark import local_session

    session = local_session("aiomailbox tests", cores=2)
    # A cancelled job is expected here, and Spark tells about it at length.
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


class SparkTests:
    """Counts the tests that need Spark; where ``CI`` is set, none may be left out."""

    def __init__(self) -> None:
        self.selected: set[str] = set()
        self.run: set[str] = set()
        self.deselected: set[str] = set()
        self.skipped: set[str] = set()

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.deselected |= {item.nodeid for item in items if _needs_spark(item)}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        # A module that skips itself may have held anything.
        if report.skipped:
            self.skipped.add(report.nodeid)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.selected = {item.nodeid for item in session.items if _needs_spark(item)}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid in self.selected:
            (self.skipped if report.skipped else self.run).add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        left_out = self.skipped or self.deselected
        if left_out and os.environ.get("CI") == "true" and exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        if self.selected or self.skipped or self.deselected:
            run = len(self.run - self.skipped)
            terminalreporter.write_line(
                f"spark tests: {run} run, {len(self.skipped)} skipped, "
                f"{len(self.deselected)} deselected"
            )


def pytest_configure(config: pytest.Config) -> None:
    """Count the tests that need Spark."""
    config.pluginmanager.register(SparkTests())


def _needs_spark(item: pytest.Item) -> bool:
    return item.get_closest_marker("spark") is not None
