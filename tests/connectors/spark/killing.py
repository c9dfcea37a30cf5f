"""Kills a program with all it has started, once it has come to a place."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path


async def run_until_killed(program: str, place: Path, *arguments: str) -> None:
    """Run a program of this directory, and kill it with its Java and its workers.

    It says by a file named ``reached`` in its place when that is to be done.
    """
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, str(Path(__file__).with_name(program)), str(place)],
        *arguments,
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "PYTHONWARNINGS": "ignore"},
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not (place / "reached").exists():
            assert process.returncode is None
            await asyncio.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
