"""A query and a pipeline that die together, at the worst moments: each row once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.connectors.spark.stream_program import DIED, MOMENTS, stream

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).with_name("stream_program.py")
# A file is a micro-batch, and a checkpoint finishes at most one: at the last death, as at
# those before, more are left than checkpoints are needed to come to it.
FILES, ROWS = 9, 100


def run(place: Path, moment: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(place), moment],
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == DIED, done.stderr[-4000:]


async def test_each_row_comes_once_after_deaths_at_the_worst_moments(
    spark: Any, tmp_path: Path
) -> None:
    arrivals = tmp_path / "arrivals"
    arrivals.mkdir()
    for file in range(FILES):
        ids = list(range(file * ROWS, (file + 1) * ROWS))
        pq.write_table(pa.table({"id": ids}), arrivals / f"{file:03d}.parquet")
    for moment in MOMENTS:
        run(tmp_path, moment)
    await stream(spark, tmp_path)
    found = ds.dataset(tmp_path / "results").to_table().column("id").to_pylist()
    assert sorted(found) == list(range(FILES * ROWS))
