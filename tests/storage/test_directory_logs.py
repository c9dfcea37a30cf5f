"""The logs of a directory outlast a program that dies at any of their operations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from aiomailbox.storage import CommitLog, DirectoryLog, Disk, SparkLog
from tests.storage.disks import Died, ScriptedDisk

NewLog = Callable[[Path, Disk], DirectoryLog]

LOGS: dict[str, NewLog] = {
    "follow": lambda _, disk: CommitLog("keep", disk),
    "spark": SparkLog,
}


def told(directory: Path) -> list[str]:
    """Return the files that readers of either log see, one commit after the other."""
    commits = sorted((directory / "_aiomailbox" / "commits").glob("*.json"))
    if commits:
        found = [msgspec.json.decode(one.read_bytes())["files"] for one in commits]
        return [name for names in found for name in names]
    lines = (directory / "_spark_metadata" / "0").read_bytes().splitlines()[1:]
    return [msgspec.json.decode(line)["path"].rpartition("/")[2] for line in lines]


@pytest.mark.parametrize("new_log", LOGS.values(), ids=LOGS)
@pytest.mark.parametrize("dies_at", [1, 2, 3, 4])
def test_a_commit_that_a_death_cut_off_is_told_once_by_the_next_program(
    tmp_path: Path, new_log: NewLog, dies_at: int
) -> None:
    log = new_log(tmp_path, Disk())
    log.create(tmp_path)
    for name in "abc":
        (tmp_path / name).touch()
    log.append(tmp_path, 1, ["a"])
    dying = ScriptedDisk(dies_at)
    if dies_at < 4:
        with pytest.raises(Died):
            new_log(tmp_path, dying).append(tmp_path, 2, ["b"])
    else:
        new_log(tmp_path, dying).append(tmp_path, 2, ["b"])
        assert len(dying.calls) == 3
    again = new_log(tmp_path, Disk())
    again.check(tmp_path)
    again.append(tmp_path, 2, ["b"])
    again.append(tmp_path, 3, ["c"])
    assert told(tmp_path) == ["a", "b", "c"]
