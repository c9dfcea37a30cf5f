"""A job runs where nobody can read what it would print."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import asyncio, sys
sys.stdout.close()
import aiomailbox as am

async def main():
    env = am.StreamExecutionEnvironment()
    return await env.from_collection([1, 2]).map(lambda one: one + 1).collect()

assert asyncio.run(main()) == [2, 3]
sys.stdout = None
"""


def test_a_job_runs_with_stdout_closed() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert ended.returncode == 0, ended.stderr
