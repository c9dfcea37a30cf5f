"""Jobs in real processes, and the check that nothing of them stays."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import aiomailbox as am

# Many times what it may take on an idle machine.
WITHIN_S = 60.0


class Traces:
    """What a job in processes could leave behind on this machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files_before = self._files()

    def workers(self) -> list[psutil.Process]:
        """The worker processes that descend from this one."""
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                if any("processes.worker" in part for part in process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def files(self) -> set[str]:
        """What is there and was not before."""
        return self._files() - self.files_before

    def sockets(self) -> set[str]:
        """The sockets of this process: what is collected meanwhile is no trace."""
        found = set()
        for name in os.listdir("/proc/self/fd"):
            try:
                found.add(os.readlink(f"/proc/self/fd/{name}"))
            except OSError:
                continue
        return {each for each in found if each.startswith("socket:")}

    def check_none(self) -> None:
        """Wait until nothing is left, within a limit."""
        deadline = time.monotonic() + WITHIN_S
        while self.workers() or self.files():
            assert time.monotonic() < deadline, (self.workers(), self.files())
            time.sleep(0.02)

    def _files(self) -> set[str]:
        return {str(path) for path in self.directory.rglob("*")}


@pytest.fixture
def temporary(tmp_path_factory: Any, monkeypatch: Any) -> Iterator[Path]:
    """A directory for temporary files of our own; short, for unix sockets."""
    # Made before the place of temporary files moves.
    tmp_path_factory.getbasetemp()
    directory = Path(tempfile.mkdtemp(prefix="am-", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.setenv("TMPDIR", str(directory))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def traces(temporary: Path) -> Iterator[Traces]:
    found = Traces(temporary)
    yield found
    found.check_none()
    temporary.rmdir()


@pytest.fixture
def env(
    traces: Traces, request: pytest.FixtureRequest
) -> Iterator[am.StreamExecutionEnvironment]:
    """An environment of two subtasks in two processes that leave nothing behind."""
    before = traces.sockets()
    made = am.StreamExecutionEnvironment(parallelism=2, config=am.JobConfig(seed=1))
    made.configure(deployment=am.Processes(2))
    yield made
    # Spark's session keeps connections of its own.
    if request.node.get_closest_marker("spark") is None:
        assert traces.sockets() <= before
