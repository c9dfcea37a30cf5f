"""No test is left out unnoticed: each is in one suite, and in CI those of Spark run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.pytests import Pytests, pytests

__all__ = ["pytests"]

ROOT = Path(__file__).parents[2]

RUNS = "@pytest.mark.spark\ndef test_runs(): pass\n"
SKIPS = "@pytest.mark.spark\ndef test_skips(): pytest.skip('no Spark')\n"
SKIPS_IN_SETUP = "@pytest.mark.skip('no')\n" + RUNS
TWO_WORKERS = ["-n", "2", "--dist", "loadfile"]
DESELECTED = RUNS.replace("runs", "is_not_chosen")
ORDINARY = "def test_ordinary(): pass\n"
ORDINARY_SKIP = "def test_ordinary(): pytest.skip('a reason')\n"
# The tests are taken off the list behind the back of whoever counts.
FIRST_TAKES_THE_REST_AWAY = """
@pytest.fixture(autouse=True)
def nothing_else(request):
    request.session.items[1:] = []

@pytest.mark.spark
def test_never_begins(): pass
"""
MODULE_SKIP = "pytest.importorskip('a_package_that_is_not_there')\n"


class Project:
    """A copy of the configuration, with tests of the test's own."""

    def __init__(self, folder: Path, pytests: Pytests) -> None:
        self.tests = folder / "tests"
        self.tests.mkdir()
        shutil.copy(ROOT / "tests" / "conftest.py", self.tests)
        shutil.copy(ROOT / "pyproject.toml", folder)
        self._folder, self._pytests = folder, pytests

    def run(self, source: str, *arguments: str, ci: bool) -> tuple[int, str]:
        (self.tests / "test_it.py").write_text("import pytest\n" + source)
        is_ci = "true" if ci else ""
        return self._pytests.run(self._folder, "tests", *arguments, CI=is_ci)


@pytest.fixture
def project(tmp_path: Path, pytests: Pytests) -> Project:
    return Project(tmp_path, pytests)


@pytest.mark.parametrize(
    ("source", "arguments", "line"),
    [
        (RUNS + SKIPS, [], "spark tests: 1 run, 1 skipped, 0 deselected"),
        (SKIPS_IN_SETUP, [], "spark tests: 0 run, 1 skipped, 0 deselected"),
        (
            RUNS + ORDINARY,
            ["-m", "not spark"],
            "spark tests: 0 run, 0 skipped, 1 deselected",
        ),
        (MODULE_SKIP + RUNS, [], "spark tests: 0 run, 1 skipped, 0 deselected"),
        (
            RUNS + SKIPS + SKIPS_IN_SETUP.replace("runs", "never") + DESELECTED,
            [*TWO_WORKERS, "-k", "not chosen"],
            "spark tests: 1 run, 2 skipped, 1 deselected",
        ),
        (
            RUNS + FIRST_TAKES_THE_REST_AWAY,
            [],
            "spark tests: 1 run, 0 skipped, 0 deselected",
        ),
    ],
    ids=[
        "skipped",
        "skipped in setup",
        "deselected",
        "skipped module",
        "skipped and deselected on two workers",
        "never begun",
    ],
)
def test_leaving_one_out_fails_the_run(
    project: Project, source: str, arguments: list[str], line: str
) -> None:
    code, shown = project.run(source, *arguments, ci=True)
    assert code != 0
    assert line in shown.splitlines()


def test_outside_ci_one_may_be_left_out(project: Project) -> None:
    code, _ = project.run(RUNS + SKIPS, ci=False)
    assert code == 0


def test_running_all_of_them_is_fine_and_counted(project: Project) -> None:
    code, shown = project.run(RUNS + ORDINARY_SKIP, ci=True)
    assert code == 0
    assert "spark tests: 1 run, 0 skipped, 0 deselected" in shown.splitlines()


# In two pieces: whoever reads this file is to see no test of the session.
SESSION = "spark: " + "Any"
SPARK_TESTS = f"""
import os
from pathlib import Path
from typing import Any

import pytest

@pytest.fixture(scope="session")
def spark(): pass

@pytest.mark.spark
@pytest.mark.parametrize("number", range(10))
def test_it_is_here(number, {SESSION}):
    name = "-".join([str(os.getpid()), str(number), Path(__file__).stem])
    Path(__file__).with_name(name).touch()
"""
ORDINARY_TESTS = """
import pytest

@pytest.mark.parametrize("number", range(10))
def test_ordinary(number): pass
"""


@pytest.mark.parametrize(
    ("distribution", "ends_well", "processes"),
    [("loadfile", True, 1), ("each", False, 2)],
)
def test_two_workers_run_all_of_one_session_in_the_same_process(
    project: Project, distribution: str, ends_well: bool, processes: int
) -> None:
    (project.tests / "test_more.py").write_text(SPARK_TESTS)
    for number in range(4):
        (project.tests / f"test_ordinary_{number}.py").write_text(ORDINARY_TESTS)
    code, shown = project.run(SPARK_TESTS, "-n", "2", "--dist", distribution, ci=True)
    assert (code == 0) == ends_well, shown
    assert "spark tests: 20 run, 0 skipped, 0 deselected" in shown.splitlines()
    assert ("spark tests ran on 2 workers" in shown) != ends_well
    marks = [path.name.split("-") for path in project.tests.glob("*-*-*")]
    assert len({pid for pid, _, _ in marks}) == processes
    assert len(marks) == 20 * processes


def test_those_that_start_a_spark_of_their_own_may_run_anywhere(
    project: Project,
) -> None:
    alone = SPARK_TESTS.replace(f", {SESSION}", "")
    for number in range(4):
        (project.tests / f"test_more_{number}.py").write_text(alone)
    code, shown = project.run(alone, "-n", "2", "--dist", "loadfile", ci=True)
    assert code == 0, shown
    assert "spark tests: 50 run, 0 skipped, 0 deselected" in shown.splitlines()
    assert "spark tests ran on 2 workers" not in shown
    marks = [path.name.split("-") for path in project.tests.glob("*-*-*")]
    assert len({pid for pid, _, _ in marks}) == 2


SUITES = """
import pytest

def test_unmarked(): pass

@pytest.mark.suite("system")
def test_in_system(): pass

@pytest.mark.suite("tests")
def test_in_tests(): pass
"""


@pytest.mark.parametrize(
    ("suite", "names"),
    [("tests", {"test_unmarked", "test_in_tests"}), ("system", {"test_in_system"})],
)
def test_a_test_is_in_the_suite_of_its_mark_or_of_its_file(
    project: Project, suite: str, names: set[str]
) -> None:
    listed = ["--collect-only", "-q", "--suite", suite]
    code, shown = project.run(SUITES, *listed, ci=False)
    found = [line.partition("::")[2] for line in shown.splitlines() if "::" in line]
    assert code == 0
    assert (len(found), set(found)) == (len(names), names)


@pytest.mark.parametrize("arguments", [[], ["--suite", "tests"]])
def test_a_suite_that_does_not_exist_is_refused(
    project: Project, arguments: list[str]
) -> None:
    misspelt = SUITES.replace('"system"', '"sytem"')
    code, shown = project.run(misspelt, *arguments, ci=False)
    assert code != 0
    assert """takes "tests" or "system", not 'sytem'""" in shown
