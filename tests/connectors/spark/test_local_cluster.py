"""A pipeline inside Spark where executors are processes of their own, and workers die."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiomailbox.connectors.spark import ensure_java

pytestmark = [pytest.mark.local_cluster, pytest.mark.timeout(590)]

PROGRAM = Path(__file__).with_name("local_cluster_program.py")


def test_workers_that_are_killed_change_nothing(tmp_path: Path) -> None:
    ensure_java()
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert done.stdout.endswith("ok\n")
