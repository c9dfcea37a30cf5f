"""What pyarrow and RocksDB import late is imported before a job needs its loop."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from aiomailbox.columnar import encode

pytestmark = pytest.mark.real_time

_PROGRAM = """
import asyncio, sys, threading
import aiomailbox as am

class Finder:
    found = []
    def find_spec(self, name, path=None, target=None):
        if name in {"pandas", "rocksdict"}:
            is_main = threading.current_thread() is threading.main_thread()
            self.found.append((name, is_main, phase))

sys.meta_path.insert(0, Finder())
phase = "written"

async def main():
    global phase
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([{"key": "a", "n": 1}] * 10)
    BUILD
    phase = "running"
    await stream.collect()

asyncio.run(main())
print("pandas" in sys.modules, "rocksdict" in sys.modules, Finder.found)
"""


@pytest.fixture
def found_by(run_program: Callable[..., Any]) -> Callable[[str], str]:
    """Give what says which of them a program imports, where and when."""

    def run(build: str) -> str:
        ended = run_program(_PROGRAM.replace("BUILD", build))
        assert not ended.code, ended.log
        return str(ended.printed).strip()

    return run


@pytest.mark.parametrize(
    "build",
    [
        'import pyarrow.compute as pc; stream = stream.select(twice=pc.field("n"))',
        "stream = stream.map_batches(lambda batch: batch)",
    ],
)
def test_pandas_is_imported_in_a_thread(
    build: str, found_by: Callable[[str], str]
) -> None:
    assert found_by(build) == "True False [('pandas', False, 'running')]"


def test_rocksdb_is_imported_where_it_is_chosen(
    found_by: Callable[[str], str],
) -> None:
    build = (
        "env = env.configure(state_backend=am.RocksDBStateBackend());"
        "stream = env.from_collection([1, 2]).key_by(str).reduce(max)"
    )
    assert found_by(build) == "False True [('rocksdict', True, 'written')]"


async def test_who_comes_while_it_is_being_imported_waits_for_it_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A module is in `sys.modules` before its import has ended."""
    pandas = importlib.import_module("pandas")
    monkeypatch.setattr(encode, "_is_warm", threading.Event())
    assert sys.modules["pandas"] is pandas
    both = encode.warmed(), encode.warmed()
    for one in both:
        assert one is not None
        await one
    assert encode.warmed() is None
