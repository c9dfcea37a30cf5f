"""Runs pytest over small projects, each in a fork of one process that has loaded it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forks import ROOT, Forks


class Pytests:
    """The process that is forked."""

    def __init__(self, forks: Forks) -> None:
        self._forks = forks

    def run(self, folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run pytest there, as ``python -m pytest`` does; return its code and text."""
        done = self._forks.run(folder, str(folder), arguments, environment)
        return done.code, done.printed + done.log


@pytest.fixture(scope="module")
def pytests() -> Iterator[Pytests]:
    """Give what runs pytest over small projects."""
    with Forks("tests.pytests") as forks:
        yield Pytests(forks)


def fork(folder: str, arguments: list[str], environment: dict[str, str]) -> None:
    """Run pytest in a fork."""
    os.environ.update(environment)
    sys.path[0] = folder
    sys.exit(pytest.main(["-p", "no:cacheprovider", *arguments]))


def load() -> None:
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
