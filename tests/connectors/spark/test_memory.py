"""However many rows a DataFrame has, the process that reads it stays as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiomailbox.connectors.spark.session import ensure_java

PROGRAM = Path(__file__).with_name("memory_program.py")
pytestmark = [pytest.mark.spark_memory, pytest.mark.timeout(590)]


@pytest.mark.parametrize(
    ("rows", "partitions", "records", "read", "growth_max_mib"),
    [
        (20_000_000, 40, "namedtuple", "iterate", 300),
        (20_000_000, 40, "batch", "iterate", 300),
        (20_000_000, 40, "batch", "push", 100),
        # The driver holds no partition, and so none is too large.
        (10_000_000, 1, "batch", "push", 100),
    ],
)
def test_many_rows_fit_through(
    rows: int, partitions: int, records: str, read: str, growth_max_mib: int
) -> None:
    ensure_java()
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(rows), str(partitions), records, read],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    print(done.stdout)
    assert int(done.stdout.splitlines()[-1]) <= growth_max_mib
