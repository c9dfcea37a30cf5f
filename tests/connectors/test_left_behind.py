"""What attempts of some writers left that are over is removed; others go on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.connectors.directory import DirectoryTarget

pytestmark = pytest.mark.real_time


def contexts(**facts: Any) -> tuple[Any, Any]:
    """A committer's context, and a function that makes those of writers."""
    common = {
        "job_name": "job",
        "job_id": "job",
        "operator_id": "sink",
        "operator_name": "sink",
        "uid": "sink",
        "execution_id": "ab" * 16,
        "commits_at_checkpoints": True,
        "is_resumable": True,
        "lineage": "the directory",
        **facts,
    }

    def writer(subtask: int, attempt: int) -> Any:
        return SimpleNamespace(
            **common, subtask_index=subtask, attempt=attempt, random=None
        )

    return SimpleNamespace(**common), writer


async def test_files_of_attempts_that_are_over(tmp_path: Path) -> None:
    target = DirectoryTarget.of(tmp_path / "out", "error")
    context, writer = contexts()
    committer = target.create_committer(context)
    await committer.begin(restored=False)
    for subtask in (0, 1):
        for attempt in (3, 5):
            segments = target.segments(writer(subtask, attempt), ".txt")
            segments.begin().write_text("row")
            segments.begin("day=1").write_text("row")
    await committer.recover_writers({1}, 5)
    left = sorted(one.name.split("-")[1::2] for one in tmp_path.rglob("part-*"))
    assert left == [
        [f"{s:05d}", str(a)] for s, a in ((0, 3), (0, 5), (1, 5)) for _ in "ab"
    ]


async def test_rows_of_attempts_that_are_over(tmp_path: Path) -> None:
    database = tmp_path / "rows.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE numbers (value INTEGER)")
    sink = am.SqlSink(str(database), "numbers")
    context, writer = contexts()
    committer = sink.create_committer(context)
    await committer.begin(restored=False)
    for subtask in (0, 1):
        for attempt in (3, 5):
            made = sink.create_writer(writer(subtask, attempt))
            await _finish(made.write_run(am.ListRun([{"value": 1}])))
            await _finish(made.flush(end_of_input=False))
            await _finish(made.close())
    await committer.recover_writers({1}, 5)
    staged = await committer._database.writers(committer._token)
    assert sorted(one.rsplit("-", 2)[1:] for one in staged) == [
        ["3", "0"],
        ["5", "0"],
        ["5", "1"],
    ]
    await committer.end(succeeded=False)


async def _finish(pending: Any) -> None:
    if pending is not None:
        await pending
