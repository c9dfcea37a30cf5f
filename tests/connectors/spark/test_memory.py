"""However many rows a DataFrame has, the process that reads it stays as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiomailbox.connectors.spark.session import ensure_java

PROGRAM = Path(__file__).with_name("memory_program.py")
GROWTH_MAX_MIB = 300


@pytest.mark.spark_memory
@pytest.mark.timeout(590)
@pytest.mark.parametrize("records", ["namedtuple", "batch"])
def test_twenty_million_rows_fit_through(records: str) -> None:
    ensure_java()
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "20000000", records],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    print(done.stdout)
    assert int(done.stdout.splitlines()[-1]) <= GROWTH_MAX_MIB
