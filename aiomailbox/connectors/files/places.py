"""Which files there are, and how one is opened: on this machine, or where fsspec reaches."""

from __future__ import annotations

import os
from typing import Any, BinaryIO, Final, cast

from aiomailbox.errors import MissingExtraError

__all__ = ["find_files", "is_url", "open_file"]

_MAGIC: Final = "*?["


def find_files(paths: tuple[str, ...]) -> list[str]:
    """Return the files that paths name, sorted within each path; blocks.

    A directory means all files below it but those whose names, or whose directories'
    names, begin with a dot or an underscore: they belong to whoever writes there.

    Args:
        paths: Files, directories, patterns with ``*``, and URLs of these.

    Raises:
        FileNotFoundError: If a path that is no pattern names nothing.
        OSError: If a directory cannot be listed.
    """
    found: dict[str, None] = {}
    for path in paths:
        names = _find_remote(path) if is_url(path) else _find_local(path)
        if not names and not _is_pattern(path) and not _is_directory(path):
            raise FileNotFoundError(f"there is no file or directory {path!r}")
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


def _find_local(path: str) -> list[str]:
    if os.path.isdir(path):
        names = []
        for parent, directories, files in os.walk(path, onerror=_raise_if_there):
            directories[:] = [name for name in directories if _is_visible(name)]
            names += [os.path.join(parent, name) for name in files if _is_visible(name)]
        return names
    if os.path.exists(path):
        return [path]
    if _is_pattern(path):
        import glob

        return [
            name for name in glob.glob(path, recursive=True) if os.path.isfile(name)
        ]
    return []


def _find_remote(path: str) -> list[str]:
    files, root = _fsspec(path).core.url_to_fs(path)
    files.invalidate_cache()
    if _is_pattern(path):
        names = files.glob(root)
    elif files.isfile(root):
        names = [root]
    else:
        start = len(root.rstrip("/")) + 1
        names = [
            name
            for name in files.find(root)
            if all(_is_visible(part) for part in name[start:].split("/"))
        ]
    return [str(files.unstrip_protocol(name)) for name in names]


def _raise_if_there(error: OSError) -> None:
    # `os.walk` would pass over it, and files that seem gone are read again as new ones.
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
