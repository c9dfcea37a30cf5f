"""The logs of a directory outlast a program that dies at any of their operations."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from aiomailbox.errors import SinkError
from aiomailbox.storage.commit_log import CommitLog, DirectoryLog
from aiomailbox.storage.local import Disk
from aiomailbox.storage.spark_log import SparkLog
from tests.storage.disks import Died, ScriptedDisk

NewLog = Callable[[Path, Disk], DirectoryLog]

LOGS: dict[str, NewLog] = {
    "follow": lambda _, disk: CommitLog("keep", disk),
    "spark": SparkLog,
}


def told(directory: Path) -> list[str]:
    """Return the files that readers of either log see, one commit after the other."""
    return followed(directory) or listed(directory)


def followed(directory: Path) -> list[str]:
    """Return the files that readers who follow the directory have been told of."""
    commits = sorted((directory / "_aiomailbox" / "commits").glob("*.json"))
    found = [msgspec.json.decode(one.read_bytes())["files"] for one in commits]
    return [name for names in found for name in names]


def listed(directory: Path) -> list[str]:
    """Return the files that Spark's own readers see."""
    files = spark_reads(log_files(directory))
    lines = [line for file in files for line in entries(file)]
    return [msgspec.json.decode(line)["path"].rpartition("/")[2] for line in lines]


def entries(file: Path) -> list[bytes]:
    """Return the lines of a file of Spark's log."""
    version, *lines = file.read_bytes().splitlines()
    assert version == b"v1"
    return lines


def log_files(directory: Path) -> dict[int, Path]:
    """Return the files of Spark's log by their numbers."""
    folder = directory / "_spark_metadata"
    return {int(one.stem): one for one in folder.iterdir() if one.suffix != ".part"}


def spark_reads(files: dict[int, Path], default: int = 10) -> list[Path]:
    """Return the files that Spark reads, as CompactibleFileStreamLog chooses them."""
    compact = sorted(one for one in files if files[one].suffix == ".compact")
    interval = default
    if len(compact) > 1:
        interval = compact[-1] - compact[-2]
    elif compact:
        size = compact[0] + 1
        divisors = [one for one in range(default, size // 2 + 1) if size % one == 0]
        interval = [*divisors, size][0]
    last = max(files)
    first = max(0, (last + 1) // interval * interval - 1)
    return [files[number] for number in range(first, last + 1)]


def test_a_commit_writes_its_own_files_into_sparks_log_and_old_ones_go(
    tmp_path: Path,
) -> None:
    log = SparkLog(tmp_path, Disk())
    log.create(tmp_path)
    written = 0
    for number in range(1, 350):
        name = f"{number:03}"
        (tmp_path / name).touch()
        log.append(tmp_path, number, [name])
        # One that is made again, by this program or by the next one.
        log.append(tmp_path, number, [name])
        if number % 50 == 0:
            log = SparkLog(tmp_path, Disk())
            log.check(tmp_path)
            log.append(tmp_path, number, [name])
        files = log_files(tmp_path)
        # Whatever the interval that a reader has as its default.
        (last,) = {
            spark_reads(files, default)[-1] for default in (2, 10, 50, 51, 101, 200)
        }
        written += len(entries(last))
        assert len(files) <= 2 * 101
    assert told(tmp_path) == [f"{number:03}" for number in range(1, 350)]
    # Each once, and all of them when it is compacted, three times.
    assert written == 346 + 101 + 202 + 303
    (tmp_path / "007").unlink()
    (tmp_path / "349").unlink()
    log.take_back(tmp_path)
    log.append(tmp_path, 350, [])
    assert told(tmp_path) == [f"{n:03}" for n in range(1, 349) if n != 7]


def test_a_log_of_one_file_that_has_all_is_gone_on_with(tmp_path: Path) -> None:
    """As Spark itself begins it, and as it was written before there were several."""
    (tmp_path / "_spark_metadata").mkdir()
    for name in "abz":
        (tmp_path / name).touch()
    lines = [
        b'{"path":"%s","size":0,"modificationTime":0}' % path.as_uri().encode()
        for path in (tmp_path / "a", tmp_path / "z")
    ]
    (tmp_path / "_spark_metadata" / "0").write_bytes(b"\n".join([b"v1", *lines]))
    log = SparkLog(tmp_path, Disk())
    log.check(tmp_path)
    log.append(tmp_path, 1, ["a", "b"])
    assert told(tmp_path) == ["a", "z", "b"]


def test_spark_is_told_where_a_file_is_how_large_and_of_when(tmp_path: Path) -> None:
    seen_at = tmp_path / "out"
    directory = tmp_path / "new"
    (directory / "day=1").mkdir(parents=True)
    (directory / "day=1" / "a b").write_text("rows")
    os.utime(directory / "day=1" / "a b", (1234.5, 1234.5))
    log = SparkLog(seen_at)
    log.create(directory)
    log.append(directory, 1, ["day=1/a b"])
    (line,) = entries(spark_reads(log_files(directory))[-1])
    told = msgspec.json.decode(line)
    assert told["path"] == (seen_at / "day=1" / "a b").as_uri()
    assert (told["size"], told["modificationTime"]) == (4, 1_234_500)
    assert (told["isDir"], told["action"]) == (False, "add")


def test_what_a_reader_has_begun_to_read_stays_until_long_after_the_next_commit(
    tmp_path: Path,
) -> None:
    log = SparkLog(tmp_path, Disk())
    log.create(tmp_path)
    begun: list[Path] = []
    for number in range(1, 250):
        (tmp_path / f"{number}").touch()
        begun = spark_reads(log_files(tmp_path))
        log.append(tmp_path, number, [f"{number}"])
        assert [file.name for file in begun if not file.exists()] == []
    assert begun[0].name == "302.compact"


@pytest.mark.parametrize("is_sparks", [True, False])
def test_a_log_that_spark_compacts_or_of_which_a_file_is_gone_is_refused(
    tmp_path: Path, is_sparks: bool
) -> None:
    log = SparkLog(tmp_path, Disk())
    if is_sparks:
        (tmp_path / "_spark_metadata").mkdir()
        for name in [*map(str, range(9)), "9.compact", "10"]:
            (tmp_path / "_spark_metadata" / name).write_bytes(b"v1")
    else:
        log.create(tmp_path)
        for name in "abc":
            (tmp_path / name).touch()
            log.append(tmp_path, ord(name), [name])
        log.check(tmp_path)
        log_files(tmp_path)[102].unlink()
    with pytest.raises(SinkError, match="Spark writes to it"):
        log.check(tmp_path)


@pytest.mark.parametrize("new_log", LOGS.values(), ids=LOGS)
def test_a_file_that_readers_have_passed_and_deleted_is_told_of_to_nobody(
    tmp_path: Path, new_log: NewLog
) -> None:
    log = new_log(tmp_path, Disk())
    log.create(tmp_path)
    (tmp_path / "there").touch()
    log.append(tmp_path, 1, ["gone", "there"])
    log.append(tmp_path, 2, ["gone, too"])
    assert told(tmp_path) == ["there"]


@pytest.mark.parametrize("new_log", LOGS.values(), ids=LOGS)
@pytest.mark.parametrize("goes_on", [False, True])
def test_commits_that_are_made_again_are_told_once_whatever_came_after_them(
    tmp_path: Path, new_log: NewLog, goes_on: bool
) -> None:
    """A restored checkpoint holds several, and readers may have passed some files."""
    log = new_log(tmp_path, Disk())
    log.create(tmp_path)
    commits = [(1, ["a", "b"]), (2, ["c"]), (2, ["d"]), (3, ["e"])]
    for name in "abcde":
        (tmp_path / name).touch()
    for checkpoint_id, names in commits:
        log.append(tmp_path, checkpoint_id, names)
    if not goes_on:
        log = new_log(tmp_path, Disk())
    (tmp_path / "a").unlink()
    for checkpoint_id, names in commits:
        log.append(tmp_path, checkpoint_id, names)
    assert told(tmp_path) == ["a", "b", "c", "d", "e"]


def test_a_commit_whose_files_are_being_deleted_is_known(tmp_path: Path) -> None:
    log = CommitLog("delete")
    log.create(tmp_path)
    for name in "ab":
        (tmp_path / name).touch()
        log.append(tmp_path, ord(name), [name])
    last = max((tmp_path / "_aiomailbox" / "commits").glob("*.json"))
    last.rename(last.with_suffix(".gone"))
    log.append(tmp_path, ord("b"), ["b"])
    assert told(tmp_path) == ["a"]


def test_a_commit_is_taken_back_only_with_all_its_files(tmp_path: Path) -> None:
    log = CommitLog("keep")
    log.create(tmp_path)
    for name in "ab":
        (tmp_path / name).touch()
    log.append(tmp_path, 0, ["a", "b"])
    (tmp_path / "a").unlink()
    log.take_back(tmp_path)
    assert told(tmp_path) == ["a", "b"]
    (tmp_path / "b").unlink()
    log.take_back(tmp_path)
    assert list((tmp_path / "_aiomailbox" / "commits").iterdir()) == []


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
