"""File operations, one call each: the seam where tests let a program crash."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any, Final

from aiomailbox.storage.local import make_directories, sync_directory

__all__ = ["Disk", "ExchangeNotSupportedError"]

_HERE: Final = -100
# RENAME_EXCHANGE of renameat2(2), and RENAME_SWAP of renamex_np(2).
_EXCHANGE: Final = 2
_NOT_SUPPORTED: Final = {
    errno.EINVAL,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
}


class ExchangeNotSupportedError(OSError):
    """The file system cannot exchange two paths in one step."""


class Disk:
    """The file operations that a commit consists of; all raise OSError."""

    def make_directory(self, path: Path) -> None:
        """Make a directory and those above it; they may be there."""
        make_directories(path)

    def create(self, path: Path) -> None:
        """Make an empty file; it may be there."""
        path.touch()

    def write(self, path: Path, data: bytes) -> None:
        """Write a small file that is whole, old or new; its directory is not synced."""
        temporary = path.with_name(f"{path.name}.part")
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.move(temporary, path)

    def move(self, source: Path, target: Path) -> None:
        """Rename; a target that is a file or an empty directory is replaced."""
        source.rename(target)

    def exchange(self, one: Path, other: Path) -> None:
        """Exchange two paths in one step: neither is ever missing.

        Raises:
            ExchangeNotSupportedError: If the system or the file system cannot.
        """
        # Late: an interpreter may have been built without it, and few jobs need it.
        import ctypes

        # A symbol that this system does not have raises AttributeError.
        library: Any = ctypes.CDLL(None, use_errno=True)
        paths = os.fsencode(one), os.fsencode(other)
        try:
            if sys.platform == "darwin":
                failed = library.renamex_np(*paths, _EXCHANGE)
            else:
                failed = library.renameat2(_HERE, paths[0], _HERE, paths[1], _EXCHANGE)
        except AttributeError:
            raise ExchangeNotSupportedError("no such system call") from None
        if not failed:
            return
        code = ctypes.get_errno()
        kind = ExchangeNotSupportedError if code in _NOT_SUPPORTED else OSError
        raise kind(code, os.strerror(code), str(one), None, str(other))

    def sync(self, path: Path) -> None:
        """Let a directory's entries survive a loss of power."""
        sync_directory(path)

    def remove_file(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and all that is in it, or a file."""
        if path.is_symlink() or not path.is_dir():
            self.remove_file(path)
            return
        for entry in list(path.iterdir()):
            self.remove_tree(entry)
        self.remove_directory(path)
