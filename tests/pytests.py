"""Runs pytest over small projects, each in a fork of one process that has loaded it.

To start Python, and import pytest with its plugins, takes longer than all else.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


class Pytests:
    """The process that is forked."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.pytests"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def run(self, folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run pytest there, as ``python -m pytest`` does; return its code and text."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = json.dumps([str(folder), arguments, environment])
        self._process.stdin.write(asked + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return code, (folder / "said").read_text("utf-8")

    def close(self) -> None:
        """End it."""
        self._process.communicate()


@pytest.fixture(scope="module")
def pytests() -> Iterator[Pytests]:
    """Give what runs pytest over small projects."""
    made = Pytests()
    yield made
    made.close()


def _forked(folder: str, arguments: list[str], environment: dict[str, str]) -> int:
    """Run pytest in a fork, and return its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 70
    try:
        os.chdir(folder)
        os.environ.update(environment)
        sys.path[0] = folder
        said = os.open("said", os.O_CREAT | os.O_WRONLY)
        os.dup2(said, 1)
        os.dup2(said, 2)
        code = int(pytest.main(["-p", "no:cacheprovider", *arguments]))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _load() -> None:
    """Let pytest import what it does itself: it rewrites none that is there already."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "tests")
        folder.mkdir()
        shutil.copy(ROOT / "pyproject.toml", place)
        shutil.copy(ROOT / "tests" / "conftest.py", folder)
        (folder / "test_loaded.py").write_text("async def test_it(): pass\n")
        before, out = os.getcwd(), os.dup(1)
        os.chdir(place)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        assert pytest.main(["-p", "no:cacheprovider", "tests"]) == 0
        sys.stdout.flush()
        os.dup2(out, 1)
        os.chdir(before)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]


def main() -> None:
    """Answer each project on the standard input with the exit code of its run."""
    _load()
    for line in sys.stdin:
        asked: Any = json.loads(line)
        print(_forked(*asked), flush=True)


if __name__ == "__main__":
    main()
