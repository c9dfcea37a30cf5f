"""Directories for files that a process needs only while it lives.

Theory of operation: the process that makes such a directory keeps it locked, and the
system releases the lock when the process ends, however it does. So a directory that can
be locked was left behind, and the next process of the same user that makes one beside
it removes it. One that was removed between its making and its locking is made again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aiomailbox.forks import keep_from_forks

_PREFIX: Final = "aiomailbox-job-"
StrPath = str | os.PathLike[str]


class ScratchDirectory:
    """A new directory that only the user can enter; it goes with the process.

    Those that others have left beside it are removed first.

    Args:
        parent: Where to make it, and itself made if need be; None for the system's
            place for temporary files.

    Attributes:
        path: The directory.

    Raises:
        OSError: If it cannot be made.

    Example:
        >>> directory = ScratchDirectory()
        >>> directory.path.is_dir()
        True
        >>> directory.remove()
        >>> directory.path.is_dir()
        False
    """

    def __init__(self, parent: StrPath | None = None) -> None:
        # Late, here and below: its import takes long, and few jobs keep files.
        import tempfile

        where = Path(tempfile.gettempdir() if parent is None else parent).absolute()
        where.mkdir(parents=True, exist_ok=True)
        remove_left_behind(where)
        self.path, self._descriptor = _new_locked(where)
        keep_from_forks(self)

    def fileno(self) -> int:
        """Return the descriptor that holds the lock, -1 if it was removed."""
        return self._descriptor

    def remove(self) -> None:
        """Remove it with all that is in it. Idempotent."""
        if self._descriptor >= 0:
            import shutil

            shutil.rmtree(self.path, ignore_errors=True)
            # Last: another process must not take it for left behind before it is gone.
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class ScratchDirectories:
    """One scratch directory below each place, made when it is first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, ScratchDirectory] = {}

    def below(self, place: str) -> str:
        """Return the directory below a place; "" is the system's for temporary files.

        Raises:
            OSError: If it cannot be made.
        """
        if place not in self._made:
            self._made[place] = ScratchDirectory(place or None)
        return str(self._made[place].path)

    @property
    def paths(self) -> dict[str, str]:
        """The directories that were made, by place."""
        return {place: str(each.path) for place, each in self._made.items()}

    def remove(self) -> None:
        """Remove them all. Idempotent."""
        for directory in self._made.values():
            directory.remove()


def remove_left_behind(parent: StrPath) -> None:
    """Remove scratch directories of this user whose processes have ended.

    Args:
        parent: Where they are.
    """
    import shutil

    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        found = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
        for path in found:
            with _locked(path) as is_locked:
                if is_locked:
                    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[bool]:
    """Lock a directory if it is this user's and no other process has locked it."""
    try:
        descriptor = _open(path)
    except OSError:
        # Gone, or a link, or not ours to open.
        yield False
        return
    try:
        is_mine = os.fstat(descriptor).st_uid == os.geteuid()
        yield is_mine and _lock(descriptor)
    finally:
        os.close(descriptor)


def _new_locked(parent: Path) -> tuple[Path, int]:
    import tempfile

    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        try:
            descriptor = _open(path)
        except FileNotFoundError:
            continue
        if _lock(descriptor) and _is_at(descriptor, path):
            return path, descriptor
        # Another process has taken it for left behind.
        os.close(descriptor)


def _open(path: StrPath) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
