"""Programs for processes of their own, what tests ask of them, and what these wait for."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import aiomailbox as am
from aiomailbox.connectors.collection import CollectionSource, RangeSplit
from aiomailbox.operators.sources.source import SplitReader
from aiomailbox.records.run import ListRun

ROOT = Path(__file__).parents[3]

# Without ``if __name__ == "__main__"``: a worker that imported it would start a job.
SCRIPT = """
from dataclasses import dataclass
import aiomailbox as am

print("loaded", flush=True)

@dataclass
class Pair:
    key: int
    value: int

def square(number):
    return Pair(number % 3, number * number)

def endless():
    number = 0
    while True:
        yield number
        number += 1

env = am.StreamExecutionEnvironment(parallelism=2)
env.configure(deployment=am.Processes(2))
# What it says is looked at, and on a busy machine anything may hold a loop.
env.configure(stall_threshold=None)
"""
ENDLESS = """
import sys
squares = env.from_collection(endless()).rebalance().map(square)
def show(value):
    if value < 2:
        print("running", flush=True)
squares.map(lambda pair: pair.value).sink_to(show)
am.run(env.execute())
"""


class Held(CollectionSource):
    """Numbers from 0: the last of each part come when a file is there.

    So a job goes on until a test has seen what it waits for, however fast either is.
    The task of the source is not held: checkpoints complete meanwhile.

    Args:
        count: How many numbers.
        gate: The file; the test makes it.
        held: How many of each part wait.
    """

    def __init__(self, count: int, gate: Path, held: int) -> None:
        super().__init__(range(count))
        self._gate = gate
        self._held = held

    def create_reader(self, context: Any) -> Any:
        return _HeldReader(self._gate, self._held)


class _HeldReader(SplitReader[RangeSplit]):
    def __init__(self, gate: Path, held: int) -> None:
        super().__init__(available=True)
        self._gate = gate
        self._held = held

    def poll_next(self, output: Any) -> am.InputStatus:
        if not self._splits:
            return self._nothing()
        split = self._splits[0]
        assert split.stop is not None
        is_open = self._gate.exists()
        end = split.stop if is_open else split.stop - self._held
        stop = min(end, split.position + output.records_max)
        if split.position < stop:
            run = ListRun(list(range(split.position, stop)))
            output.for_split(split.split_id).emit_run(run)
            self._splits[0] = replace(split, position=stop)
            return am.InputStatus.MORE_AVAILABLE
        if is_open:
            return self._finish_split(output)
        self.availability.reset()
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, self.availability.set_available)
        return am.InputStatus.NOTHING_AVAILABLE


class Program(subprocess.Popen[str]):
    """A program; a ``with`` block that fails does not wait for its end."""

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            # Stopped or not; its workers go with it.
            self.kill()
        super().__exit__(kind, *rest)


def start(
    directory: Path,
    text: str,
    *arguments: str,
    cwd: Path | None = None,
    stdin: bool = False,
) -> Program:
    """Start a program that is written into a directory."""
    script = directory / "program.py"
    script.write_text(text)
    return Program(
        [sys.executable, *arguments, str(script)],
        stdin=subprocess.PIPE if stdin else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd or directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def wait_until(what: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def expect(program: subprocess.Popen[str], line: str) -> None:
    """Wait until a program has printed a line."""
    assert program.stdout is not None
    for found in program.stdout:
        # Several workers may write at once.
        if line in found:
            return
    assert program.stderr is not None
    pytest.fail(program.stderr.read())


def workers_of(program: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the worker processes of a program."""
    return [
        process
        for process in psutil.Process(program.pid).children()
        if any("processes.worker" in part for part in process.cmdline())
    ]


def is_alive(process: psutil.Process) -> bool:
    """Say whether a process runs, or could."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
