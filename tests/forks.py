"""Runs a function of a module again and again, each time in a fork of one process.

To start Python, and import what a program needs, takes longer than all else that a small
one does. A fork is a process like any other: it has a main thread, handles signals, is
killed, and ends as every program does.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]


class Done(NamedTuple):
    """How a fork ended: its exit code, or minus its signal, and what it said."""

    code: int
    printed: str
    log: str


class Forks:
    """The process that is forked; a ``with`` block ends it.

    Args:
        module: Its function ``load`` runs once, without a thread; ``fork`` in each fork.
    """

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forks", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def run(self, folder: Path, *given: Any) -> Done:
        """Run the function in a folder, with what JSON can hold."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(folder), given]) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return Done(code, *((folder / name).read_text("utf-8") for name in SAID))

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


# A fork that hangs ends before its test does: otherwise the next test would get its answer.
ENDS_AFTER_S = 110

# Where a fork's standard output and errors go, in its folder.
SAID = ("printed", "log")


def main(name: str) -> None:
    """Fork for each line of the standard input, and answer it with the exit code."""
    module = importlib.import_module(name)
    module.load()
    for line in sys.stdin:
        folder, given = json.loads(line)
        child = os.fork()
        if not child:
            signal.alarm(ENDS_AFTER_S)
            os.chdir(folder)
            for number, said in enumerate(SAID, 1):
                os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
            # And then the program is over, in its ordinary way.
            return module.fork(*given)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


if __name__ == "__main__":
    main(sys.argv[1])
