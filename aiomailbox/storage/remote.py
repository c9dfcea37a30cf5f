"""Files of any system that fsspec knows: an object store, a server, memory.

An object store shows a file when it is complete; on systems that show it earlier, the
checksums of `aiomailbox.checkpoint.layout` tell a reader. There are no locks: a claim is a
lease, a small file with a time, which its owner renews and others respect until then.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from aiomailbox.errors import (
    InvalidArgumentError,
    MissingExtraError,
    StorageClaimedError,
)
from aiomailbox.storage.local import check_name

LEASE_MS: Final = 60_000
_CACHING: Final = frozenset({"blockcache", "cached", "filecache", "simplecache"})
_CHUNK_BYTES: Final = 1 << 20
_LEASE: Final = ".lease"


class RemoteStorage:
    """Files below a URL of fsspec; needs the extra ``storage``.

    Args:
        url: As fsspec takes it, such as ``s3://bucket/jobs``.
        options: For fsspec's file system: credentials and the like.

    Raises:
        InvalidArgumentError: If the URL asks for a local cache.
        MissingExtraError: If fsspec, or what it needs for this URL, is not installed.

    Example:
        >>> storage = RemoteStorage("memory://jobs")
        >>> storage.write("a/b", [b"one", b"two"])
        6
        >>> storage.names("a"), b"".join(storage.read("a/b"))
        (['a/b'], b'onetwo')
        >>> storage.delete(["a/b"])
    """

    def __init__(self, url: str, **options: Any) -> None:
        cached = _CACHING.intersection(url.partition("://")[0].split("::"))
        if cached:
            raise InvalidArgumentError(
                "directory",
                f"{url!r} asks for {', '.join(cached)}: it would hide the writes of other "
                "processes, such as that this attempt was replaced",
                "Leave the cache out.",
            )
        try:
            import fsspec

            found = fsspec.core.url_to_fs(url, **options)
        except ImportError as error:
            raise MissingExtraError(f"storage at {url}", "storage") from error
        self._files: Any = found[0]
        self._root: str = str(found[1]).rstrip("/")
        self._url = url

    @property
    def place(self) -> str:
        """The URL."""
        return self._url

    def write(self, name: str, chunks: Iterable[bytes]) -> int:
        """Write a file: first here, then there, in one piece."""
        path = self._path(name)
        size = 0
        # Late: its import takes long.
        import tempfile

        # On a disk first: chunks may be made as they are written, and an upload has to
        # be repeatable.
        with tempfile.NamedTemporaryFile() as local:
            for chunk in chunks:
                local.write(chunk)
                size += len(chunk)
            local.flush()
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.put_file(local.name, path)
        return size

    def read(self, name: str) -> Iterator[bytes]:
        """Yield a file's contents in chunks of at most 1 MiB."""
        with self._files.open(self._path(name), "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    def view(self, name: str) -> memoryview:
        """Return a file's contents; they are in memory then."""
        return memoryview(b"".join(self.read(name)))

    def fetch(self, name: str, target: Path) -> None:
        """Put a file's contents at a path."""
        with open(target, "xb") as file:
            file.writelines(self.read(name))

    def sweep(self, below: str = "") -> None:
        """Do nothing: files are put there in one piece."""

    def names(self, below: str = "") -> list[str]:
        """Return the names of all files below a name, sorted."""
        # Listings may be cached, and another process may have written.
        self._files.invalidate_cache()
        root = self._path(below) if below else self._root
        found = self._files.find(root)
        start = len(self._root) + 1
        return sorted(path[start:] for path in found if not path.endswith(_LEASE))

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; those that are not there are passed over."""
        for name in names:
            try:
                self._files.rm_file(self._path(name))
            except FileNotFoundError:
                continue

    def claim(self, below: str, owner: str, now_ms: int) -> StorageLease:
        """Claim the right to write below a name for a minute, unless renewed."""
        path = f"{self._path(below) if below else self._root}/{_LEASE}"
        return StorageLease(self._files, path, owner, now_ms)

    def _path(self, name: str) -> str:
        check_name(name)
        return f"{self._root}/{name}"


class _LeaseFile(msgspec.Struct, frozen=True):
    owner: str
    token: str
    until_ms: int


class StorageLease:
    """A claim with a time; see `RemoteStorage.claim`.

    Two that claim within the time of one round trip are distinguished only by what they
    read back: the last writer holds it, and the other one is notified at its next
    `renew`, before it makes anything count.

    Raises:
        StorageClaimedError: If another lease has not run out.
    """

    def __init__(self, files: Any, path: str, owner: str, now_ms: int) -> None:
        self._files = files
        self._path = path
        self._owner = owner
        self._token = secrets.token_hex(8)
        # Looked at before and after: of two that write at once, one finds the other's
        # name.
        self._check(now_ms)
        self._write(now_ms)
        self._check(now_ms)

    def renew(self, now_ms: int) -> None:
        """Hold it for another minute."""
        self._check(now_ms, is_mine=True)
        self._write(now_ms)

    def release(self) -> None:
        """Give it back. Idempotent."""
        held = self._held()
        if held is not None and held.token == self._token:
            self._files.rm_file(self._path)

    def _check(self, now_ms: int, *, is_mine: bool = False) -> None:
        held = self._held()
        if held is None or held.token == self._token:
            return
        if is_mine or held.until_ms > now_ms:
            place = self._path.removesuffix(f"/{_LEASE}")
            left_s = max(held.until_ms - now_ms, 0) / 1000
            raise StorageClaimedError(place, held.owner, left_s)

    def _held(self) -> _LeaseFile | None:
        self._files.invalidate_cache()
        try:
            found = self._files.cat_file(self._path)
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(found, type=_LeaseFile)
        except msgspec.MsgspecError:
            # Half written by a machine that died.
            return None

    def _write(self, now_ms: int) -> None:
        self._files.makedirs(self._path.rpartition("/")[0], exist_ok=True)
        lease = _LeaseFile(self._owner, self._token, now_ms + LEASE_MS)
        self._files.pipe_file(self._path, msgspec.json.encode(lease))
