"""How the files of sinks are named, found again and told apart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from aiomailbox.connectors.directory import (
    DirectoryTarget,
    Segments,
    SegmentWriter,
    former_token_of,
    token_of,
)
from aiomailbox.operators.sinks.sink import CommitterContext


class Writer(SegmentWriter):
    def write_run(self, run: Any) -> None: ...

    def flush(self, *, end_of_input: bool) -> None: ...

    def _abandon(self) -> None: ...


def whose(execution_id: str = "1" * 16, **facts: Any) -> CommitterContext:
    facts = {"job_id": "job", "operator_id": "out", "lineage": "place", **facts}
    return CommitterContext("job", execution_id, "sink", None, **facts)


def test_a_writer_counts_on_from_the_largest_number_of_those_it_stands_for(
    tmp_path: Path,
) -> None:
    segments = Segments(tmp_path, "part-0", ".txt")
    writer = Writer(segments)
    writer.restore([3, 7, 5])
    assert [segments.begin().name for _ in range(2)] == [
        "part-0-00007.txt",
        "part-0-00008.txt",
    ]
    assert writer.snapshot() == [9]


def test_finished_files_are_told_once_and_hold_nothing_open(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "token", "part-0", ".txt")
    (tmp_path / "token").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for folder in ("", "day=1", "day=1"):
        path = segments.begin(folder)
        path.touch()
        segments.finish(path)
    assert len(os.listdir("/proc/self/fd")) == before
    assert segments.take_finished() == [
        "token/part-0-00000.txt",
        "token/day=1/part-0-00001.txt",
        "token/day=1/part-0-00002.txt",
    ]
    assert segments.take_finished() == []


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("is_resumable", [True, False])
def test_executions_share_files_only_if_one_goes_on_from_the_other(
    commits: bool, is_resumable: bool
) -> None:
    facts = {"commits_at_checkpoints": commits, "is_resumable": is_resumable}
    goes_on = commits and is_resumable
    one, next_one = whose(**facts), whose("2" * 16, **facts)
    assert (token_of(one) == token_of(next_one)) is goes_on
    assert bool(former_token_of(one)) is goes_on
    for other in ({"job_id": "b"}, {"operator_id": "b"}, {"lineage": "b"}):
        differs = token_of(whose(**{**facts, **other})) != token_of(one)
        assert differs is goes_on
    without = whose(**facts, lineage="")
    assert former_token_of(one) == (token_of(without) if goes_on else "")


def test_of_one_job_each_execution_that_appends_writes_files_of_its_own(
    tmp_path: Path,
) -> None:
    class Context(CommitterContext):
        subtask_index, attempt, log = 1, 2, None

    def name(mode: Any, execution_id: str) -> str:
        context: Any = Context(
            "job",
            execution_id,
            "sink",
            None,
            "out",
            "job",
            commits_at_checkpoints=True,
            is_resumable=True,
        )
        return DirectoryTarget.of(tmp_path, mode).segments(context, ".x").begin().name

    assert name("append", "a" * 16) != name("append", "b" * 16)
    assert name("error", "a" * 16) == name("error", "b" * 16)
