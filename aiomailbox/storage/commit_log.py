"""The commits to a directory, one by one, for readers that follow it.

Theory of operation: beside the files there is a directory ``_aiomailbox``. Each commit
is a small file in it, written in one step after all files of the commit are in place: a
reader of these files sees a commit whole or not at all. Readers write how far they are;
what all of them have passed may be deleted, by any of them.

=========================  =============================================================
``log.json``               which log it is, and whether files are deleted
``commits/<number>.json``  the files of a commit; numbers have no gaps
``commits/<number>.gone``  a commit whose files are being deleted
``readers/<name>.json``    the last commit that a reader has passed
``.lock``                  held where readers begin, and where files are deleted
=========================  =============================================================
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from aiomailbox.errors import SinkError
from aiomailbox.storage.local import Disk

Following = Literal["keep", "delete"]

_FOLDER: Final = "_aiomailbox"
_VERSION: Final = 1


class _Header(msgspec.Struct):
    version: int
    id: str
    deletes: bool


class _Commit(msgspec.Struct):
    checkpoint_id: int
    files: list[str]


class DirectoryLog(Protocol):
    """Notifies readers of a directory of commits; all calls block."""

    def create(self, directory: Path) -> None:
        """Begin in a directory that is not visible yet."""

    def check(self, directory: Path) -> None:
        """Check that a directory that a job goes on with has this log.

        Raises:
            SinkError: If it has not.
        """

    def append(self, directory: Path, checkpoint_id: int, names: Sequence[str]) -> None:
        """Tell of the files of a commit; of those that are known, nothing."""

    def take_back(self, directory: Path) -> None:
        """Forget the last commit, whose files are gone."""


class CommitLog:
    """The log of a directory that is written; all calls block.

    Args:
        following: ``"keep"`` or ``"delete"`` what all readers have passed.
        disk: The file operations.
    """

    def __init__(self, following: Following, disk: Disk | None = None) -> None:
        self._following = following
        self._disk = disk or Disk()

    def create(self, directory: Path) -> None:
        """Begin a log in a directory that is not visible yet.

        Raises:
            OSError: If the disk refuses.
        """
        folder = directory / _FOLDER
        for name in ("commits", "readers"):
            self._disk.make_directory(folder / name)
        header = _Header(_VERSION, uuid.uuid4().hex, self._following == "delete")
        self._disk.write(folder / "log.json", msgspec.json.encode(header))
        self._disk.sync(folder)

    def check(self, directory: Path) -> None:
        """Check that a directory that a job goes on with has a log.

        Raises:
            SinkError: If it has none.
        """
        if not (directory / _FOLDER / "log.json").exists():
            raise SinkError(
                f"{str(directory)!r} was begun without follow=, and has files that no "
                "reader would see. Go on without it, or choose another path."
            )

    def append(self, directory: Path, checkpoint_id: int, names: Sequence[str]) -> None:
        """Tell readers of a commit; one that they know already is passed over.

        Raises:
            OSError: If the disk refuses.
        """
        # What is not there was passed by all readers, and deleted.
        files = sorted(name for name in names if (directory / name).exists())
        if not files:
            return
        folder = directory / _FOLDER / "commits"
        # Beside these there is a ``.part`` if a program died when it wrote one.
        known = {
            int(path.stem): path
            for suffix in (".json", ".gone")
            for path in folder.glob(f"*{suffix}")
        }
        for number in sorted(known, reverse=True):
            commit = msgspec.json.decode(known[number].read_bytes(), type=_Commit)
            if set(files) <= set(commit.files):
                return
            if commit.checkpoint_id < checkpoint_id:
                break
        next_number = max(known, default=0) + 1
        content = msgspec.json.encode(_Commit(checkpoint_id, files))
        self._disk.write(folder / f"{next_number:020d}.json", content)
        self._disk.sync(folder)

    def take_back(self, directory: Path) -> None:
        """Remove the newest commit if none of its files is there any more."""
        folder = directory / _FOLDER / "commits"
        newest = max(folder.glob("*.json"), default=None)
        if newest is None:
            return
        commit = msgspec.json.decode(newest.read_bytes(), type=_Commit)
        if not any((directory / name).exists() for name in commit.files):
            self._disk.remove_file(newest)
            self._disk.sync(folder)
