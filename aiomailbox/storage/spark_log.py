"""The log by which Spark's own readers see the files of a commit all at once.

Theory of operation: where a directory has ``_spark_metadata``, Spark reads the files that
are listed there, and no others. It is a log of numbered files; ours has one, number 0, with
all files, which is written anew in one step after those of a commit are in place. Paths are
absolute, as Spark's are: such a directory cannot be moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from aiomailbox.errors import SinkError
from aiomailbox.storage.disk import Disk

__all__ = ["SparkLog"]

_FOLDER: Final = "_spark_metadata"
_VERSION: Final = b"v1"


class _Entry(msgspec.Struct, rename="camel"):
    path: str
    size: int
    modification_time: int
    is_dir: bool = False
    block_replication: int = 1
    block_size: int = 33_554_432
    action: str = "add"


class SparkLog:
    """The log of a directory that is written; all calls block.

    Args:
        target: Where the directory will be seen.
        disk: The file operations.

    Concept:
        Spark, ``FileStreamSinkLog`` and ``MetadataLogFileIndex``.
    """

    def __init__(self, target: Path, disk: Disk | None = None) -> None:
        self._target = target.absolute()
        self._disk = disk or Disk()

    def create(self, directory: Path) -> None:
        """Begin a log in a directory that nobody sees yet.

        Raises:
            OSError: If the disk refuses.
        """
        self._disk.make_directory(directory / _FOLDER)
        self._write(directory, [])

    def check(self, directory: Path) -> None:
        """Check that a directory that a job goes on with has a log.

        Raises:
            SinkError: If it has none, or one that Spark has written to.
        """
        # Not the ``0.part`` of a program that died when it wrote.
        names = [path.name for path in (directory / _FOLDER).glob("*[0-9]")]
        if names != ["0"]:
            raise SinkError(
                f"{str(directory)!r} was begun without spark_log=True, or Spark writes to "
                "it, too. Choose another path."
            )

    def append(self, directory: Path, checkpoint_id: int, names: Sequence[str]) -> None:
        """Let Spark see files; those that it sees already, stay.

        Args:
            directory: The directory.
            checkpoint_id: The checkpoint that has the files.
            names: The files below the directory.

        Raises:
            OSError: If the disk refuses.
        """
        lines = (directory / _FOLDER / "0").read_bytes().splitlines()[1:]
        known = {msgspec.json.decode(line, type=_Entry).path for line in lines}
        for name in sorted(names):
            path, uri = directory / name, (self._target / name).as_uri()
            if uri not in known and path.exists():
                status = path.stat()
                entry = _Entry(uri, status.st_size, int(status.st_mtime * 1000))
                lines.append(msgspec.json.encode(entry))
        self._write(directory, lines)

    def take_back(self, directory: Path) -> None:
        """Forget the files that are gone.

        Raises:
            OSError: If the disk refuses.
        """
        there = {
            (self._target / path.relative_to(directory)).as_uri(): path
            for path in directory.rglob("*")
        }
        lines = (directory / _FOLDER / "0").read_bytes().splitlines()[1:]
        kept = [
            line
            for line in lines
            if msgspec.json.decode(line, type=_Entry).path in there
        ]
        self._write(directory, kept)

    def _write(self, directory: Path, lines: list[bytes]) -> None:
        folder = directory / _FOLDER
        self._disk.write(folder / "0", b"\n".join([_VERSION, *lines]))
        self._disk.sync(folder)
