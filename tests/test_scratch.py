"""Directories that go with their process: who is swept, and who is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aiomailbox import scratch
from aiomailbox.scratch import (
    ScratchDirectories,
    ScratchDirectory,
    remove_left_behind,
)

pytestmark = [
    pytest.mark.real_time,
    # The child only sleeps and ends.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

HOLD = """
import sys
from aiomailbox.scratch import ScratchDirectory
directory = ScratchDirectory(sys.argv[1])
(directory.path / "file").write_text("left")
print(directory.path, flush=True)
sys.stdin.read()
"""


def holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that has a directory, and return both."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_only_what_a_dead_process_has_left_is_removed(tmp_path: Path) -> None:
    mine = ScratchDirectory(tmp_path)
    process, theirs = holder(tmp_path)
    other = tmp_path / "somebody's"
    other.mkdir()
    with process:
        remove_left_behind(tmp_path)
        assert {*tmp_path.iterdir()} == {mine.path, theirs, other}
        process.kill()
    assert theirs.exists()
    another = ScratchDirectory(tmp_path)
    assert {*tmp_path.iterdir()} == {mine.path, another.path, other}
    for directory in (mine, another, mine):
        directory.remove()
    assert {*tmp_path.iterdir()} == {other}
    assert mine.fileno() == -1


def test_only_the_user_can_enter(tmp_path: Path) -> None:
    directory = ScratchDirectory(tmp_path / "made" / "too")
    assert directory.path.stat().st_mode & 0o777 == 0o700
    directory.remove()


def test_what_is_forked_does_not_keep_a_directory_alive(tmp_path: Path) -> None:
    release, hold = os.pipe()
    first, second = os.pipe()
    holding = os.fork()
    if not holding:
        directory = ScratchDirectory(tmp_path)
        if not os.fork():
            os.close(hold)
            os.write(second, b"x")
            os.read(release, 1)
            os._exit(0)
        os.read(first, 1)
        del directory
        os._exit(0)
    os.waitpid(holding, 0)
    assert len([*tmp_path.iterdir()]) == 1
    remove_left_behind(tmp_path)
    assert [*tmp_path.iterdir()] == []
    for descriptor in (release, hold, first, second):
        os.close(descriptor)


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    place = tmp_path / "place"
    place.mkdir()
    (place / f"{scratch._PREFIX}link").symlink_to(elsewhere)
    (place / f"{scratch._PREFIX}file").touch()
    remove_left_behind(place)
    assert (elsewhere / "file").exists()
    assert len([*place.iterdir()]) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_directories_of_others_are_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / f"{scratch._PREFIX}theirs"
    theirs.mkdir()
    os.chown(theirs, 12_345, 12_345)
    remove_left_behind(tmp_path)
    assert theirs.exists()


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_directory_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: Any, is_removed: bool
) -> None:
    """A sweep may have it locked, or have removed it, at that moment."""
    lock = scratch._lock
    swept: list[str] = []

    def late(descriptor: int) -> bool:
        if swept:
            return lock(descriptor)
        (found,) = tmp_path.iterdir()
        swept.append(str(found))
        if is_removed:
            shutil.rmtree(found)
            return lock(descriptor)
        return False

    monkeypatch.setattr(scratch, "_lock", late)
    directory = ScratchDirectory(tmp_path)
    assert str(directory.path) != swept[0]
    assert directory.path.exists()
    directory.remove()


def test_a_place_that_is_not_there_has_nothing_left_behind(tmp_path: Path) -> None:
    remove_left_behind(tmp_path / "nowhere")
    assert [*tmp_path.iterdir()] == []


def test_a_job_has_one_directory_below_each_place(tmp_path: Path) -> None:
    directories = ScratchDirectories()
    assert directories.paths == {}
    below = directories.below(str(tmp_path))
    assert directories.below(str(tmp_path)) == below
    assert directories.paths == {str(tmp_path): below}
    assert Path(below).parent == tmp_path
    directories.remove()
    assert [*tmp_path.iterdir()] == []
