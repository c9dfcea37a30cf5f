"""What becomes of each row, by sink and by what goes wrong: tried, and shown in the docs.

``python -m tests.crash.outcomes`` prints the table of docs/guarantees.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pyarrow.parquet as pq

import aiomailbox as am
from aiomailbox.checkpoint.store import CheckpointStore
from aiomailbox.checkpoint.writer import CheckpointWriter
from aiomailbox.connectors.directory import GrowingCommitter, WholeCommitter
from aiomailbox.connectors.sql.sink import SqlCommitter
from aiomailbox.testing import VirtualTimeLoop

COUNT = 400


class Place(NamedTuple):
    """Where a job writes, and how its rows are read."""

    sink: Any
    read: Callable[[], list[int]]


def parquet(directory: Path) -> Place:
    """A directory of Parquet files."""
    target = directory / "rows"

    def read() -> list[int]:
        return pq.read_table(target)["number"].to_pylist() if target.exists() else []

    return Place(am.ParquetSink(target), read)


def lines(directory: Path) -> Place:
    """A directory of lines."""
    target = directory / "rows"

    def read() -> list[int]:
        texts = [file.read_text() for file in target.glob("*.jsonl")]
        return [json.loads(row)["number"] for text in texts for row in text.split()]

    return Place(am.FileSink(target, "jsonl"), read)


def sql(directory: Path) -> Place:
    """A table of a database."""
    file = directory / "rows.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE numbers (number INTEGER)")

    def read() -> list[int]:
        with closing(sqlite3.connect(file)) as connection, connection:
            return [row[0] for row in connection.execute("SELECT number FROM numbers")]

    return Place(am.SqlSink(file, "numbers"), read)


def function(directory: Path) -> Place:
    """A function that is called for each row."""
    rows: list[int] = []
    return Place(lambda row: rows.append(row["number"]), lambda: rows)


SINKS = {
    "`ParquetSink`": parquet,
    "`FileSink`": lines,
    "`SqlSink`": sql,
    "a function": function,
}


def _once(owner: Any, name: str, *, before: bool) -> Any:
    """Let a method fail once, before or after what it does."""
    method = getattr(owner, name)
    waiting = [True]

    def failing(*args: Any, **settings: Any) -> Any:
        is_late = settings.get("checkpoint_id", 2) != 1
        if before and is_late and waiting:
            waiting.clear()
            raise OSError("the disk is full")
        result = method(*args, **settings)
        if is_late and waiting:
            waiting.clear()
            raise OSError("the disk is full")
        return result

    async def failing_later(*args: Any, **settings: Any) -> Any:
        is_late = settings.get("checkpoint_id", 2) != 1
        if before and is_late and waiting:
            waiting.clear()
            raise OSError("the disk is full")
        await method(*args, **settings)
        if is_late and waiting:
            waiting.clear()
            raise OSError("the disk is full")

    patched = failing_later if asyncio.iscoroutinefunction(method) else failing
    return mock.patch.object(owner, name, patched)


@contextlib.contextmanager
def _committers(*, before: bool) -> Iterator[None]:
    with (
        _once(GrowingCommitter, "commit", before=before),
        _once(WholeCommitter, "commit", before=before),
        _once(SqlCommitter, "commit", before=before),
    ):
        yield


FAILURES: dict[str, Callable[[], Any]] = {
    "nothing": contextlib.nullcontext,
    "a function raises": contextlib.nullcontext,
    "a snapshot cannot be written": lambda: _once(
        CheckpointWriter, "write_task", before=True
    ),
    "the metadata cannot be written": lambda: _once(
        CheckpointStore, "complete", before=True
    ),
    "the commit fails before it begins": lambda: _committers(before=True),
    "the commit fails after its end": lambda: _committers(before=False),
}


class _Stumbling:
    def __init__(self, number: int | None) -> None:
        self.number = number

    async def __call__(self, number: int) -> dict[str, int]:
        if number % 10 == 0:
            await asyncio.sleep(0.01)
        if number == self.number:
            self.number = None
            raise RuntimeError("stumbled")
        return {"number": number}


async def _run(place: Place, failure: str, *, checkpoints: bool) -> None:
    env = am.StreamExecutionEnvironment()
    if checkpoints:
        env.enable_checkpointing(am.seconds(0.05)).configure(
            restart=am.restart.fixed_delay(3)
        )
    stumbles = COUNT * 3 // 4 if failure == "a function raises" else None
    env.from_collection(list(range(COUNT))).map(_Stumbling(stumbles)).sink_to(
        place.sink
    )
    with FAILURES[failure](), contextlib.suppress(am.JobFailedError):
        await env.execute()


def outcome(sink: str, failure: str, *, checkpoints: bool) -> str:
    """Run a job into a sink, let something fail once, and say what became of the rows."""
    with tempfile.TemporaryDirectory() as directory:
        place = SINKS[sink](Path(directory))
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(_run(place, failure, checkpoints=checkpoints))
        found = Counter(place.read())
    if not found:
        return "no row"
    if set(found) != set(range(COUNT)):
        return "the first rows, once" if max(found.values()) == 1 else "some rows"
    return "each row once" if max(found.values()) == 1 else "some rows twice"


def table() -> str:
    """Return the table as Markdown."""
    ways = [("with checkpoints", True), ("without", False)]
    rows = [
        "| sink | what fails | with checkpoints | without |",
        "|---|---|---|---|",
    ]
    for sink in SINKS:
        for failure in FAILURES:
            if sink == "a function" and "commit" in failure:
                continue
            results = [
                "-"
                if not checkpoints and ("snapshot" in failure or "metadata" in failure)
                else outcome(sink, failure, checkpoints=checkpoints)
                for _, checkpoints in ways
            ]
            rows.append(f"| {sink} | {failure} | {' | '.join(results)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
