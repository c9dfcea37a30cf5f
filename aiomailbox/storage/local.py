"""Files of this machine: durable when written, and locked by their owner.

A file is written under a temporary name beside its own, synced and renamed; then its
directory is synced. A crash leaves the old file, the new one, or a temporary one that
`names` does not show and `sweep` removes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import secrets
import shutil
import stat
import sys
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

from aiomailbox.errors import InvalidArgumentError, StorageClaimedError
from aiomailbox.forks import keep_from_forks

# The mode of files that only the user whose job writes them can read.
PRIVATE: Final = 0o600
_CHUNK_BYTES: Final = 1 << 20
_TEMPORARY: Final = ".part"
_LOCK: Final = ".lock"
_LOOKS_FOR_HOLDER: Final = 400
_LOOK_EVERY_S: Final = 0.005
# Where files have no mode that can be set.
_HAS_NO_MODES: Final = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class LocalStorage:
    """Files below a directory, which is made when it is first written to.

    Args:
        directory: The place.
        file_mode: The mode of new files, whatever the umask. New directories have it
            too, and can be entered by whoever may read or write files; those that
            exist keep theirs.

    Example:
        >>> import tempfile
        >>> storage = LocalStorage(tempfile.mkdtemp())
        >>> storage.write("a/b", [b"one", b"two"])
        6
        >>> storage.names("a"), b"".join(storage.read("a/b"))
        (['a/b'], b'onetwo')
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, file_mode: int = PRIVATE
    ) -> None:
        self._directory = Path(os.path.abspath(directory))
        self._file_mode = file_mode

    @property
    def place(self) -> str:
        """The directory."""
        return str(self._directory)

    def write(self, name: str, chunks: Iterable[bytes]) -> int:
        """Write a file that is complete and durable, or not there at all."""
        path = self._path(name)
        make_directories(path.parent, self._file_mode)
        # A name of its own: two writers of one file, one of them shut out, must not
        # mix.
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
        size = 0
        try:
            created = open_file(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self._file_mode
            )
            with open(created, "wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                    size += len(chunk)
                file.flush()
                os.fsync(file.fileno())
            # In one step: a reader finds the old file or the new one.
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        # Or after a loss of power the name may be gone.
        sync_directory(path.parent)
        return size

    def read(self, name: str) -> Iterator[bytes]:
        """Yield a file's contents in chunks of at most 1 MiB."""
        with open(self._path(name), "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    def view(self, name: str) -> memoryview:
        """Return a file's contents; of a large one, mapped into memory."""
        with open(self._path(name), "rb") as file:
            # What is mapped keeps a descriptor, and of small files there may be many.
            if os.fstat(file.fileno()).st_size <= _CHUNK_BYTES:
                return memoryview(file.read())
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def fetch(self, name: str, target: Path) -> None:
        """Put a file's contents at a path: as a link, where that is possible."""
        source = self._path(name)
        try:
            os.link(source, target)
        except FileNotFoundError:
            # A file that is missing is not a file system without links.
            raise
        except OSError:
            # Another file system, or one without links.
            shutil.copyfile(source, target)

    def names(self, below: str = "") -> list[str]:
        """Return the names of all files below a name, sorted."""
        found = []
        root = self._path(below) if below else self._directory
        for parent, _, files in os.walk(root):
            relative = Path(parent).relative_to(self._directory)
            found += [
                (relative / file).as_posix()
                for file in files
                if not file.endswith((_TEMPORARY, _LOCK))
            ]
        return sorted(found)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files, and directories that become empty thereby."""
        parents = set()
        for name in names:
            path = self._path(name)
            path.unlink(missing_ok=True)
            parents.add(path.parent)
        # The deepest first.
        for parent in sorted(parents, key=lambda one: -len(one.parts)):
            self._remove_empty(parent)

    def sweep(self, below: str = "") -> None:
        """Remove what crashes left half written; there must be no writer."""
        root = self._path(below) if below else self._directory
        for parent, _, files in os.walk(root):
            for file in files:
                if file.endswith(_TEMPORARY):
                    Path(parent, file).unlink(missing_ok=True)

    def claim(self, below: str, owner: str, now_ms: int) -> LocalClaim:
        """Claim the right to write below a name, until released or the process ends."""
        path = self._path(below) if below else self._directory
        make_directories(path, self._file_mode)
        return LocalClaim(path / _LOCK, owner, file_mode=self._file_mode)

    def _path(self, name: str) -> Path:
        check_name(name)
        return self._directory / name

    def _remove_empty(self, directory: Path) -> None:
        """Remove a directory without files, and those above it, but not the place."""
        while directory != self._directory and directory.is_dir():
            try:
                directory.rmdir()
            except OSError:
                # Something is in there.
                return
            directory = directory.parent


def holder(owner: str) -> str:
    """Return how an owner in this process is named to others."""
    return f"{owner} (process {os.getpid()})"


class LocalClaim:
    """A lock on a file; the system releases it when the process ends, however it does.

    It ends too when it is collected.

    Args:
        path: The file; its directory must be there.
        owner: The holder's name, for the error that others get.
        file_mode: The file's mode, if it is not there yet.

    Raises:
        StorageClaimedError: If another process, or this one, holds it.
        OSError: If the file cannot be written.
    """

    def __init__(self, path: Path, owner: str, *, file_mode: int = PRIVATE) -> None:
        self._path = path
        descriptor = _locked_file(path, file_mode)
        self._descriptor = descriptor
        self._close = weakref.finalize(self, _unlock, descriptor)
        keep_from_forks(self)
        text = f"{holder(owner)}\n".encode()
        # In this order: a reader meanwhile finds a name, and not nothing.
        os.pwrite(descriptor, text, 0)
        os.ftruncate(descriptor, len(text))

    def fileno(self) -> int:
        """Return the descriptor that holds the lock, -1 once it is released."""
        return self._descriptor if self._close.alive else -1

    def renew(self, now_ms: int) -> None:
        """Do nothing: the lock lasts as long as the process."""

    def release(self, *, remove: bool = False) -> None:
        """Unlock. Idempotent."""
        if remove and self._close.alive:
            # While it is locked: a process that has it open sees that it is gone.
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._close()


def _locked_file(path: Path, file_mode: int) -> int:
    """Return a descriptor of the file at a path, locked.

    Raises:
        StorageClaimedError: If the lock is held already.
    """
    while True:
        # Not inherited: a child that outlives its parent must not hold the lock.
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT, file_mode)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # One that was removed before it was locked is not what others will lock.
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except FileNotFoundError:
            pass
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise StorageClaimedError(str(path.parent), holder) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    """Return the holder of a file; one that has just locked it writes its name soon."""
    for _ in range(_LOOKS_FOR_HOLDER):
        text = os.pread(descriptor, 200, 0).decode("utf-8", "replace")
        if text:
            return text.splitlines()[0]
        time.sleep(_LOOK_EVERY_S)  # noqa: TID251 -- in a thread
    return "another job"


def _unlock(descriptor: int) -> None:
    # Said, not only closed: a child may have been forked a moment ago, and have a copy
    # still.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def check_name(name: str) -> None:
    """Refuse a name that leads out of the storage.

    Raises:
        InvalidArgumentError: If it is empty, absolute, or has a part ``..``.
    """
    parts = PurePosixPath(name).parts
    if not parts or parts[0] == "/" or ".." in parts or "\0" in name:
        raise InvalidArgumentError(
            "name", f"{name!r} is not the name of a file in a storage", "Use a/b/c."
        )


def sync_directory(path: Path) -> None:
    """Make what was created, renamed or deleted in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_file(path: Path, flags: int, file_mode: int) -> int:
    """Return a descriptor of a file; one that is new has exactly a mode.

    Raises:
        OSError: If it cannot be opened.
    """
    flags |= os.O_CLOEXEC
    try:
        # What is there keeps its mode.
        descriptor = os.open(path, flags | os.O_EXCL, file_mode)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        return os.open(path, flags, file_mode)
    try:
        _set_mode(descriptor, file_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_directories(path: Path, file_mode: int | None = None) -> None:
    """Make a directory and those above it, durably; they may be there."""
    if path.is_dir():
        return
    missing = [path]
    while not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    for directory in reversed(missing):
        if file_mode is None:
            directory.mkdir(exist_ok=True)
        else:
            # Those who may read or write.
            enter = (file_mode >> 1 | file_mode >> 2) & 0o111
            with contextlib.suppress(FileExistsError):
                directory.mkdir(mode=file_mode | enter)
                _set_mode(directory, file_mode | enter)
        sync_directory(directory.parent)


def _set_mode(path: Path | int, mode: int) -> None:
    """Give what was made just now a mode that the umask has taken bits of."""
    if stat.S_IMODE(os.stat(path).st_mode) == mode:
        return
    try:
        os.chmod(path, mode)
    except OSError as error:
        if error.errno not in _HAS_NO_MODES:
            raise


# File operations, one call each: the seam where tests let a program crash.


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
