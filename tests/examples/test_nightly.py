"""The job that nox runs, run by nox."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project: whoever runs it leaves results and caches beside it."""
    return Path(shutil.copytree(ROOT / "examples" / "nightly", tmp_path / "nightly"))


def nox(
    project: Path, session: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-m", "nox", "--no-venv", "-s", session, *arguments],
        cwd=project,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_nox_runs_the_job_of_the_night(project: Path) -> None:
    done = nox(project, "nightly", "--", "orders.csv", "out/totals")
    assert done.returncode == 0, done.stderr
    found = [
        json.loads(line)
        for path in sorted((project / "out" / "totals").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert {row["customer"]: row["total"] for row in found} == {"ann": 33.0, "bob": 5.5}


def test_nox_fails_where_the_job_fails(project: Path) -> None:
    (project / "orders.csv").write_text("customer,amount\nann,much\n")
    done = nox(project, "nightly", "--", "orders.csv", "out/totals")
    assert done.returncode == 1
    assert "orders.csv" in done.stderr + done.stdout
    assert not (project / "out" / "totals").exists()


def test_nox_checks_the_job_on_virtual_time_and_explains_it(project: Path) -> None:
    done = nox(project, "check")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "1 passed" in done.stdout
    assert "holds at most 128 records" in done.stdout
