"""Where CI is set, no test that needs Spark may be left out unnoticed."""

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
ORDINARY = "def test_ordinary(): pass\n"
ORDINARY_SKIP = "def test_ordinary(): pytest.skip('a reason')\n"
MODULE_SKIP = "pytest.importorskip('a_package_that_is_not_there')\n"


def run(
    folder: Path, source: str, *, ci: bool, arguments: list[str]
) -> tuple[int, str]:
    (folder / "tests").mkdir()
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
    return done.returncode, done.stdout


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
    ],
    ids=["skipped", "skipped in setup", "deselected", "skipped module"],
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
