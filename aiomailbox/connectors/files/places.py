"""Which files there are, and how one is opened: on this machine, or where fsspec reaches."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, cast

from aiomailbox.errors import MissingExtraError

__all__ = ["find_files", "is_url", "open_file"]

_MAGIC: Final = "*?["


def find_files(
    paths: tuple[str, ...], *, missing_ok: bool = False, empty_ok: bool = False
) -> list[str]:
    """Return the files that paths name, sorted within each path; blocks.

    A directory means all files below it but those whose names, or whose directories'
    names, begin with a dot or an underscore: they belong to writers.

    Args:
        paths: Files, directories, patterns with ``*``, and URLs of these.
        missing_ok: Whether a path may name nothing.
        empty_ok: Whether a pattern may.

    Raises:
        FileNotFoundError: If a path names nothing.
        OSError: If a directory cannot be listed.
    """
    found: dict[str, None] = {}
    for path in paths:
        names = _find_remote(path) if is_url(path) else _find_local(path)
        if not names and not missing_ok:
            _check_there(path, empty_ok=empty_ok)
        found |= dict.fromkeys(sorted(names))
    return list(found)


def open_file(name: str) -> BinaryIO:
    """Open a file for reading bytes; what ends in ``.gz`` is decompressed."""
    if is_url(name):
        opened = _fsspec(name).open(name, "rb", compression="infer").open()
        return cast("BinaryIO", opened)
    import gzip

    open_local: Any = gzip.open if name.endswith(".gz") else open
    return cast("BinaryIO", open_local(name, "rb"))


def is_url(path: str) -> bool:
    """Say whether a path is for fsspec."""
    return "://" in path


def _check_there(path: str, *, empty_ok: bool) -> None:
    """Check that a path in which there are no files may have none."""
    if _is_pattern(path):
        if not empty_ok:
            raise FileNotFoundError(
                f"no file matches {path!r}; if there may be none, say missing_ok=True"
            )
    elif not _is_directory(path):
        raise FileNotFoundError(
            f"there is no file or directory {path!r}; if it may be missing, say "
            "missing_ok=True"
        )


def _find_local(path: str) -> list[str]:
    mode = _mode(path)
    if stat.S_ISDIR(mode):
        names = []
        for parent, directories, files in os.walk(path, onerror=_raise_if_there):
            directories[:] = [name for name in directories if _is_visible(name)]
            names += [os.path.join(parent, name) for name in files if _is_visible(name)]
        return names
    if mode:
        return [path]
    if _is_pattern(path):
        drive, rest = os.path.splitdrive(path)
        parts = tuple(part for part in rest.split(os.sep) if part)
        root = drive + os.sep if rest.startswith(os.sep) else drive
        return [name for name in _matching(root, parts) if stat.S_ISREG(_mode(name))]
    return []


def _matching(directory: str, parts: tuple[str, ...]) -> Iterator[str]:
    """Expand a pattern as `glob` does, which takes what cannot be listed for empty."""
    if not parts:
        yield directory
        return
    first, rest = parts[0], parts[1:]
    if first == "**":
        # At the end it means all files below.
        yield from _matching(directory, rest or ("*",))
        for name in _names(directory, "*"):
            below = os.path.join(directory, name)
            if stat.S_ISDIR(_mode(below)):
                yield from _matching(below, parts)
    elif _is_pattern(first):
        for name in _names(directory, first):
            yield from _matching(os.path.join(directory, name), rest)
    else:
        yield from _matching(os.path.join(directory, first), rest)


def _names(directory: str, pattern: str) -> list[str]:
    import fnmatch

    try:
        names = os.listdir(directory or os.curdir)
    except (FileNotFoundError, NotADirectoryError):
        return []
    if not pattern.startswith("."):
        names = [name for name in names if not name.startswith(".")]
    return fnmatch.filter(names, pattern)


def _mode(path: str) -> int:
    """Return what a path is, as `stat` has it; 0 for nothing."""
    # Not `os.path.exists`, for which everything is gone that cannot be asked for.
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        # A link to itself names nothing.
        if error.errno == errno.ELOOP:
            return 0
        raise


def _find_remote(path: str) -> list[str]:
    files, root = _fsspec(path).core.url_to_fs(path)
    files.invalidate_cache()
    if _is_pattern(path):
        names = files.glob(root, **_how_to_walk(files))
    elif files.isfile(root):
        names = [root]
    else:
        start = len(root.rstrip("/")) + 1
        names = [
            name
            for name in files.find(root, **_how_to_walk(files))
            if all(_is_visible(part) for part in name[start:].split("/"))
        ]
    return [str(files.unstrip_protocol(name)) for name in names]


def _how_to_walk(files: Any) -> dict[str, Any]:
    """Return what makes fsspec raise what its walk passes over.

    File systems that list in a way of their own, as those of object stores do, raise.
    """
    import fsspec
    from fsspec.asyn import AsyncFileSystem

    kind = type(files)
    if issubclass(kind, AsyncFileSystem):
        walks = kind._find is AsyncFileSystem._find
    else:
        walks = kind.find is fsspec.AbstractFileSystem.find
    return {"on_error": _raise_if_there} if walks else {}


def _raise_if_there(error: OSError) -> None:
    # A walk would pass over it, and files that seem gone are read again as new ones.
    if not isinstance(error, FileNotFoundError):
        raise error


def _is_pattern(path: str) -> bool:
    return any(character in path for character in _MAGIC)


def _is_directory(path: str) -> bool:
    if not is_url(path):
        return os.path.isdir(path)
    files, root = _fsspec(path).core.url_to_fs(path)
    return bool(files.isdir(root))


def _is_visible(name: str) -> bool:
    return not name.startswith((".", "_"))


def _fsspec(url: str) -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtraError(f"files at {url}", "storage") from error
    return fsspec
