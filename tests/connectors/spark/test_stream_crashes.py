"""A query and a pipeline that die together, at the worst moments: each row once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from aiomailbox.connectors.spark.session import ensure_java
from tests.connectors.spark.stream_program import DIED

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).with_name("stream_program.py")
# A file is a micro-batch, and a checkpoint finishes at most one: at the last death, as at
# those before, more are left than checkpoints are needed to come to it.
FILES, ROWS = 9, 100


def run(place: Path, moment: str) -> int:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(place), moment],
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode in {0, DIED}, done.stderr[-4000:]
    return done.returncode


def test_each_row_comes_once_after_deaths_at_the_worst_moments(tmp_path: Path) -> None:
    ensure_java()
    arrivals = tmp_path / "arrivals"
    arrivals.mkdir()
    for file in range(FILES):
        ids = list(range(file * ROWS, (file + 1) * ROWS))
        pq.write_table(pa.table({"id": ids}), arrivals / f"{file:03d}.parquet")
    died = [
        run(tmp_path, each) for each in ("in_batch", "before_done", "before_commit")
    ]
    assert died == [DIED] * 3
    assert run(tmp_path, "never") == 0
    found = ds.dataset(tmp_path / "results").to_table().column("id").to_pylist()
    assert sorted(found) == list(range(FILES * ROWS))
