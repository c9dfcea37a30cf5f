"""What a worker has loaded when its job begins, and what it frees the collector of."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[3]

# Of a program of its own: what a parent has loaded, a job may need in its workers.
PROGRAM = """
import aiomailbox as am

def looked_at(number):
    import gc
    import sys

    # Installed here, and of no use to a job that names none of them.
    unwanted = ("rich", "matplotlib", "pandas", "pyarrow", "pyspark")
    before = [name for name in unwanted if name in sys.modules]
    from rich.console import Console
    return before, Console.__name__, gc.get_freeze_count() > 0

env = am.StreamExecutionEnvironment(parallelism=2)
env.configure(deployment=am.Processes(2))
print(am.run(env.from_collection(range(2)).map(looked_at).collect()))
"""


def test_a_worker_loads_nothing_that_the_job_does_not_need() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM]
    printed = subprocess.check_output(command, env=environment, text=True)
    assert printed.strip() == str([([], "Console", True)] * 2)
