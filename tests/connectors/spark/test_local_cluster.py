"""A pipeline inside Spark where executors are processes of their own, and workers die."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiomailbox.connectors.spark.session import ensure_java
from tests.connectors.spark.test_library import bare_packages

pytestmark = pytest.mark.timeout(590)

HERE = Path(__file__).parent


def run_program(name: str, *arguments: Path | str, cwd: Path) -> None:
    """Run a program of this directory, which says "ok" in the end."""
    ensure_java()
    done = subprocess.run(
        [sys.executable, str(HERE / name), *map(str, arguments)],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert done.stdout.endswith("ok\n")


@pytest.mark.local_cluster
def test_workers_that_are_killed_change_nothing(tmp_path: Path) -> None:
    run_program("local_cluster_program.py", tmp_path, cwd=Path.cwd())


@pytest.mark.local_cluster
def test_workers_that_lack_the_library_say_so_and_get_it(tmp_path: Path) -> None:
    python = tmp_path / "python"
    packages = bare_packages(tmp_path)
    # Spark's own places are in there; ours may be, too.
    places = f'$(echo ":$PYTHONPATH" | sed "s#:{HERE.parents[2]}##g"):{packages}'
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{places}" exec {sys.executable} -S "$@"\n'
    )
    python.chmod(0o755)
    run_program("bare_workers_program.py", python, cwd=tmp_path)


def test_rows_that_killed_workers_sent_come_once(tmp_path: Path) -> None:
    run_program("push_program.py", tmp_path, "local", cwd=Path.cwd())


@pytest.mark.local_cluster
def test_rows_of_killed_executors_and_copied_tasks_come_once(tmp_path: Path) -> None:
    run_program("push_program.py", tmp_path, "cluster", cwd=Path.cwd())
