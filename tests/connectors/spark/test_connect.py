"""Spark Connect: what works on a classic session works with a server too.

The server is a real one, which Spark starts in a process of its own; a classic session and
one of Connect cannot be in one process, so each test is a program of its own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiomailbox.connectors.spark.session import ensure_java

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        importlib.util.find_spec("grpc") is None, reason="needs the extra 'connect'"
    ),
]

PROGRAM = Path(__file__).with_name("connect_program.py")


def test_connect_does_what_the_classic_session_does(tmp_path: Path) -> None:
    """One server for all of it: starting one takes longer than all the rest."""
    ensure_java()
    environment = {
        **os.environ,
        "PYTHONWARNINGS": "ignore",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "America/New_York",
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]
    assert done.stdout.count("ok: ") == 15, done.stdout
    assert "Spark's executors do not reach this program" in done.stderr
