"""Kills jobs at every file operation of their commit, and looks what readers see then.

A program of its own, for `test_parquet_commit`: a process with threads must not fork.
Prints one line of JSON for each crash.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import aiomailbox as am
from aiomailbox.storage.local import Disk, ExchangeNotSupportedError

FILE_EVENTS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir"}
FINISHED, CRASHED = 0, 77


class Crash:
    """Ends the process before the n-th operation on files below a directory."""

    def __init__(self, below: Path, number: int) -> None:
        self.below = str(below)
        self.left = number
        self.lock = threading.Lock()

    def on_operation(self) -> None:
        with self.lock:
            self.left -= 1
            if self.left <= 0:
                os._exit(CRASHED)

    def on_audit_event(self, event: str, args: Any) -> None:
        is_change = event in FILE_EVENTS or (
            event == "open" and isinstance(args[2], int) and args[2] & os.O_CREAT
        )
        if is_change and str(args[0]).startswith(self.below):
            self.on_operation()


def write(target: Path, rows: int, mode: str) -> None:
    """Run a job that writes so many rows, four into each file."""
    env = am.StreamExecutionEnvironment()
    records = env.from_collection([{"of": rows, "n": n} for n in range(rows)])
    records.sink_to(am.ParquetSink(target, mode=mode, rows_per_file=4))  # type: ignore[arg-type]
    am.run(env.execute("write"))


def in_child(work: Callable[[], None]) -> int:
    """Fork, work, and return the child's exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = FINISHED
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def crashing(below: Path, number: int, target: Path, mode: str, *, swaps: bool) -> None:
    """Write, and die on the way."""
    crash = Crash(below, number)
    exchange, sync = Disk.exchange, Disk.sync

    def counted_exchange(self: Disk, one: Path, other: Path) -> None:
        crash.on_operation()
        if not swaps:
            raise ExchangeNotSupportedError("as told")
        exchange(self, one, other)

    def counted_sync(self: Disk, path: Path) -> None:
        crash.on_operation()
        sync(self, path)

    Disk.exchange, Disk.sync = counted_exchange, counted_sync  # type: ignore[method-assign]
    sys.addaudithook(crash.on_audit_event)
    write(target, 10, mode)


def seen(target: Path) -> str:
    """Return what a reader finds."""
    if not target.exists():
        return "nothing"
    rows = pq.read_table(target, use_threads=False).to_pylist()
    names = {(row["of"], row["n"]) for row in rows}
    of = len(rows)
    is_whole = names == {(of, n) for n in range(of)} and (target / "_SUCCESS").exists()
    return {6: "old", 10: "new"}.get(of, "part") if is_whole else "part"


def try_all(place: Path, mode: str, *, has_old: bool, swaps: bool) -> None:
    """Crash at the first operation, the second, … until the job finishes."""
    # Also loads here, once, what all children need.
    write(place / "old", 6, "error")
    number, code = 0, CRASHED
    while code == CRASHED:
        number += 1
        below = place / str(number)
        target = below / "data" / "out"
        target.parent.mkdir(parents=True)
        if has_old:
            shutil.copytree(place / "old", target)
        code = in_child(
            lambda: crashing(below, number, target, mode, swaps=swaps)  # noqa: B023 -- called at once
        )
        then = seen(target)
        if mode == "error" and then == "new":
            # Whoever writes there again is refused: what is there is whole.
            next_code, finally_seen = FINISHED, "new"
            left: list[str] = []
        else:
            next_code = in_child(lambda: write(target, 10, mode))  # noqa: B023 -- called at once
            finally_seen = seen(target)
            left = sorted(set(os.listdir(target.parent)) - {"out"})
        result = [number, code, then, next_code, finally_seen, left]
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    place, mode = Path(sys.argv[1]), sys.argv[2]
    try_all(place, mode, has_old="old" in sys.argv, swaps="swaps" in sys.argv)
