"""The log by which Spark's own readers see the files of a commit all at once.

Theory of operation: where a directory has ``_spark_metadata``, Spark reads the files that
are listed there, and no others. It is a log of files with numbers, each the files of one
commit, written in one step after these are in place. Every 101st is ``<number>.compact``
and has all that was listed before, so that readers and we may leave out older ones. Spark
infers the 101 from the number of the first one, because it is a prime, whatever a session
has set (``spark.sql.streaming.fileSink.log.compactInterval``, unless that is 1). Paths are
absolute, as Spark's are: such a directory cannot be moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from aiomailbox.errors import SinkError
from aiomailbox.storage.local import Disk

_FOLDER: Final = "_spark_metadata"
_VERSION: Final = b"v1"
# A prime, and large enough that what is written again and again is little.
_COMPACT_EVERY: Final = 101
_COMPACT: Final = ".compact"


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

    Cost:
        A file with the new entries per commit. The first commits of a program up to one
        with new files, those that are made again, and every 101st read all entries.

    Concept:
        Spark, ``FileStreamSinkLog``, ``CompactibleFileStreamLog`` and
        ``MetadataLogFileIndex``.
    """

    def __init__(self, target: Path, disk: Disk | None = None) -> None:
        self._target = target.absolute()
        self._disk = disk or Disk()
        # The checkpoint of the last commit that was not there yet, None before there is one.
        self._appended_id: int | None = None

    def create(self, directory: Path) -> None:
        """Begin a log in a directory that is not visible yet.

        Raises:
            OSError: If the disk refuses.
        """
        self._disk.make_directory(directory / _FOLDER)
        self._write(directory, _COMPACT_EVERY - 1, [])

    def check(self, directory: Path) -> None:
        """Check that a directory that a job goes on with has a log.

        Raises:
            SinkError: If it has none, or one that Spark has written to.
        """
        numbers = _numbers(directory)
        last = max(numbers, default=-1)
        if not numbers or not set(_read_with(last)) <= numbers.keys():
            raise SinkError(
                f"{str(directory)!r} was begun without spark_log=True, or Spark writes to "
                "it, too. Choose another path."
            )

    def append(self, directory: Path, checkpoint_id: int, names: Sequence[str]) -> None:
        """Let Spark see files; those that it sees already, stay.

        Raises:
            OSError: If the disk refuses.
        """
        if not names:
            return
        before = self._appended_id
        known: set[str] = set()
        # Commits are made again after a failure, and by a program that starts again: as
        # many as the checkpoint holds that it resumes from.
        if before is None or checkpoint_id <= before:
            known = {_path_of(line) for lines in _read(directory) for line in lines}
        added = []
        for name in sorted(names):
            path, uri = directory / name, (self._target / name).as_uri()
            if uri not in known and path.exists():
                status = path.stat()
                entry = _Entry(uri, status.st_size, int(status.st_mtime * 1000))
                added.append(msgspec.json.encode(entry))
        if added:
            self._append(directory, added)
            self._appended_id = checkpoint_id

    def take_back(self, directory: Path) -> None:
        """Forget the files that are gone.

        Raises:
            OSError: If the disk refuses.
        """
        there = {
            (self._target / path.relative_to(directory)).as_uri()
            for path in directory.rglob("*")
        }
        for number, lines in zip(_current(directory), _read(directory), strict=True):
            kept = [line for line in lines if _path_of(line) in there]
            if len(kept) < len(lines):
                self._write(directory, number, kept)

    def _append(self, directory: Path, added: list[bytes]) -> None:
        number = max(*_numbers(directory), _COMPACT_EVERY - 2) + 1
        if not _is_compact(number):
            self._write(directory, number, added)
            return
        before = [line for lines in _read(directory) for line in lines]
        self._write(directory, number, [*before, *added])
        # Not those since the one before: a reader may just be reading them.
        for older, path in _numbers(directory).items():
            if older < number - _COMPACT_EVERY:
                self._disk.remove_file(path)

    def _write(self, directory: Path, number: int, lines: list[bytes]) -> None:
        folder = directory / _FOLDER
        name = f"{number}{_COMPACT if _is_compact(number) else ''}"
        self._disk.write(folder / name, b"\n".join([_VERSION, *lines]))
        self._disk.sync(folder)


def _is_compact(number: int) -> bool:
    return (number + 1) % _COMPACT_EVERY == 0


def _read_with(last: int) -> range:
    """Return the numbers of the files that a reader reads, by the number of the last."""
    return range(max(0, (last + 1) // _COMPACT_EVERY * _COMPACT_EVERY - 1), last + 1)


def _numbers(directory: Path) -> dict[int, Path]:
    """Return the files of a log, by their numbers."""
    found = {}
    # Not the ``100.part`` of a program that died when it wrote.
    for path in (directory / _FOLDER).glob("*[0-9]*"):
        text = path.name.removesuffix(_COMPACT)
        if text.isdecimal() and (_is_compact(int(text)) == (text != path.name)):
            found[int(text)] = path
    return found


def _current(directory: Path) -> list[int]:
    numbers = _numbers(directory)
    return [one for one in _read_with(max(numbers)) if one in numbers]


def _read(directory: Path) -> list[list[bytes]]:
    """Return the entries of each file that a reader reads."""
    numbers = _numbers(directory)
    return [
        numbers[number].read_bytes().splitlines()[1:] for number in _current(directory)
    ]


def _path_of(line: bytes) -> str:
    return msgspec.json.decode(line, type=_Entry).path
