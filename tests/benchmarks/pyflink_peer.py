"""PyFlink beside us, in an interpreter of its own: its pins suit no other packages.

Which one: ``--pyflink-python``, or the environment variable `VARIABLE`, or this one if
PyFlink is installed in it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VARIABLE = "AIOMAILBOX_PYFLINK_PYTHON"
NAME = "PyFlink, in threads"
_PROGRAM = Path(__file__).with_name("pyflink_program.py")


def interpreter_of(chosen: str | None) -> str | None:
    """Return the interpreter that has PyFlink, or None if there is none."""
    found = chosen or os.environ.get(VARIABLE)
    if found is None and importlib.util.find_spec("pyflink") is not None:
        found = sys.executable
    return found


def rows(
    interpreter: str, query: str, events: Sequence[Any], late_ms: int
) -> list[tuple[Any, ...]]:
    """Run a query, and return its results."""
    return [tuple(row) for row in _run(interpreter, query, events, 0, late_ms)]


def seconds(
    interpreter: str, query: str, events: Sequence[Any], rounds: int, late_ms: int
) -> tuple[float, int]:
    """Run a query, and return the median of the seconds, and how many results it had.

    The clock runs from the first event to the end of the last operator, and a round
    before warms the JVM up: no start of anything is in it.
    """
    times = _run(interpreter, query, events, rounds, late_ms)
    return statistics.median(took for took, _ in times), times[0][1]


def _run(
    interpreter: str, query: str, events: Sequence[Any], rounds: int, late_ms: int
) -> Any:
    with _file_of(events) as path:
        done = subprocess.run(
            [interpreter, str(_PROGRAM), str(path), query, str(rounds), str(late_ms)],
            capture_output=True,
            text=True,
            check=False,
            # PyFlink starts a second interpreter by its name.
            env=os.environ
            | {"PATH": f"{Path(interpreter).parent}{os.pathsep}{os.environ['PATH']}"},
        )
    if done.returncode:
        raise RuntimeError(f"PyFlink failed in {query}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def _file_of(events: Sequence[Any]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nexmark-") as folder:
        path = Path(folder, "events.json")
        path.write_text(
            json.dumps([[type(one).__name__.lower(), *one] for one in events]),
            encoding="utf-8",
        )
        yield path
