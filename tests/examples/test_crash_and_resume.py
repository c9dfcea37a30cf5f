"""The example that kills itself: run as a program, with few flights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "crash_and_resume.py"

pytestmark = pytest.mark.spark


def test_it_ends_with_the_same_rows_and_repeats_no_finished_call() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--flights", "1000"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[-1] == "equal"
    assert lines[0] == "left alone: 1,000 flights, 1,000 calls"
    assert sum("killed itself" in line for line in lines) == 2
    assert "finished calls that were repeated: 0" in lines
