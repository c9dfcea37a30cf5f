"""Bytes that outlive the process: files that are whole or not there, and logs."""

from __future__ import annotations

import os
from typing import Any

from aiomailbox.storage.contract import Storage
from aiomailbox.storage.local import PRIVATE, LocalStorage
from aiomailbox.storage.remote import RemoteStorage

__all__ = ["open_storage", "path_of"]


def open_storage(
    place: str | os.PathLike[str], *, file_mode: int = PRIVATE, **options: Any
) -> Storage:
    """Return the storage at a path, or at a URL that fsspec knows.

    Args:
        place: A directory, or a URL such as ``s3://bucket/jobs``.
        file_mode: The mode of new files on this machine; see `LocalStorage`.
        options: For fsspec's file system.

    Raises:
        MissingExtraError: If a URL needs what is not installed.

    Example:
        >>> open_storage("checkpoints").place == os.path.abspath("checkpoints")
        True
    """
    path = path_of(place)
    if path is not None:
        return LocalStorage(path, file_mode=file_mode)
    return RemoteStorage(os.fspath(place), **options)


def path_of(place: str | os.PathLike[str]) -> str | None:
    """Return the path of a place on a file system of this machine; None for another URL.

    Example:
        >>> path_of("file:///jobs"), path_of("jobs"), path_of("s3://bucket/jobs")
        ('/jobs', 'jobs', None)
    """
    text = os.fspath(place)
    scheme, separator, path = text.partition("://")
    if not separator:
        return text
    return path if scheme in {"file", "local"} else None
