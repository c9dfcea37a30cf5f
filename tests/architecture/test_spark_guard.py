"""No test is left out unnoticed: each is in one suite, and in CI those of Spark run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def run(
    folder: Path, source: str, *, ci: bool, arguments: list[str]
) -> tuple[int, str]:
    (folder / "tests").mkdir(exist_ok=True)
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "tests" / "test_it.py").write_text("import pytest\n" + source)
    environ = {**os.environ, "CI": "true" if ci else "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests", *arguments],
        capture_output=True,
        cwd=folder,
        env=environ,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


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
    tmp_path: Path, source: str, arguments: list[str], line: str
) -> None:
    code, shown = run(tmp_path, source, ci=True, arguments=arguments)
    assert code != 0
    assert line in shown.splitlines()


def test_outside_ci_one_may_be_left_out(tmp_path: Path) -> None:
    code, _ = run(tmp_path, RUNS + SKIPS, ci=False, arguments=[])
    assert code == 0


def test_running_all_of_them_is_fine_and_counted(tmp_path: Path) -> None:
    code, shown = run(tmp_path, RUNS + ORDINARY_SKIP, ci=True, arguments=[])
    assert code == 0
    assert "spark tests: 1 run, 0 skipped, 0 deselected" in shown.splitlines()


SPARK_TESTS = """
import os
from pathlib import Path

import pytest

@pytest.mark.spark
@pytest.mark.parametrize("number", range(10))
def test_it_is_here(number):
    Path(__file__).with_name(f"{os.getpid()}-{number}-{Path(__file__).stem}").touch()
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
def test_two_workers_run_all_of_them_in_the_same_process(
    tmp_path: Path, distribution: str, ends_well: bool, processes: int
) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_more.py").write_text(SPARK_TESTS)
    for number in range(4):
        (tests / f"test_ordinary_{number}.py").write_text(ORDINARY_TESTS)
    code, shown = run(
        tmp_path,
        SPARK_TESTS,
        ci=True,
        arguments=["-n", "2", "--dist", distribution],
    )
    assert (code == 0) == ends_well, shown
    assert "spark tests: 20 run, 0 skipped, 0 deselected" in shown.splitlines()
    assert ("spark tests ran on 2 workers" in shown) != ends_well
    marks = [path.name.split("-") for path in tests.glob("*-*-*")]
    assert len({pid for pid, _, _ in marks}) == processes
    assert len(marks) == 20 * processes


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
    tmp_path: Path, suite: str, names: set[str]
) -> None:
    listed = ["--collect-only", "-q", "--suite", suite]
    code, shown = run(tmp_path, SUITES, ci=False, arguments=listed)
    found = [line.partition("::")[2] for line in shown.splitlines() if "::" in line]
    assert code == 0
    assert (len(found), set(found)) == (len(names), names)


@pytest.mark.parametrize("arguments", [[], ["--suite", "tests"]])
def test_a_suite_that_does_not_exist_is_refused(
    tmp_path: Path, arguments: list[str]
) -> None:
    misspelt = SUITES.replace('"system"', '"sytem"')
    code, shown = run(tmp_path, misspelt, ci=False, arguments=arguments)
    assert code != 0
    assert """takes "tests" or "system", not 'sytem'""" in shown
