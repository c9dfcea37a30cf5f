"""Virtual time for every async test, one Spark session, and no Spark test left out.

Theory of operation: the suite may run in several workers (pytest-xdist). What needs
Spark stays on one of them, so that there is one session. What is counted is counted
where it happens, given along when a worker ends, and told by the process that the user
started.
"""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

from aiomailbox.testing import virtual_time_loop_factory

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

SPARK_TIMEOUT_S = 300
# How long before its time limit strikes a test that hangs is told of, and how precisely.
TRACES_BEFORE_S = 10
TRACES_WITHIN_S = 10

# After how many new objects garbage is collected, and how much more rarely among older
# ones, of which a suite has many: passes over them were a tenth of its processor time.
COLLECTIONS = (700, 10, 100)

# Where tests start programs, databases or Sparks, or work for seconds: those with the
# longest files come first.
LONG = (
    "spark", "tests/simulation/", "tests/columnar/", "tests/runtime/", "tests/operators/",
    "tests/conformance/", "tests/state/", "tests/windowing/", "tests/eventtime/",
    "tests/typing/", "tests/crash/", "tests/examples/", "tests/connectors/",
    "tests/saved/", "tests/checkpoint/", "tests/api/", "tests/docs/", "tests/observe/",
    "tests/cli/", "tests/packaging/", "tests/exchange/", "tests/test_",
    "aiomailbox/testing/simulation/",
)  # fmt: skip

# What `nox -s system` runs and `nox -s tests` leaves out: kills, long simulations, all
# that Spark can do, examples. A test that belongs elsewhere than its file is marked
# ``suite("tests")`` or ``suite("system")``.
SYSTEM = (
    "tests/architecture/test_gates.py", "tests/architecture/test_spark_guard.py",
    "tests/columnar/test_released_batches.py", "tests/conformance/test_runner.py",
    "tests/connectors/exactly_once/",
    "tests/connectors/spark/inside/", "tests/connectors/spark/test_connect.py",
    "tests/connectors/spark/test_follower.py", "tests/connectors/spark/test_java.py",
    "tests/connectors/spark/test_local_cluster.py",
    "tests/connectors/spark/test_lost.py", "tests/connectors/spark/test_messages.py",
    "tests/connectors/spark/test_parquet_readers.py",
    "tests/connectors/spark/test_random_pipelines.py",
    "tests/connectors/spark/test_random_types.py",
    "tests/connectors/spark/test_restart.py",
    "tests/connectors/spark/test_stream_crashes.py",
    "tests/connectors/sql/test_server_crashes.py",
    "tests/connectors/test_left_behind.py", "tests/connectors/test_parquet_cancel.py",
    "tests/connectors/test_parquet_commit.py", "tests/crash/",
    "tests/docs/test_code_blocks.py", "tests/examples/",
    "tests/exchange/remote/test_faults.py", "tests/packaging/",
    "tests/runtime/processes/", "tests/runtime/test_bottleneck_operator.py",
    "tests/runtime/test_finished_calls.py", "tests/simulation/", "tests/typing/",
)  # fmt: skip

# What the mark may be given.
SUITES = (("tests",), ("system",))

# Run by an interpreter of its own, which has PyFlink.
collect_ignore = ["benchmarks/pyflink_async.py", "benchmarks/pyflink_program.py"]

# A busy machine is no reason to fail, and where CI is set every run is the same.
settings.register_profile(
    "aiomailbox",
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("aiomailbox")
# Where most is proved elsewhere: `nox -s pythons`.
settings.register_profile("few", settings.get_profile("aiomailbox"), max_examples=20)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let cases come from another directory, half of the tests run, or long ones too."""
    parser.addoption(
        "--suite",
        choices=[name for (name,) in SUITES],
        help="run the laws and each real part once, or what is left to `nox -s system`; "
        "without it, both",
    )
    parser.addoption(
        "--vectors",
        metavar="DIR",
        help="run tests/conformance on the recorded files of DIR",
    )
    parser.addoption(
        "--spark-memory",
        action="store_true",
        help="run the tests marked spark_memory too, which stream many rows",
    )
    parser.addoption(
        "--local-cluster",
        action="store_true",
        help="run the tests marked local_cluster too, which start executors",
    )
    parser.addoption(
        "--browser",
        action="store_true",
        help="run the tests marked browser too, which start Chromium",
    )
    parser.addoption(
        "--minutes",
        metavar="N",
        type=float,
        help="run the tests marked soak too, each for N minutes",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give workers whole files, and all files with tests of Spark to the same one."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return "spark" if _shares_spark(config.rootpath / path) else path

        def _assign_work_unit(self, node: Any) -> None:
            # The last files are short ones: nobody waits for a worker that has begun
            # a long one when there was nothing left for the other.
            longest = min(self.workqueue, key=_rank)
            unit = self.workqueue.pop(longest)
            self.assigned_work[node][longest] = unit
            left = [nodeid for nodeid, is_done in unit.items() if not is_done]
            node.send_runtest_some([self._places[nodeid] for nodeid in left])

        @functools.cached_property
        def _places(self) -> dict[str, int]:
            assert self.collection is not None
            return {nodeid: place for place, nodeid in enumerate(self.collection)}

        def mark_test_complete(
            self, node: Any, item_index: int, duration: float = 0
        ) -> None:
            super().mark_test_complete(node, item_index, duration)
            # What is done is not counted again after each test.
            units = self.assigned_work[node]
            scope = self._split_scope(self.registered_collections[node][item_index])
            if all(units[scope].values()):
                del units[scope]

    return ByFile(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Read no file of which all tests are in the other suite: that takes seconds."""
    suite = config.getoption("suite")
    if suite is None or collection_path.suffix != ".py":
        return None
    place = collection_path.relative_to(config.rootpath).as_posix()
    is_other = suite != ("system" if place.startswith(SYSTEM) else "tests")
    if is_other and f'suite("{suite}")' not in collection_path.read_text("utf-8"):
        return True
    return None


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave out the other suite, and what runs for minutes if it is not asked for."""
    wanted = config.getoption("suite")
    suites = [_suite(item) for item in items]
    if wanted is not None:
        items[:] = [
            item for item, suite in zip(items, suites, strict=True) if suite == wanted
        ]
    for item in items:
        if _needs_spark(item):
            # So that its reports say so, in whichever process they are read: which test
            # needs Spark, and whether it uses the session.
            shares: bool = "spark" in getattr(item, "fixturenames", ())
            item.user_properties.append(("spark_test", shares))
            # A time limit that strikes within a call of Java spoils the session for all
            # tests that follow: none but a test that hangs may reach it.
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S), append=False)
    _leave_out(config, items, "soak", config.getoption("minutes") is None)
    _leave_out(config, items, "spark_memory", not config.getoption("spark_memory"))
    _leave_out(config, items, "local_cluster", not config.getoption("local_cluster"))
    _leave_out(config, items, "browser", not config.getoption("browser"))


def _leave_out(
    config: pytest.Config, items: list[pytest.Item], marker: str, is_unwanted: bool
) -> None:
    left_out = [item for item in items if item.get_closest_marker(marker) is not None]
    if is_unwanted and left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let collections of garbage pass over what is collected of tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECTIONS)


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
    from aiomailbox.connectors.spark.session import local_session

    session = local_session("aiomailbox tests", cores=2)
    # A cancelled job is expected here, and Spark tells about it at length.
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def program_forks() -> Iterator[Any]:
    """Give the process that has imported the library, for small programs."""
    from tests.forks import Forks

    with Forks("tests.program_fork") as forks:
        yield forks


@pytest.fixture
def run_program(program_forks: Any, tmp_path: Path) -> Callable[..., Any]:
    """Give what runs a program's text, as ``python -W error program.py ARGUMENTS`` does.

    Its file is ``tmp_path / "program.py"``, and it may import what is beside that. It
    returns its exit code, what it printed, and its log: what it wrote to stderr, but for
    what a busy machine adds.
    """
    from tests.held import without_held

    def run(text: str, *arguments: str) -> Any:
        (tmp_path / "program.py").write_text(text)
        done = program_forks.run(tmp_path, *arguments)
        return done._replace(log=without_held(done.log))

    return run


class Examples:
    """Looks for examples in docstrings only where there are some.

    To look takes as long as to collect the tests of a file, and each program beside them
    would be imported.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        collectors = yield
        if file_path.suffix != ".py" or b">>>" in file_path.read_bytes():
            return collectors
        return [one for one in collectors if not isinstance(one, DoctestModule)]


class Traces:
    """Writes what all threads do where a test hangs, before its time limit strikes.

    That is not always heard: a call of C may never return. What pytest itself has for
    this begins and ends a thread for each test, and on a busy machine it takes
    milliseconds until that has had its turn. This one goes on over many tests.
    """

    def __init__(self) -> None:
        # Nothing is captured yet.
        self._file = os.fdopen(os.dup(2), "w")
        self._limit_s = 0.0
        self._since_s = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        marker = item.get_closest_marker("timeout")
        limit_s = marker.args[0] if marker else float(item.config.getini("timeout"))
        now_s = time.monotonic()
        if limit_s != self._limit_s or now_s - self._since_s > TRACES_WITHIN_S:
            self._watch(limit_s, now_s)
        try:
            return (yield)
        finally:
            if nextitem is None:
                self._watch(0, now_s)

    def _watch(self, limit_s: float, now_s: float) -> None:
        self._limit_s, self._since_s = limit_s, now_s
        if limit_s > TRACES_BEFORE_S:
            faulthandler.dump_traceback_later(
                limit_s - TRACES_BEFORE_S, file=self._file
            )
        else:
            faulthandler.cancel_dump_traceback_later()


class SparkTests:
    """Counts the tests that need Spark; where ``CI`` is set, none may be left out."""

    def __init__(self) -> None:
        self.selected: set[str] = set()
        self.reported: set[str] = set()
        self.deselected: set[str] = set()
        self.skipped: set[str] = set()
        self.workers: set[str] = set()

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        suite = items[0].config.getoption("suite")
        mine = [item for item in items if suite in (None, _suite(item))]
        self.deselected |= {item.nodeid for item in mine if _needs_spark(item)}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        # A module that skips itself may have held anything.
        if report.skipped:
            self.skipped.add(report.nodeid)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.selected = {item.nodeid for item in session.items if _needs_spark(item)}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        if "spark_test" in properties:
            (self.skipped if report.skipped else self.reported).add(report.nodeid)
            if properties["spark_test"]:
                self.workers.add(getattr(report, "worker_id", "here"))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        # Every worker collects the whole suite; one that died says nothing.
        found = getattr(node, "workeroutput", {}).get("spark_tests", {})
        self.selected |= set(found.get("selected", ()))
        self.deselected |= set(found.get("deselected", ()))
        self.skipped |= set(found.get("skipped", ()))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["spark_tests"] = {
                "selected": sorted(self.selected),
                "deselected": sorted(self.deselected),
                "skipped": sorted(self.skipped),
            }
            return
        left_out = self.skipped or self.deselected or self.selected - self.reported
        at_odds = left_out or len(self.workers) > 1
        if at_odds and os.environ.get("CI") == "true" and exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        if self.selected or self.skipped or self.deselected:
            run = len(self.reported - self.skipped)
            terminalreporter.write_line(
                f"spark tests: {run} run, {len(self.skipped)} skipped, "
                f"{len(self.deselected)} deselected"
            )
        if len(self.workers) > 1:
            terminalreporter.write_line(
                f"spark tests ran on {len(self.workers)} workers, each with a session "
                "of its own; --dist loadfile keeps them together"
            )


class ConformanceTable:
    """Adds up what the recorded cases of Flink gave, a row per file, and shows it."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.rows: dict[str, dict[str, Any]] = {}

    def add(self, rows: dict[str, dict[str, Any]]) -> None:
        """Add a worker's rows: each names its counts, and what is equal in all."""
        for name, row in rows.items():
            self.counts.setdefault(name, Counter()).update(row["counts"])
            self.rows[name] = row

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self.add(getattr(node, "workeroutput", {}).get("conformance", {}))

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        if not self.rows:
            return
        terminalreporter.section("conformance with Apache Flink 2.3.0")
        terminalreporter.write_line(
            f"{'file':32}{'run':>6}{'failed':>8}{'deliberate':>12}{'pending':>9}"
        )
        total: Counter[str] = Counter()
        for name, row in sorted(self.rows.items()):
            counts = self.counts[name]
            counts["pending"] = row["pending"]
            total.update(counts)
            terminalreporter.write_line(_row(name, counts, row["note"]))
            for i, reason in row["deliberate"]:
                terminalreporter.write_line(f"    case {i} differs: {reason}")
        terminalreporter.write_line(_row("all files", total, ""))


def _row(name: str, counts: Counter[str], note: str) -> str:
    numbers = (
        f"{counts['run']:6}{counts['failed']:8}"
        f"{counts['deliberate']:12}{counts['pending']:9}"
    )
    return f"{name:32}{numbers}  {note}".rstrip()


def pytest_configure(config: pytest.Config) -> None:
    """Watch tests, count those that need Spark, and what recorded cases give."""
    config.pluginmanager.register(Examples())
    config.pluginmanager.register(Traces())
    config.pluginmanager.register(SparkTests())
    config.pluginmanager.register(ConformanceTable(), "conformance table")


def _needs_spark(item: pytest.Item) -> bool:
    return item.get_closest_marker("spark") is not None


def _suite(item: pytest.Item) -> str:
    marker = item.get_closest_marker("suite")
    if marker is None:
        return "system" if item.nodeid.startswith(SYSTEM) else "tests"
    if marker.args not in SUITES:
        raise pytest.UsageError(
            f'{item.nodeid}: @pytest.mark.suite takes "tests" or "system", '
            f"not {', '.join(map(repr, marker.args)) or 'nothing'}"
        )
    return str(marker.args[0])


@functools.cache
def _rank(scope: str) -> int:
    ranks = (rank for rank, place in enumerate(LONG) if scope.startswith(place))
    return next(ranks, len(LONG))


@functools.cache
def _shares_spark(path: Path) -> bool:
    """Say whether tests of a file use the session, and do not start a Spark of their own."""
    text = path.read_text("utf-8") if path.suffix == ".py" else ""
    return "pytest.mark.spark" in text and "spark: Any" in text
